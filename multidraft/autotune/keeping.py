"""Where plans are kept: a folder of the user's cache, one file for each pair, machine, scheme and walk."""

import json
import logging
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

from tqdm import tqdm

from multidraft.autotune.identity import digest
from multidraft.autotune.making import make, work
from multidraft.autotune.pair_plan import PairPlan
from multidraft.autotune.subject import Subject
from multidraft.errors import AdviceError
from multidraft.io import files

NOTES = logging.getLogger("multidraft")
LOADED: dict[Path, PairPlan] = {}  # those that this process has used, by where they are kept


def plan_for(subject: Subject, file: Path | None = None) -> PairPlan:
    """The plan of a pair on this machine: that of a file, the one that is kept, or one that is made now and kept."""
    wanted = subject.identity
    if file is not None:
        return checked(file, wanted)
    file = place(wanted)
    if file not in LOADED:
        LOADED[file] = kept(file, wanted) or made_and_kept(subject, file)
    return LOADED[file]


def adopt(subject: Subject, plan: str) -> None:
    """Let this process use a plan that another one has, in JSON: processes that share work choose the same trees."""
    LOADED[place(subject.identity)] = read(plan)


def place(wanted: dict[str, Any]) -> Path:
    """The file of the plan of a certain identity."""
    key = digest(json.dumps(wanted, sort_keys=True))
    return cache() / "plans" / f"{key}.json"


def cache() -> Path:
    """Our folder in the user's cache."""
    try:
        from platformdirs import user_cache_path
    except ImportError:  # run from the sources, where nothing could be installed
        return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "multidraft"
    return user_cache_path("multidraft", appauthor=False)


def checked(file: Path, wanted: dict[str, Any]) -> PairPlan:
    """The plan of a file that a user has named; raises AdviceError where it is none, or is of something else."""
    try:
        plan = read(file.read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no text"
        raise AdviceError(f"cannot read the plan {str(file)!r} ({reason}); make one with `multidraft tune`") from None
    except AdviceError as error:
        raise AdviceError(f"plan {str(file)!r}: {error}") from None
    other = [name for name in wanted if plan.identity.get(name) != wanted[name]]
    if other:
        raise AdviceError(
            f"plan {str(file)!r} is of another {' and '.join(other)}; make the right one with "
            f"`multidraft tune --out {file}`, and the same models"
        )
    return plan


@lru_cache(maxsize=8)
def read(text: str) -> PairPlan:
    """The plan of a text; a file that every call names is understood once."""
    return PairPlan.from_json(text)


def kept(file: Path, wanted: dict[str, Any]) -> PairPlan | None:
    """The plan that is kept, if it is whole; a damaged one is made anew."""
    try:
        plan = PairPlan.from_json(file.read_text())
    except OSError:
        return None
    except (AdviceError, UnicodeDecodeError):
        NOTES.warning("the plan %s is damaged; measuring anew", file)
        return None
    return plan if plan.identity == wanted else None


def made_and_kept(subject: Subject, file: Path) -> PairPlan:
    """A plan that is made now, and kept where that is possible."""
    with tqdm(total=work(), desc="measuring this pair on this machine, once", unit="step", leave=False, delay=2) as bar:
        plan = make(subject, bar.update)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, plan.as_json().encode())
    except (OSError, AdviceError):
        NOTES.warning("the plan cannot be kept in %s; the next run measures again", file.parent)
    return plan
