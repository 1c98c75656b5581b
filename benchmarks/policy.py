"""What `auto` itself takes of a step: milliseconds in `begin`, `plan`, `counts` and `observe`, by rows and drafter.

    python benchmarks/policy.py [--rows 1 4 16 32] [--steps 40] [--json]

Pairs are tables of 64 tokens. Costs are made up, so that each line shows one mood: a draft model that pays or rests,
look-ups, and both where nothing can pay. The median over steps; steps in which prices are set are among them.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import multidraft as md
from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.estimates import Costs, Timed, Work
from multidraft.autotune.plans import Profile
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import PromptReads, TreePolicy
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.machine import hardware
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader
from multidraft.sampling.settings import Sampling

SIZE, TEMPERATURE, PERIOD = 64, 0.7, 12
PARTS = ("begin", "plan", "counts", "observe")
CHEAP, DEAR = Costs(10.0, 10.5, 0.05, 0.1, 0.01), Costs(10.0, 60.0, 60.0, 60.0, 1.0)  # seconds, made up


def table(seed: int) -> TableModel:
    """A model of random conditionals, half of whose texts repeat themselves."""
    return TableModel(random_table(SIZE, 1, seed, 0.05), SIZE)


MOODS: dict[str, tuple[Callable[[], Reader], Costs]] = {
    "model, pays": (lambda: table(0), CHEAP),
    "model, rests": (lambda: table(1), DEAR),
    "look-up, pays": (lambda: Lookup(SIZE), CHEAP),
    "look-up, cannot pay": (lambda: Lookup(SIZE), DEAR),
    "both, pay": (lambda: LookupThenModel([Lookup(SIZE), table(0)]), CHEAP),
    "both, cannot pay": (lambda: LookupThenModel([Lookup(SIZE), table(1)]), DEAR),
}


def profile(costs: Costs, rows: int) -> Profile:
    """A profile with these costs for so many rows."""
    made_profile = Profile({})
    for tree in (NO_DRAFTS, *map(Tree.parse, ("1", "1x1x1", "1x6", "4x2x2"))):
        work = Work.of_tree(tree)
        without_model = costs.seconds(work._replace(levels=0, reads=0))
        for _ in range(4):
            made_profile.add(rows, Timed(*work, costs.seconds(work) - without_model, without_model, 0.0))
    made_profile.spent[rows] = 1e9
    return made_profile


def clocked(policy: TreePolicy) -> dict[str, float]:
    """Add up the seconds that calls of a policy take, by its member; calls within calls count once."""
    seconds, inside = dict.fromkeys(PARTS, 0.0), [0]

    def wrap(name: str, member: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            inside[0] += 1
            start = time.thread_time()
            try:
                return member(*arguments)
            finally:
                inside[0] -= 1
                seconds[name] += 0.0 if inside[0] else time.thread_time() - start

        return call

    for name in PARTS:
        setattr(policy, name, wrap(name, getattr(policy, name)))
    return seconds


@torch.inference_mode()
def measure(mood: str, rows: int, steps: int) -> dict[str, Any]:
    """One line: medians over steps of a batch, of all parts together and of each."""
    make, costs = MOODS[mood]
    draft = make()
    policy = Auto(profile(costs, rows), TEMPERATURE, budget=1.0, kind=draft.cost)
    seconds, lines = clocked(policy), list[dict[str, float]]()
    batch = Batch(table(0), draft, DecodeConfig(md.scheme("anchored:lorenz"), measure=0), policy)
    batch.add([Request([*range(PERIOD)], 10**4, Sampling(TEMPERATURE)) for _ in range(rows)])
    for _ in range(steps):
        policy.begin(rows, PromptReads(0.5, 0.01))
        batch.step()
        lines.append(dict(seconds))
        seconds.update(dict.fromkeys(PARTS, 0.0))
    medians = {part: 1e3 * statistics.median(line[part] for line in lines[1:]) for part in PARTS}
    totals = [1e3 * sum(line.values()) for line in lines[1:]]
    return dict(mood=mood, rows=rows, total=statistics.median(totals), mean=statistics.mean(totals)) | medians


def main(words: list[str] | None = None) -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    results = [measure(mood, rows, options.steps) for mood in MOODS for rows in options.rows]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), results=results)))
        return
    shown = Table("drafter", "rows", "median, ms", "mean, ms", *PARTS, title="Milliseconds of `auto` a step")
    for line in results:
        numbers = [f"{line[name]:.3f}" for name in ("total", "mean", *PARTS)]
        shown.add_row(line["mood"], str(line["rows"]), *numbers)
    Console(width=max(110, Console().width)).print(shown)


if __name__ == "__main__":
    main()
