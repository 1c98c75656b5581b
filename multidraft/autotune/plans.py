"""Plans: measurements of a pair on a machine, as JSON with a checksum, and the files that hold them.

A plan's file is named by the user, shipped with a pair, or lies in the user's cache folder.
"""

import json
import logging
import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from importlib.resources import files as package_files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from multidraft.autotune.estimates import DEFAULT, AcceptanceTracker, Costs, Timed, TreeRates, fit_costs, lower_quartile
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError, quote, say_once
from multidraft.io import files
from multidraft.io.fields import Field, Items, Number, Object, TableField, read
from multidraft.io.journal import parse
from multidraft.machine import cpu, is_busy, versions
from multidraft.models.reader import Reader, digest
from multidraft.verification.scheme import Scheme

SPEED_FIELDS = "dtype", "steps"  # of an identity
NOTES = logging.getLogger("multidraft")
LENDING_FIELDS = ("draft", "scheme", "walk")  # of an identity, in which a shipped profile must agree
MAX_PLAN_BYTES = 4 << 20  # of a plan's file
LOADED_PROFILES: dict[Path, "Profile"] = {}  # the profiles that this process has used, by file
FORMAT_VERSION = 13
MIN_STEPS = 3  # steps without drafts, and with drafts, that costs are fitted from
PLAIN = "0/0"  # steps in which no model drafts, and nothing is drafted
MAX_SAMPLES = 9  # steps with equal work that are kept
EXACT_NODES, NODES_PER_BUCKET = 8, 4  # steps are grouped by drafted nodes: exactly up to 8, above in buckets of 4
MAX_ROWS, MAX_STEPS, MAX_TEMPERATURES = 1024, 4096, 256  # of a plan: numbers of rows, kinds of steps, temperatures
AMOUNT = Number(0, 1e15)  # seconds, nodes and the like
NO_PLAN, HOW_TO_MAKE = "it is no plan", "make one with `multidraft tune --out`"
MIN_TRUSTED_NODES = 20.0  # nodes from which measured acceptance replaces the prior


def table(*sizes: int) -> Field:
    """A field of nested lists of these lengths."""
    return Items(table(*sizes[1:]), sizes[0], sizes[0], required=True) if sizes else AMOUNT


STEP = Items(Number(-1e-3, 1e9), len(Timed._fields), len(Timed._fields))
STEPS = TableField(r"[\d.e+-]{1,12}/(0|[1-9]\d{0,8})", str, Items(STEP, 1, MAX_SAMPLES), MAX_STEPS)
ACCEPTANCE_FIELDS = Object({name: table(*array.shape) for name, array in vars(AcceptanceTracker()).items()})
PLAN = Object(
    {
        "identity": Object(required=True),
        "samples": TableField(r"[1-9]\d{0,8}", int, STEPS, MAX_ROWS, required=True),
        "acceptance": TableField(r"\d{1,16}\.\d", float, ACCEPTANCE_FIELDS, MAX_TEMPERATURES, required=True),
        "spent": TableField(r"[1-9]\d{0,8}", int, AMOUNT, MAX_ROWS, required=True),
    }
)


