"""What a shape gives after a text, without a coin: a tree is drawn and scored, and nothing of it is kept."""

from typing import NamedTuple

import torch

from multidraft.autotune.costs import Costs
from multidraft.decoding.draft import grow
from multidraft.decoding.endings import expected_tokens
from multidraft.decoding.state import Plan, State, release, take_over
from multidraft.decoding.step import score


class Trial(NamedTuple):
    """One drawn tree: tokens on the average over coins, and what its costs depend on."""

    tokens: float
    reads: tuple[int, ...]  # nodes at which the draft model has read, level by level
    nodes: int
    draws: int
    forks: int

    def seconds(self, costs: Costs, looks: bool) -> float:
        """What the step takes."""
        return costs.seconds(self.reads, self.nodes, self.draws, self.forks, looks)


@torch.inference_mode()
def tried(state: State, plan: Plan) -> Trial:
    """A step of one row that is not made: the state is as good as before."""
    take_over(state)
    try:
        drafts = grow(state, plan)
        tree = score(state, drafts)
        [tokens] = expected_tokens(tree, plan)
    finally:
        release(state)
    reads = tuple(level.shape[1] for level in drafts.logits)
    return Trial(tokens, reads, len(tree.rows[0].slots) - 1, drafts.trees[0].groups, drafts.trees[0].forks)
