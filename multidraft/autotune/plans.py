"""Plans: what was measured of a pair on a machine, as readable JSON with a checksum, and where it is kept.

That is a file that a user names, one that is shipped, or one in the user's cache folder.
"""

import json
import logging
import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from hashlib import sha256
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from multidraft.autotune.estimates import DEFAULT, AcceptanceTracker, Costs, Rates, Timed, fitted
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError, shown
from multidraft.io import files
from multidraft.io.fields import Field, Items, Number, Object, Table, read
from multidraft.io.journal import parse
from multidraft.machine import cpu, versions
from multidraft.models.compat import home
from multidraft.models.huggingface import Model
from multidraft.verification.scheme import Scheme

NOTES = logging.getLogger("multidraft")
LENDS = ("draft", "scheme", "walk")  # of an identity: what a shipped profile must share, whatever the target's dtype
VOLATILE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype")  # fields of a configuration
LOOKED_AT = 8  # parameters of which a few numbers tell one checkpoint from another
LARGEST = 4 << 20  # bytes of a file that may be a profile
LOADED: dict[Path, "Profile"] = {}  # those that this process has used, by where they are kept
FORM = 10
FIRST = 3  # steps without drafts, and with some, after which costs can be told
MOST_SAMPLES = 9  # alike steps that are kept, of which the lower quartile counts
FEW, APART = 8, 4  # drafted nodes that are told apart, and of which more are told apart by so many
MAX_ROWS, MAX_STEPS, MAX_TEMPERATURES = 1024, 4096, 256  # of a plan: numbers of rows, kinds of steps, temperatures
AMOUNT = Number(0, 1e15)  # seconds, nodes and the like
NO_PLAN, MAKE = "it is no plan", "make one with `multidraft tune --out`"
TRUSTED = 20.0  # nodes after which measured acceptance is believed more than none


def table(*sizes: int) -> Field:
    """Nested lists of these lengths."""
    return Items(table(*sizes[1:]), sizes[0], sizes[0], required=True) if sizes else AMOUNT


STEP = Items(Number(-1e-3, 1e9), len(Timed._fields), len(Timed._fields))
STEPS = Table(r"[\d.e+-]{1,12}/(0|[1-9]\d{0,8})", str, Items(STEP, 1, MOST_SAMPLES), MAX_STEPS)
LEARNT = Object({name: table(*array.shape) for name, array in vars(AcceptanceTracker()).items()})
PLAN = Object(
    {
        "identity": Object(required=True),
        "samples": Table(r"[1-9]\d{0,8}", int, STEPS, MAX_ROWS, required=True),
        "acceptance": Table(r"\d{1,16}\.\d", float, LEARNT, MAX_TEMPERATURES, required=True),
        "spent": Table(r"[1-9]\d{0,8}", int, AMOUNT, MAX_ROWS, required=True),
    }
)


