"""What a step costs around the models' passes, with the compiled loops and without them, taking turns.

    OMP_NUM_THREADS=1 python benchmarks/step.py [--vocabulary 4096 32000] [--trees 1x1x1 2x1x1x1 3x1x1x1] [--json]

Both models are made up: a pass gives logits that lie ready, the draft's a noisy copy of the target's. Each number is
the median over steps of the processor's time for one step, so that neighbours on the machine count for little.
"""

import argparse
import json
import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

import torch
from jaxtyping import Bool, Float, Int
from multidraft.decoding.shapes import shape_of
from rich.console import Console
from rich.table import Table
from torch import Tensor
from tqdm import tqdm

import multidraft as md
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import at_roots
from multidraft.decoding.state import Plan, State
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.decoding.warming import warm_up
from multidraft.machine.identity import hardware
from multidraft.sampling.settings import Sampling
from multidraft.verification import loops

PASSES = 16  # that are told apart; then they come again


class Given:
    """A model whose logits lie ready, whatever it reads."""

    context = None
    device = torch.device("cpu")

    def __init__(self, logits: Float[Tensor, "passes rows nodes vocabulary"]):
        self.logits, self.vocabulary, self.passes = logits, logits.shape[-1], 0

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: bool = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """The next ones."""
        self.passes += 1
        return self.logits[self.passes % PASSES, :, : tokens.shape[1]]

    def fresh(self, capacity: int) -> "Given":
        """Itself: nothing is kept."""
        return self

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        """Nothing."""

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        """Rows never leave."""

    def join(self, other: "Given") -> None:
        """Rows never come."""


def beginning(vocabulary: int, plan: Plan) -> State:
    """One row, of which nothing has been decoded."""
    generator = torch.Generator().manual_seed(0)
    target, noise = torch.randn(2, PASSES, 1, len(plan.tree) + 4, vocabulary, generator=generator)
    target *= 2.5
    return at_roots(Given(target), Given(target + 0.7 * noise), [[0]], plan, torch.Generator().manual_seed(1))


def plain_loops() -> AbstractContextManager[object]:
    """Tensor operations in place of compiled loops."""
    return patch.object(loops, "usable", lambda *_: False)


def measure(vocabulary: int, tree: str, options: argparse.Namespace) -> dict[str, object]:
    """Milliseconds of a step, compiled and not."""
    sampling = Sampling(options.temperature, options.top_k, options.top_p)
    plan = Plan(md.scheme(options.scheme), Tree.parse(tree), sampling=sampling, measure=False)
    warm_up(plan.scheme, shape_of(plan.tree), Given.device)
    ways: dict[str, AbstractContextManager[object]] = {"compiled": nullcontext(), "plain": plain_loops()}
    states, times = {way: beginning(vocabulary, plan) for way in ways}, {way: list[float]() for way in ways}
    for _ in range(options.steps):
        for way, chosen in ways.items():
            with chosen:
                start = time.thread_time()
                states[way], _ = step(states[way], plan, Info())
                times[way].append(1000 * (time.thread_time() - start))
    compiled, plain = (statistics.median(times[way][1:]) for way in ways)
    return dict(vocabulary=vocabulary, tree=tree, compiled=compiled, plain=plain, ratio=plain / compiled)


def main() -> None:
    """Measure all and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, nargs="+", default=[4096, 32_000])
    parser.add_argument("--trees", nargs="+", default=["1x1x1", "2x1x1x1", "3x1x1x1"])
    parser.add_argument("--scheme", default="anchored:lorenz")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = [(vocabulary, tree) for vocabulary in options.vocabulary for tree in options.trees]
    lines = [measure(*case, options) for case in tqdm(cases)]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), results=lines)))
        return
    table = Table("vocabulary", "tree", "compiled, ms", "plain, ms", "plain / compiled", title=str(hardware()))
    for line in lines:
        numbers = [f"{line[name]:.2f}" for name in ("compiled", "plain", "ratio")]
        table.add_row(f"{line['vocabulary']:,}", str(line["tree"]), *numbers)
    Console().print(table)


if __name__ == "__main__":
    main()
