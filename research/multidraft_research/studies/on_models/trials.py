"""What a policy gives after a text, without a coin: a tree is drawn and scored, and nothing of it is kept."""

from typing import NamedTuple

import torch

from multidraft.autotune.costs import Costs
from multidraft.decoding.draft import draft_tree
from multidraft.decoding.endings import expected_tokens
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import score


class Trial(NamedTuple):
    """One drawn tree: tokens on the average over coins, and what its costs depend on."""

    tokens: float
    reads: tuple[int, ...]  # nodes at which the draft model has read, level by level
    nodes: int

    def seconds(self, costs: Costs) -> float | int:
        """What the step takes."""
        return costs.seconds(self.reads, self.nodes)


@torch.inference_mode()
def tried(state: State, config: DecodeConfig) -> Trial:
    """A step of one row that is not made: both models are as they were, but for the random numbers that were taken."""
    drafted = draft_tree(state, config)
    [tokens] = expected_tokens(score(state, drafted), config)
    for model in state.models:
        model.keep([[]])
    [tree] = drafted.trees
    reads = [sum(node in tree.laws for node in level) for level in tree.levels]
    return Trial(tokens, tuple(count for count in reads if count), len(tree) - 1)