@dataclass
class Profile:
    """Seconds of steps by rows, and acceptance by temperature; it fills up while a pair decodes."""

    identity: dict[str, Any]
    samples: dict[int, dict[str, list[Timed]]] = field(default_factory=dict)
    acceptance: dict[float, AcceptanceTracker] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)  # seconds of steps that were timed, by rows
    costs_at: dict[int, Costs] = field(default_factory=dict, repr=False, compare=False)  # fitted, until more is known

    def add(self, rows: int, step: Timed) -> None:
        """A step that was timed."""
        nodes = math.ceil(step.nodes)
        alike = f"{step.levels:g}/{nodes if nodes <= FEW else -(-nodes // APART) * APART}"
        runs = self.samples.setdefault(rows, {}).setdefault(alike, [])
        runs.append(Timed(*map(float, step)))
        del runs[:-MOST_SAMPLES]
        self.spent[rows] = self.spent.get(rows, 0.0) + step.draft + step.target + step.rest
        self.costs_at.clear()
        if rows not in self.known:
            del self.known  # to be found anew

    def measured(self, rows: int, drafted: bool) -> int:
        """How many steps have been timed, with drafts or without."""
        return sum(len(runs) for alike, runs in self.samples.get(rows, {}).items() if drafted != alike.endswith("/0"))

    @cached_property
    def known(self) -> list[int]:
        """The numbers of rows of which costs are known."""
        both = (False, True)
        return sorted(rows for rows in self.samples if all(self.measured(rows, drafted) >= FIRST for drafted in both))

    def spent_near(self, rows: int) -> float:
        """Seconds of steps that were timed with about so many rows: of those with the same nearest power of two.

        A batch whose number of rows keeps changing has no more to time than one with a few numbers.
        """
        near = round(math.log2(rows))
        return sum((own for other, own in self.spent.items() if round(math.log2(other)) == near), 0.0)

    def costs(self, rows: int) -> Costs:
        """The costs with any number of rows: as measured, or as those of the nearest number that was."""
        if rows not in self.costs_at:
            nearest = min(self.known, key=lambda other: abs(np.log(other / rows)))
            costs = fitted(self.samples[nearest])
            self.costs_at[rows] = costs if nearest == rows else costs.scaled(rows / nearest)
        return self.costs_at[rows]

    def at(self, temperature: float | int) -> AcceptanceTracker:
        """What was accepted at about this temperature, to be added to."""
        return self.acceptance.setdefault(round(float(temperature), 1), AcceptanceTracker())

    def rates(self, temperature: float | int) -> Rates:
        """The acceptance at the nearest temperature at which enough was seen; otherwise what is assumed of any pair."""
        known = [other for other, own in self.acceptance.items() if own.nodes > TRUSTED]
        nearest = min(known, key=lambda other: abs(other - temperature), default=None)
        return DEFAULT if nearest is None else self.acceptance[nearest].rates(rounds=4)

    def as_json(self) -> str:
        """The profile as a text."""
        learnt = {
            temperature: {name: table.tolist() for name, table in vars(own).items()}
            for temperature, own in sorted(self.acceptance.items())
        }
        content = {"identity": self.identity, "samples": self.samples, "acceptance": learnt, "spent": self.spent}
        plain = json.loads(json.dumps(content))
        return json.dumps({"multidraft plan": FORM, "checksum": checksum(plain)} | plain)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Profile":
        """The profile that a text holds; raises AdviceError where it holds none."""
        found = read(Object(), parse(text, f"{NO_PLAN}: it", MAKE), NO_PLAN, MAKE)
        check_form(found)
        said = read(PLAN, found, NO_PLAN, MAKE)
        profile = cls(said["identity"], spent=said["spent"])
        for rows, alike in said["samples"].items():
            profile.samples[rows] = {name: [timed(run, name) for run in runs] for name, runs in alike.items()}
        for temperature, tables in said["acceptance"].items():
            for name, table in vars(profile.at(temperature)).items():
                table += np.array(tables[name])
        return profile


def check_form(found: dict[str, Any]) -> None:
    """Raise where a plan is of another version, or was changed after it was written; the two fields are taken out."""
    if found.pop("multidraft plan", None) != FORM:
        raise AdviceError(f"{NO_PLAN}: it is of another version; {MAKE}")
    try:
        is_whole = found.pop("checksum", None) == checksum(found)
    except RecursionError:
        is_whole = False
    if not is_whole:
        raise AdviceError(f"{NO_PLAN}: its checksum is wrong; {MAKE}")


def timed(run: list[float], name: str) -> Timed:
    """A step from a file; raises AdviceError where its name says otherwise than it whether it had drafts."""
    step = Timed(*run)
    if bool(step.nodes) == name.endswith("/0") or step.target <= 0:
        raise AdviceError(f"{NO_PLAN}: the step {shown(run)} is no {name}, or took no time; {MAKE}")
    return step._replace(rest=max(step.rest, 0.0))  # which rounding may have made less than nothing


def digest(text: str) -> str:
    """A short one."""
    return sha256(text.encode()).hexdigest()[:16]


def checksum(content: dict[str, Any]) -> str:
    """A digest of all that a profile or an identity says."""
    return digest(json.dumps(content, sort_keys=True))