@dataclass
class Profile:
    """Seconds of steps by rows, and acceptance by temperature; both grow while a pair decodes."""

    identity: dict[str, Any]
    samples: dict[int, dict[str, list[Timed]]] = field(default_factory=dict)
    acceptance: dict[float, AcceptanceTracker] = field(default_factory=dict)
    spent: dict[int, float] = field(default_factory=dict)  # seconds of timed steps, by rows
    costs_at: dict[int, Costs] = field(default_factory=dict, repr=False, compare=False)  # a cache of fits
    step_counts: dict[tuple[int, bool], int] = field(default_factory=dict, repr=False, compare=False)  # a cache
    has_busy_steps: bool = field(default=False, repr=False, compare=False)  # timed while the machine was busy
    is_disturbed: bool = field(default=False, repr=False, compare=False)  # steps do not count now: it is busy
    restarts: int = field(default=0, repr=False, compare=False)  # how often the steps of a busy machine were dropped

    def check_load(self) -> None:
        """Find out whether the machine is busy, and so what becomes of steps that are timed now.

        Steps of a busy machine serve until they can be timed on a quiet one: then they are dropped. Beside steps of a
        quiet machine they do not count.
        """
        is_busy_now = is_busy()
        if self.has_busy_steps and not is_busy_now:
            self.restart()
        self.is_disturbed = is_busy_now and not self.has_busy_steps and bool(self.timed_rows)
        self.has_busy_steps |= is_busy_now and not self.is_disturbed

    def restart(self) -> None:
        """Drop all timed steps; acceptance, which no load changes, stays."""
        for kept in (self.samples, self.spent, self.costs_at, self.step_counts):
            kept.clear()
        vars(self).pop("timed_rows", None)
        self.has_busy_steps, self.restarts = False, self.restarts + 1

    def add(self, rows: int, step: Timed, slowness: float = 1.0) -> None:
        """Add a timed step; what took `slowness` times as long as steps did at first is kept as it would have been."""
        runs = self.samples.setdefault(rows, {}).setdefault(kind_of(step), [])
        seconds = (part / slowness for part in (step.draft, step.target, step.rest))
        runs.append(Timed(*map(float, step[:3]), *seconds))
        del runs[:-MAX_SAMPLES]
        self.spent[rows] = self.spent.get(rows, 0.0) + step.draft + step.target + step.rest
        self.costs_at.clear()
        self.step_counts.clear()
        if rows not in self.timed_rows:
            del self.timed_rows  # it is computed again

    def chain_count(self, rows: int, length: int) -> int:
        """How many timed steps are kept with look-ups of about so many tokens in each row."""
        return len(self.samples.get(rows, {}).get(kind_of(Timed(0, 0, length, 0, 0, 0)), ()))

    def step_count(self, rows: int, drafted: bool) -> int:
        """How many timed steps are kept, with drafts or without."""
        if (case := (rows, drafted)) not in self.step_counts:
            groups = self.samples.get(rows, {}).items()
            self.step_counts[case] = sum(len(runs) for kind, runs in groups if drafted != kind.endswith("/0"))
        return self.step_counts[case]

    @cached_property
    def timed_rows(self) -> list[int]:
        """The numbers of rows for which there are enough timed steps."""
        fewest = {rows: min(self.step_count(rows, drafted) for drafted in (False, True)) for rows in self.samples}
        return sorted(rows for rows, steps in fewest.items() if steps >= MIN_STEPS)

    def spent_near(self, rows: int) -> float:
        """Seconds of timed steps with about so many rows: those with the same nearest power of two.

        So a batch whose number of rows keeps changing times no more steps than a steady one.
        """
        power = round(math.log2(rows))
        return sum((seconds for other, seconds in self.spent.items() if round(math.log2(other)) == power), 0.0)

    def costs(self, rows: int) -> Costs:
        """The costs with any number of rows: as measured, or scaled from the nearest number that was.

        Where steps without drafts were timed with a nearer number of rows, a plain step takes what it took there.
        """
        if rows not in self.costs_at:
            nearest = nearest_rows(self.timed_rows, rows)
            costs = fit_costs(self.samples[nearest])
            plain_rows = [other for other in self.samples if self.step_count(other, False) >= MIN_STEPS]
            if (nearer := nearest_rows([nearest, *plain_rows], rows)) != nearest:
                costs, nearest = costs.scale_rows(nearer / nearest).with_plain(self.plain_seconds(nearer)), nearer
            self.costs_at[rows] = costs if nearest == rows else costs.scale_rows(rows / nearest)
        return self.costs_at[rows]

    def plain_seconds(self, rows: int) -> float | int:
        """The lower quartile of the timed steps without drafts, which there must be."""
        groups = self.samples[rows].items()
        return lower_quartile([run.beside_model for kind, runs in groups if kind.endswith("/0") for run in runs])

    def at(self, temperature: float | int) -> AcceptanceTracker:
        """The tracker of acceptance at about this temperature; where there are many, at the nearest that has one."""
        rounded = round(float(temperature), 1)
        if rounded not in self.acceptance and len(self.acceptance) >= MAX_TEMPERATURES:
            rounded = min(self.acceptance, key=lambda other: abs(other - rounded))
        return self.acceptance.setdefault(rounded, AcceptanceTracker())

    def rates(self, temperature: float | int) -> TreeRates:
        """The acceptance at the nearest temperature with enough nodes; the prior if there is none."""
        known = [other for other, tracker in self.acceptance.items() if tracker.nodes > MIN_TRUSTED_NODES]
        nearest = min(known, key=lambda other: abs(other - temperature), default=None)
        return DEFAULT if nearest is None else self.acceptance[nearest].rates(rounds=4)

    def as_json(self) -> str:
        """The profile as JSON."""
        acceptance = {
            temperature: {name: table.tolist() for name, table in vars(tracker).items()}
            for temperature, tracker in sorted(self.acceptance.items())
        }
        content = {"identity": self.identity, "samples": self.samples, "acceptance": acceptance, "spent": self.spent}
        as_read = json.loads(json.dumps(content))
        return json.dumps({"multidraft plan": FORMAT_VERSION, "checksum": checksum(as_read)} | as_read)

    @classmethod
    def from_json(cls, text: str | bytes) -> "Profile":
        """The profile in a JSON text; raises AdviceError if it holds none."""
        content = read(Object(), parse(text, f"{NO_PLAN}: it", HOW_TO_MAKE), NO_PLAN, HOW_TO_MAKE)
        check_format(content)
        fields = read(PLAN, content, NO_PLAN, HOW_TO_MAKE)
        profile = cls(fields["identity"], spent=fields["spent"])
        for rows, steps in fields["samples"].items():
            profile.samples[rows] = {name: [read_step(run, name) for run in runs] for name, runs in steps.items()}
        for temperature, tables in fields["acceptance"].items():
            for name, table in vars(profile.at(temperature)).items():
                table += np.array(tables[name])
        return profile


