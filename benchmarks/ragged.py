"""A batch of prompts of many lengths against one of equal lengths of the same sum, padded and in lanes.

    OMP_NUM_THREADS=1 python benchmarks/ragged.py [--shortest 23] [--longest 227] [--rows 16] [--json]

The three batches take their steps in turn, so that a noisy machine hits all alike. On a CPU with one thread it is the
process's own time that counts, which others on the machine lengthen less. Each ratio is one of medians, with the middle
95 % of 2,000 resamplings of the steps.
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.cli.models import load_pretrained as load
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.state import Plan
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.generation.defaults import SCHEME
from multidraft.machine.identity import commit, hardware
from multidraft.models import lanes
from multidraft.zoo import Pair

ALONE = 10**9  # what a lane costs where there is to be one only


class Batch(NamedTuple):
    """Lengths of its prompts, and what a lane costs; None is as ever."""

    lengths: list[int]
    cost: int | None = None


@contextmanager
def lane_cost(cost: int | None) -> Iterator[None]:
    """Lanes cost so much in here."""
    before = dict(lanes.COSTS)
    lanes.COSTS.update({} if cost is None else dict.fromkeys(("cpu", "cuda"), cost))
    try:
        yield
    finally:
        lanes.COSTS.clear()
        lanes.COSTS.update(before)


def batches(options: argparse.Namespace) -> dict[str, Batch]:
    """Equal lengths, and different ones in an order by chance."""
    ragged = np.linspace(options.shortest, options.longest, options.rows).round().astype(int)
    equal = [int(ragged.mean().round())] * options.rows
    mixed = np.random.default_rng(0).permutation(ragged).tolist()
    return {"equal": Batch(equal, ALONE), "padded": Batch(mixed, ALONE), "lanes": Batch(mixed)}


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds that others take least from."""

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    if device.type == "cuda":
        return synchronised
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


@torch.inference_mode()
def measure(pair: Pair, tree: str | None, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each step, by batch."""
    scheme, shape = (SCHEME, Tree.parse(tree)) if tree else ("iid:lorenz", Tree.paths([]))
    plan, clock = Plan(md.scheme(scheme), shape, measure=False), clock_of(pair.target.device)
    text = np.random.default_rng(1).integers(pair.target.config.vocab_size, size=options.longest)
    cases, states = batches(options), {}
    for name, (lengths, cost) in cases.items():
        prompts, random = [text[:n].tolist() for n in lengths], [torch.Generator().manual_seed(n) for n in lengths]
        with lane_cost(cost):
            longest = max(lengths) + options.steps * len(shape)
            states[name] = start(prompts, pair.target, tree and pair.draft, plan, longest, random, Info())
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for _ in tqdm(range(options.steps), desc=tree or "plain", leave=False):
        for name, (_, cost) in cases.items():
            with lane_cost(cost):
                before = clock()
                states[name], _ = step(states[name], plan, Info())
                seconds[name].append(clock() - before)
    return {name: each[options.steps // 10 :] for name, each in seconds.items()}


def ratio(ours: list[float], other: list[float]) -> tuple[float, float, float]:
    """Of the medians, with an interval."""
    chance = np.random.default_rng(0)
    drawn = [np.median(chance.choice(each, (2000, len(each))), 1) for each in (ours, other)]
    low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975))
    return float(np.median(ours) / np.median(other)), float(low), float(high)


def lines_of(name: str, seconds: dict[str, list[float]]) -> list[dict[str, Any]]:
    """A line a batch."""
    return [
        dict(tree=name, batch=batch, milliseconds=1e3 * float(np.median(each)), to_equal=ratio(each, seconds["equal"]))
        for batch, each in seconds.items()
    ]


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shortest", type=int, default=23)
    parser.add_argument("--longest", type=int, default=227)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tree", nargs="+", default=["1x1"], help="beside plain decoding")
    parser.add_argument("--target", help="a folder or hub name; default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair = load(options.target, options.draft)
    lines = [line for tree in (None, *options.tree) for line in lines_of(tree or "plain", measure(pair, tree, options))]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), commit=commit(), options=vars(options), results=lines)))
        return
    table = Table("tree", "batch", "ms a step", "over equal lengths", title=f"{hardware()}, {commit()}")
    for line in lines:
        over = "{:.3f} ({:.3f} to {:.3f})".format(*line["to_equal"])
        table.add_row(line["tree"], line["batch"], f"{line['milliseconds']:.1f}", over)
    Console().print(table)


if __name__ == "__main__":
    main()