@dataclass(frozen=True)
class Subject:
    """A pair, decoded with a scheme and a walk; prompts only to measure with."""

    target: Model
    draft: Model
    scheme: Scheme
    walk: str | Walker = "deferred"
    prompts: list[list[int]] = field(default_factory=list)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be the same for a profile to hold: the pair, and the machine."""
        pair = {"target": model(self.target), "draft": model(self.draft), "scheme": self.scheme.name}
        machine = {"cpu": cpu(), "threads": torch.get_num_threads(), "versions": versions()}
        return pair | {"walk": getattr(self.walk, "__name__", self.walk)} | machine


def model(one: Any) -> dict[str, Any]:
    """A model: its kind, a digest of its configuration and of some weights, its dtype and device."""
    one = getattr(one, "model", one)  # of one that is wrapped to be read
    if not isinstance(one, PreTrainedModel):
        members = [model(member) for member in getattr(one, "drafters", ())]
        own = getattr(one, "identity", None) or {"digest": digest(str([one.vocabulary, getattr(one, "longest", None)]))}
        own = {"kind": type(one).__name__, "device": str(one.device)} | own
        return own | {"drafters": members} if members else own
    fields = {name: value for name, value in one.config.to_dict().items() if name not in VOLATILE}
    parameters = list(one.parameters())
    some = [own for own in parameters[:: max(len(parameters) // LOOKED_AT, 1)] if own.device.type != "meta"]
    weights = [str(own.detach().reshape(-1)[:4].float().tolist()) for own in some]
    text, device = json.dumps(fields, sort_keys=True, default=str) + "".join(weights), home(one)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return {"kind": type(one).__name__, "digest": digest(text), "dtype": str(one.dtype), "device": name}


def profile_for(subject: Subject, file: Path | None = None) -> Profile:
    """The profile of a pair on this machine: that of a file, the one that is kept, or a new one."""
    wanted = subject.identity
    if file is not None:
        return checked(file, wanted)
    file = place(wanted)
    if file not in LOADED:
        LOADED[file] = kept(file, wanted) or fresh(wanted)
    return LOADED[file]


def adopt(subject: Subject, text: str) -> None:
    """Let this process use a profile that another one has, in JSON: processes that share work choose the same trees."""
    LOADED[place(subject.identity)] = Profile.from_json(text)


def place(wanted: dict[str, Any]) -> Path:
    """The file of the profile of a certain identity."""
    return files.cache() / "plans" / f"{checksum(wanted)}.json"


def fresh(wanted: dict[str, Any]) -> Profile:
    """A new profile: acceptance as a shipped one of the same drafter has it, and no costs, which are the machine's."""
    new = Profile(wanted)
    for entry in shipped():
        other = Profile.from_json(entry.read_text())
        if all(other.identity[name] == wanted[name] for name in LENDS):
            new.acceptance = other.acceptance
    return new


def shipped() -> list[Traversable]:
    """The profiles that come with pairs."""
    folder = package_files("multidraft.zoo").joinpath("plans")
    return list(folder.iterdir()) if folder.is_dir() else []


def checked(file: Path, wanted: dict[str, Any]) -> Profile:
    """The profile of a file that a user has named; raises AdviceError where it is none, or is of something else."""
    content = files.content(file, "the plan", LARGEST)
    try:
        profile = Profile.from_json(content)
    except AdviceError as error:
        raise AdviceError(f"plan {str(file)!r}: {error}") from None
    other = [name for name in wanted if profile.identity.get(name) != wanted[name]]
    if other or not profile.known:
        what = f"is of another {' and '.join(other)}" if other else "has no costs"
        raise AdviceError(
            f"plan {str(file)!r} {what}; make the right one with `multidraft tune --out {file}`, and the same models"
        )
    return profile


def kept(file: Path, wanted: dict[str, Any]) -> Profile | None:
    """The profile that is kept, if it is whole; a damaged one is measured again."""
    if not file.is_file():
        return None
    try:
        profile = Profile.from_json(files.content(file, "the plan", LARGEST))
    except AdviceError:
        NOTES.warning("the plan %s is damaged; measuring again", file)
        return None
    return profile if profile.identity == wanted else None


@lru_cache(maxsize=32)
def how_often(file: Path) -> str:
    """How often steps are timed for a profile that is kept in a file, or cannot be, in words."""
    try:
        files.make_folder(file.parent, "the cache")
    except AdviceError:
        return f"in every run, as nothing can be kept in {file.parent}"
    return f"once; kept in {file}"


def save(profile: Profile) -> bool:
    """Keep a profile where the next run finds it; False where that is not possible, which is said once."""
    file = place(profile.identity)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, profile.as_json().encode())
    except (OSError, AdviceError):
        say_once("the plan cannot be kept in %s; the next run measures again", file.parent)
        return False
    return True


@lru_cache(maxsize=32)
def say_once(message: str, *values: object) -> None:
    """Warn of what a process needs to hear only once."""
    NOTES.warning(message, *values)
