"""What a policy gives after a text, without a coin: a tree is drawn and scored, and nothing of it is kept."""

from typing import NamedTuple

import torch

from multidraft.auditing.endings import expected_tokens
from multidraft.autotune.estimates import Work
from multidraft.decoding.draft import draft_tree
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import score


class Trial(NamedTuple):
    """One drawn tree: tokens on the average over coins, and what its costs depend on."""

    tokens: float
    work: Work


@torch.inference_mode()
def tried(state: State, config: DecodeConfig) -> Trial:
    """A step of one row that is not made: both models are as they were, but for the random numbers that were taken."""
    drafted = draft_tree(state, config)
    [tokens] = expected_tokens(score(state, drafted), config)
    for model in state.models:
        model.keep([[]])
    [tree] = drafted.trees
    levels = {tree.depths[node] for node in tree.laws}
    return Trial(tokens, Work(len(levels), len(tree.laws), len(tree) - 1))
