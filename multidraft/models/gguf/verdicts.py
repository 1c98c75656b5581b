"""Whether a library reads a model rightly, and how fast: found out once, in a process of its own, and kept."""

import json
import logging
import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.machine import cpu, is_busy
from multidraft.models.gguf import header

WIDTHS = (1, 4, 8, 16)  # tokens of the passes that are measured
TRIAL, TRIAL_SECONDS, TRIAL_VERSION = "multidraft.models.gguf.trial", 120, 3  # of what it asks and allows
FAULTS = {signal.SIGFPE, signal.SIGILL, signal.SIGSEGV}  # of a build; it aborts for what may pass: memory, a driver
SAID = "library: "  # before what it says
NOTES = logging.getLogger("multidraft")


class TrialResult(NamedTuple):
    """What is wrong with a library, or how long its passes of some widths take."""

    fault: str | None
    milliseconds: dict[int, float]

    @property
    def slowness(self) -> float:
        """The logarithmic mean of passes; infinite where none could be measured."""
        return fmean(map(log, self.milliseconds.values())) if self.milliseconds else float("inf")

    @property
    def times(self) -> str:
        """Those of all widths."""
        return ", ".join(f"{value:.3g}" for value in self.milliseconds.values())


def verdict_on(path: Path, library: str, identity: str) -> TrialResult:
    """What is known of a library, by its name or the place of its build, on models of such a shape; kept."""
    import torch  # by what shows help, too, which it would slow down

    threads = torch.get_num_threads()
    key = json.dumps([TRIAL_VERSION, identity, cpu(), threads, shape_of(path)])
    place = files.cache() / "libraries" / f"{sha256(key.encode()).hexdigest()[:24]}.json"
    return kept_verdict(place) or new_verdict(path, library, threads, place)


def shape_of(path: Path) -> list[object]:
    """What the time of a pass depends on: the tensors of a model, their sizes and types."""
    return [
        (tensor.name.decode(errors="replace"), tensor.kind, tensor.sizes)
        for part in header.parts(path)
        for tensor in header.header_of(part).tensors
    ]


def kept_verdict(place: Path) -> TrialResult | None:
    """A verdict that was kept; None where there is none, it is damaged, or can be had of an idle machine by now."""
    with suppress(OSError, ValueError, KeyError, TypeError, AttributeError):
        kept = json.loads(place.read_bytes())
        if kept["was_busy"] and not is_busy():
            return None
        return result_in(kept)
    return None


@cache
def new_verdict(path: Path, library: str, threads: int, place: Path) -> TrialResult:
    """A verdict, after a trial; kept if it is the library's own, for what else stops a process may pass."""
    NOTES.warning("trying %s on %s, once; some seconds", library, path.name)
    question = json.dumps({"path": str(path), "library": library, "threads": threads})
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", TRIAL]
    try:
        run = subprocess.run(
            command, input=question, capture_output=True, text=True, timeout=TRIAL_SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return TrialResult(f"it did not answer within {TRIAL_SECONDS} s", {})
    verdict = read_verdict(run)
    if not is_of_library(run.returncode):
        return verdict
    with suppress(AdviceError, OSError):  # where nothing can be kept, it is tried again
        place.parent.mkdir(parents=True, exist_ok=True)
        files.write(place, json.dumps(verdict._asdict() | {"was_busy": is_busy()}).encode())
    return verdict


def read_verdict(run: "subprocess.CompletedProcess[str]") -> TrialResult:
    """What a process that has ended says, or how it ended."""
    if run.returncode < 0:
        said = [line.removeprefix(SAID) for line in run.stderr.splitlines() if line.startswith(SAID)]
        why = ": ".join([signal.Signals(-run.returncode).name, *said[-1:]])
        return TrialResult(f"it ends the process ({why})", {})
    lines = run.stdout.splitlines()
    if run.returncode or not lines:
        return TrialResult((run.stderr.strip().splitlines() or ["it says nothing"])[-1], {})
    return result_in(json.loads(lines[-1]))


def is_of_library(code: int) -> bool:
    """Whether a process that ended so tells something of the library, or of what else may stop one and passes."""
    return not code or -code in FAULTS


def result_in(answer: dict[str, Any]) -> TrialResult:
    """A result as JSON has it."""
    return TrialResult(answer["fault"], {int(width): float(value) for width, value in answer["milliseconds"].items()})
