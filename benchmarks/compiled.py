"""Steps of the real loop with compiled models against eager ones, and of them the models' passes alone.

    OMP_NUM_THREADS=1 python benchmarks/compiled.py [--rows 1] [--tree 1x1x1 2x1x1x1] [--json]

The two take their steps in turn, after the same prompts, so that a noisy machine hits both alike. On a CPU with one
thread it is the process's own time that counts, which others on the machine lengthen less. Each ratio is one of
medians, with the middle 95 % of 2,000 resamplings of the steps.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from multidraft_research.cli.pretrained import load_pretrained as load
from multidraft_research.tuning.measuring import requests_for
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.prefill import read_whole
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.decoding.warm_up import compile_steps
from multidraft.generation import DEFAULT_SCHEME
from multidraft.machine import commit, hardware
from multidraft.models.user_models import as_reader
from multidraft.sampling.settings import Sampling
from multidraft.zoo import Pair

WAYS = {"eager": False, "compiled": True}
PARTS = ("target", "draft", "step")
Seconds = dict[str, dict[str, list[float]]]  # by way and part


@torch.inference_mode()
def measure(pair: Pair, tree: str | None, options: argparse.Namespace) -> Seconds:
    """Seconds of each step, and of its passes as the step has noted them."""
    shape, clock = Tree.parse(tree) if tree else NO_DRAFTS, clock_of(pair.target.device)
    texts = torch.randint(pair.target.config.vocab_size, (options.rows, options.prompt)).tolist()
    steps, draft = options.steps * len(shape), pair.draft if tree else None
    states, configs, policy = {}, {}, StaticTree(shape)
    for way, compiles in WAYS.items():
        configs[way] = config = DecodeConfig(md.scheme(DEFAULT_SCHEME), measure=0)
        readers = [None if model is None else as_reader(model, compiles) for model in (pair.target, draft)]
        if compiles:
            compile_steps(policy.limits, readers, texts, [steps] * len(texts), len(texts))
        states[way] = read_whole(requests_for(texts, Sampling(), steps, seed=0), *readers, config, policy)
    seconds: Seconds = {way: {part: [] for part in PARTS} for way in WAYS}
    for _ in tqdm(range(options.steps), desc=tree or "plain", leave=False):
        for way, config in configs.items():
            before = clock()
            states[way], record = step(states[way], config, policy)
            for part, took in (record.seconds | {"step": clock() - before}).items():
                seconds[way].setdefault(part, []).append(took)
    return seconds


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds that others take least from."""

    def synchronised() -> float:
        torch.cuda.synchronize()
        return time.perf_counter()

    if device.type == "cuda":
        return synchronised
    return time.process_time if torch.get_num_threads() == 1 else time.perf_counter


def ratio(ours: list[float], other: list[float]) -> tuple[float, float, float]:
    """Of the medians, with an interval."""
    chance = np.random.default_rng(0)
    drawn = [np.median(chance.choice(times, (2000, len(times))), 1) for times in (ours, other)]
    low, high = np.quantile(drawn[0] / drawn[1], (0.025, 0.975))
    return float(np.median(ours) / np.median(other)), float(low), float(high)


def lines_of(tree: str | None, seconds: Seconds, first: int) -> list[dict[str, Any]]:
    """A line a part, of the steps from the first on; without drafts the draft model does nothing."""
    parts = [part for part in PARTS if tree or part != "draft"]
    sides = {part: [seconds[way][part][first:] for way in WAYS] for part in parts}
    return [
        dict(
            tree=tree or "plain",
            part=part,
            milliseconds=[1e3 * sorted(times)[len(times) // 2] for times in sides[part]],
        )
        | dict(speedup=ratio(*sides[part]))
        for part in parts
    ]


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--prompt", type=int, default=100, help="tokens of a prompt")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tree", nargs="+", default=["1x1x1", "2x1x1x1"], help="beside plain decoding")
    parser.add_argument("--target", help="a folder or hub name; default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair, first = load(options.target, options.draft), options.steps // 10
    torch.manual_seed(0)
    lines = [line for tree in (None, *options.tree) for line in lines_of(tree, measure(pair, tree, options), first)]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), commit=commit(), options=vars(options), results=lines)))
        return
    table = Table("tree", "part", "eager, ms", "compiled, ms", "eager / compiled", title=f"{hardware()}, {commit()}")
    for line in lines:
        times, over = line["milliseconds"], "{:.2f} ({:.2f} to {:.2f})".format(*line["speedup"])
        table.add_row(line["tree"], line["part"], *(f"{time:.1f}" for time in times), over)
    Console().print(table)


if __name__ == "__main__":
    main()