def kind_of(step: Timed) -> str:
    """The name of the steps that have about the same work.

    >>> kind_of(Timed(0, 0, 3, 0.0, 1.0, 0.0)), kind_of(Timed(2, 3, 15, 0.1, 1.0, 0.0))
    ('0/3', '2/16')
    """
    nodes = math.ceil(step.nodes)
    return f"{step.levels:g}/{nodes if nodes <= EXACT_NODES else -(-nodes // NODES_PER_BUCKET) * NODES_PER_BUCKET}"


def nearest_rows(choices: list[int], rows: int) -> int:
    """The number of rows that is nearest to another one, on a logarithmic scale; the first of equals.

    >>> nearest_rows([1, 4, 16], 6)
    4
    """
    return min(choices, key=lambda choice: abs(math.log(choice / rows)))


def check_format(content: dict[str, Any]) -> None:
    """Raise if a plan has another version or was changed after it was written; removes the two fields."""
    if content.pop("multidraft plan", None) != FORMAT_VERSION:
        raise AdviceError(f"{NO_PLAN}: it is of another version; {HOW_TO_MAKE}")
    try:
        is_whole = content.pop("checksum", None) == checksum(content)
    except RecursionError:
        is_whole = False
    if not is_whole:
        raise AdviceError(f"{NO_PLAN}: its checksum is wrong; {HOW_TO_MAKE}")


def read_step(run: list[float], name: str) -> Timed:
    """A timed step from a file; raises AdviceError if its name and its nodes disagree on whether it had drafts."""
    step = Timed(*run)
    if bool(step.nodes) == name.endswith("/0") or step.target <= 0:
        raise AdviceError(f"{NO_PLAN}: the step {quote(run)} is no {name}, or took no time; {HOW_TO_MAKE}")
    return step._replace(rest=max(step.rest, 0.0))  # rounding may have made it negative


def checksum(content: dict[str, Any]) -> str:
    """A digest of a profile's or an identity's content."""
    return digest(json.dumps(content, sort_keys=True))


@dataclass(frozen=True)
class MeasuredPair:
    """A target and a draft model with a scheme and a walk; `prompts` are needed only to measure."""

    target: Reader
    draft: Reader
    scheme: Scheme
    walk: str | Walker = "deferred"
    prompts: list[list[int]] = field(default_factory=list)

    @cached_property
    def identity(self) -> dict[str, Any]:
        """What must be equal for a profile to apply: the pair, and the machine."""
        target, draft = model_identity(self.target), model_identity(self.draft)
        pair = {"target": target, "draft": draft, "scheme": self.scheme.name}
        machine = {"cpu": cpu(), "threads": torch.get_num_threads(), "versions": versions()}
        return pair | {"walk": getattr(self.walk, "__name__", self.walk)} | machine


