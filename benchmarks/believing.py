"""How well `auto` foretells what drafts claim at the next node: its belief beside the plan alone and a fading mean.

    OMP_NUM_THREADS=1 python benchmarks/believing.py

Nodes are those that `auto` comes to when it goes by the plan alone. What they claim counts as an event of probability
w a, where w is the node's weight and a its predicted acceptance; the mean of what is then lost, in nats a node.
"""

import argparse
import math
from typing import Protocol
from unittest.mock import patch

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm
from useless import PROMPTS, tokens_of

import multidraft as md
from multidraft.autotune import auto
from multidraft.autotune.ease import Ease, chance
from multidraft.zoo import Pair, load_pair

FADING, PRIOR = 0.95, 12.0
Node = tuple[float, float, float]  # claimed, predicted, weight


class Believer(Protocol):
    """What foretells by an exponent of the chance to miss, and is told what came."""

    def add(self, claimed: float, predicted: float, weight: float) -> None: ...

    @property
    def exponent(self) -> float: ...


class PlanAlone(Ease):
    """Believes the plan, and keeps what it hears."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: list[Node] = []

    def add(self, claimed: float, predicted: float, weight: float, rows: int = 1) -> None:
        self.nodes.append((claimed, predicted, weight))


class FadingMean:
    """The mean of some twenty nodes, in which the plan's word fades like all else."""

    def __init__(self) -> None:
        self.claimed = self.predicted = self.weight = 0.0

    def add(self, claimed: float, predicted: float, weight: float) -> None:
        """A node."""
        if not self.weight:
            self.claimed = self.predicted = PRIOR * predicted / weight
            self.weight = PRIOR
        for name, new in (("claimed", claimed), ("predicted", predicted), ("weight", weight)):
            setattr(self, name, FADING * getattr(self, name) + new)

    @property
    def exponent(self) -> float:
        """The exponent that explains the claims."""
        if not self.weight:
            return 1.0
        missed = [1 - min(max(own / self.weight, 0.005), 0.995) for own in (self.claimed, self.predicted)]
        return math.log(missed[0]) / math.log(missed[1])


def texts(pair: Pair, temperature: float, options: argparse.Namespace) -> list[list[Node]]:
    """The nodes of every text."""
    prompts = tokens_of(pair, PROMPTS)[: options.limit]
    found: list[list[Node]] = []
    for seed, prompt in enumerate(tqdm(prompts * options.seeds, desc=f"T = {temperature:g}", leave=False)):
        heard = PlanAlone()
        with patch.object(auto, "Ease", lambda heard=heard: heard):
            md.generate(
                pair.target,
                pair.draft,
                [prompt],
                max_new_tokens=options.new_tokens,
                temperature=temperature,
                eos_token_id=[],
                generator=torch.Generator().manual_seed(seed),
                measure=False,
            )
        found.append(heard.nodes)
    return found


def lost(believer: type[Believer], found: list[list[Node]]) -> float:
    """Nats a node, by weight."""
    total = whole = 0.0
    for nodes in found:
        belief = believer()
        for claimed, predicted, weight in nodes:
            likely = float(chance(predicted / weight, weight, belief.exponent))
            total -= claimed * math.log(likely) + (1 - claimed) * math.log1p(-likely)
            whole += weight
            belief.add(claimed, predicted, weight)
    return total / whole


def main() -> None:
    """A table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=24, help="only the first prompts")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=96)
    options = parser.parse_args()
    pair, table = load_pair(), Table("T", "nodes", "plan alone", "fading mean", "belief", title="nats lost a node")
    for temperature in (0.0, 0.7, 1.0):
        found = texts(pair, temperature, options)
        losses = [lost(believer, found) for believer in (PlanAlone, FadingMean, Ease)]
        table.add_row(f"{temperature:g}", str(sum(map(len, found))), *(f"{loss:.4f}" for loss in losses))
    Console().print(table)


if __name__ == "__main__":
    main()
