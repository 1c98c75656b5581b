"""What is ours of a step, by part: all but the models' passes, whose logits lie ready.

    OMP_NUM_THREADS=1 python benchmarks/step.py [--vocabulary 4096 49152 151936] [--trees 1x1x1 2x1x1x1] [--json]

A pass of a made-up model reads as much memory as its weights would take, so that what is ours finds the processor's
caches as cold as beside a real one; the draft's logits are a noisy copy of the target's. Each number is the median over
steps of the processor's milliseconds, without the passes: drafting (laws and draws), the rule (with the walk and the
target's distributions), the caches' and the step's own bookkeeping, and what `info` adds up.
"""

import argparse
import json
import statistics
import time
from typing import Any
from unittest.mock import patch

import torch
from multidraft_research.tuning.measuring import requests_for
from rich.console import Console
from rich.table import Table

import multidraft as md
from multidraft.decoding import step as steps
from multidraft.decoding.metrics import Info, measured_acceptance
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.prefill import row_at_root
from multidraft.decoding.record import Clock
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.tree import Tree
from multidraft.decoding.warm_up import warm_up
from multidraft.generation import DEFAULT_SCHEME
from multidraft.machine import commit, hardware
from multidraft.models.reader import Reader
from multidraft.sampling.settings import Sampling

PASSES = 8  # that are told apart; then they come again
WEIGHTS = 1 << 24  # bytes that a pass reads
PARTS = ("draft", "target", "rule", "measure", "cache", "rest", "info", "ours")


class Given(Reader):
    """A model whose logits lie ready, whatever it reads."""

    def __init__(self, logits: torch.Tensor):
        self.logits, self.vocabulary, self.passes = logits, logits.shape[-1], 0  # (passes, rows, nodes, vocabulary)
        self.weights, self.seconds = torch.zeros(WEIGHTS // 4), 0.0

    def _read(self, tokens: list[list[int]], parents: list[list[int]], scored: str) -> torch.Tensor:
        """The next ones."""
        start = time.process_time()
        self.passes += 1
        self.weights.sum()
        width = 1 if scored == "last" else max(map(len, tokens))
        logits = self.logits[self.passes % PASSES, :, :width].clone()
        self.seconds += time.process_time() - start
        return logits

    def new(self, capacity: int) -> "Given":
        """Itself: nothing is kept."""
        return self


def beginning(vocabulary: int, rows: int, tree: Tree, sampling: Sampling) -> State:
    """Rows of which nothing has been decoded."""
    generator = torch.Generator().manual_seed(0)
    shape = (PASSES, rows, len(tree) + 1, vocabulary)
    ranks, noise = torch.rand(shape, generator=generator).argsort(-1), torch.randn(shape, generator=generator)
    heights = -1.8 * torch.log(1.0 + ranks)  # as in texts, a token's probability falls with a power of its rank
    logits = [heights, heights + 0.7 * noise]
    models: Any = [Given(values.bfloat16()) for values in logits]
    requests = requests_for([[0]] * rows, sampling, len(tree) * PASSES, seed=1)
    return State(*models, [row_at_root(request, Given.device) for request in requests])


def measure(vocabulary: int, tree: str, options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of a step's parts; the clock of a step is the processor's meanwhile."""
    shape, sampling = Tree.parse(tree), Sampling(options.temperature, options.top_k, options.top_p)
    way = DecodeConfig(md.scheme(options.scheme)), StaticTree(shape)
    state, info = beginning(vocabulary, options.rows, shape, sampling), Info()
    warm_up(way[0], way[1].limits, Given.device)
    models: Any = state.models
    times: dict[str, list[float]] = {part: [] for part in PARTS}
    for _ in range(options.steps):
        before, start = [model.seconds for model in models], time.process_time()
        is_measured = options.measure > 0 and state.steps % options.measure == 0
        state, record = steps.step(state, *way)
        with Clock(False, record.seconds).part("measure"):
            record.measured = measured_acceptance(way[0].scheme, record) if is_measured else {}
        middle = time.process_time()
        info.add(record)
        end = time.process_time()
        target, draft = (model.seconds - old for model, old in zip(models, before, strict=True))
        spent = record.seconds | dict(draft=record.seconds["draft"] - draft, target=record.seconds["target"] - target)
        spent["rest"] = middle - start - sum(record.seconds.values())
        spent |= dict(info=end - middle, ours=end - start - target - draft)
        for part, took in spent.items():
            times[part].append(1e3 * took)
    milliseconds = {
        part: statistics.fmean(sorted(times_of_part)[: 4 * len(times_of_part) // 5])
        for part, times_of_part in times.items()
    }
    return dict(vocabulary=vocabulary, tree=tree, tokens_per_pass=info.block_efficiency) | milliseconds


def main() -> None:
    """Measure all and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[4096, 49_152, 151_936])
    parser.add_argument("--trees", nargs="+", default=["1x1x1", "2x1x1x1"])
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--scheme", default=DEFAULT_SCHEME)
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--measure", type=int, default=16, help="compare acceptance with the optimum every so often")
    parser.add_argument("--steps", type=int, default=160)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with patch.object(time, "perf_counter", time.process_time):
        lines = [measure(size, tree, options) for size in options.vocabulary for tree in options.trees]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), commit=commit(), options=vars(options), results=lines)))
        return
    columns = ("vocabulary", "tree", *PARTS, "tokens a pass")
    table = Table(*columns, title=f"milliseconds of a step that are ours: {hardware()}, {commit()}")
    for line in lines:
        numbers = [f"{line[name]:.2f}" for name in (*PARTS, "tokens_per_pass")]
        table.add_row(f"{line['vocabulary']:,}", str(line["tree"]), *numbers)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