def model_identity(model: Reader) -> dict[str, Any]:
    """The identity of a model: its kind and device, what it says of itself, and its drafters."""
    identity = {"kind": type(model).__name__, "device": str(model.device)} | model.fingerprint
    return identity | {"drafters": [*map(model_identity, model.drafters)]} if model.drafters else identity


def profile_for(pair: MeasuredPair, file: Path | None = None) -> Profile:
    """The profile of a pair on this machine: from `file`, from the cache, or a new one."""
    identity = pair.identity
    if file is not None:
        return load_named(file, identity)
    file = place(identity)
    if file not in LOADED_PROFILES:
        LOADED_PROFILES[file] = load_kept(file, identity) or fresh(identity)
    return LOADED_PROFILES[file]


def place(identity: dict[str, Any]) -> Path:
    """The file in the cache of the profile with this identity."""
    return files.cache() / "plans" / f"{checksum(identity)}.json"


def fresh(identity: dict[str, Any]) -> Profile:
    """A new profile: acceptance from a shipped one with the same drafter, and no costs, which depend on the machine."""
    profile = Profile(identity)
    for entry in shipped_profiles():
        lender = Profile.from_json(entry.read_text())
        if all(without_speed(lender.identity[name]) == without_speed(identity[name]) for name in LENDING_FIELDS):
            profile.acceptance = lender.acceptance
    return profile


def without_speed(identity: Any) -> Any:
    """An identity but for what changes its speed alone: as much is accepted in float32, and by compiled steps.

    >>> without_speed({"kind": "EagleDrafter", "dtype": "torch.float32"})
    {'kind': 'EagleDrafter'}
    """
    if isinstance(identity, list):
        return [without_speed(part) for part in identity]
    if not isinstance(identity, dict):
        return identity
    return {name: without_speed(part) for name, part in identity.items() if name not in SPEED_FIELDS}


def shipped_profiles() -> list[Traversable]:
    """The files of the profiles that are shipped with pairs."""
    folder = package_files("multidraft.zoo").joinpath("plans")
    return list(folder.iterdir()) if folder.is_dir() else []


def load_named(file: Path, identity: dict[str, Any]) -> Profile:
    """The profile in a file that the user named; raises AdviceError if it is none, or is of another identity."""
    content = files.content(file, "the plan", MAX_PLAN_BYTES)
    try:
        profile = Profile.from_json(content)
    except AdviceError as error:
        raise AdviceError(f"plan {str(file)!r}: {error}") from None
    differing = [name for name in identity if profile.identity.get(name) != identity[name]]
    if differing or not profile.timed_rows:
        fault = f"is of another {' and '.join(differing)}" if differing else "has no costs"
        raise AdviceError(
            f"plan {str(file)!r} {fault}; make the right one with `multidraft tune --out {file}`, and the same models"
        )
    return profile


def load_kept(file: Path, identity: dict[str, Any]) -> Profile | None:
    """The profile in the cache; one that is damaged or of another version is measured again."""
    if not file.is_file():
        return None
    try:
        profile = Profile.from_json(files.content(file, "the plan", MAX_PLAN_BYTES))
    except AdviceError as error:
        reason = str(error).removesuffix(f"; {HOW_TO_MAKE}")
        NOTES.warning("the kept plan %s cannot be used (%s); measuring again", file, reason)
        return None
    return profile if profile.identity == identity else None


def how_often(profile: Profile) -> str:
    """In words: how often steps are timed for a profile, which depends on whether it can be kept."""
    return "and again when the machine is not busy" if is_busy() else timing_note(place(profile.identity))


@lru_cache(maxsize=32)
def timing_note(file: Path) -> str:
    """In words: how often steps are timed if they are kept in this file, which depends on whether it can be written."""
    try:
        files.make_folder(file.parent, "the cache")
    except AdviceError:
        return f"in every run, as nothing can be kept in {file.parent}"
    return f"in all; kept in {file}"


def save(profile: Profile) -> bool:
    """Write a profile to the cache for the next run; False if the machine was busy, or, with a warning, on failure."""
    if profile.has_busy_steps:
        return False
    file = place(profile.identity)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        files.write(file, profile.as_json().encode())
    except (OSError, AdviceError):
        say_once("the plan cannot be kept in %s; the next run measures again", file.parent)
        return False
    return True
