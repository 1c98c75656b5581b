"""What a policy gives after a text, without a coin: a tree is drawn and scored, and nothing of it is kept."""

from functools import partial
from typing import NamedTuple

import torch

from multidraft.auditing.enumeration import all_walk_results
from multidraft.autotune.estimates import Work
from multidraft.decoding.draft import draft_tree
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.step import score
from multidraft.decoding.targets import Targets
from multidraft.decoding.walks import deferred


class Trial(NamedTuple):
    """One drawn tree: tokens on the average over coins, and what its costs depend on."""

    tokens: float
    work: Work


@torch.inference_mode()
def try_step(state: State, config: DecodeConfig, policy: TreePolicy) -> Trial:
    """A step of one row that is not made: both models are as they were, but for the random numbers that were taken."""
    drafted = draft_tree(state, config, policy)
    [tokens] = expected_tokens(score(state, drafted), config)
    for model in state.models:
        model.commit([[]])
    [tree] = drafted.trees
    levels = {tree.depths[node] for node in tree.laws}
    return Trial(tokens, Work(len(levels), len(tree.laws), len(tree) - 1))


def expected_tokens(targets: Targets, config: DecodeConfig) -> list[float]:
    """By row the tokens that a step emits on the average over coins, on the tree that was drawn.

    The deferred walk is taken without its coin for small claims: with it, the ways to go double at every such child.
    """
    walk = partial(deferred, smallest=0.0) if config.walk == "deferred" else config.walk
    tokens = [1.0] * len(targets.trees)
    for row, chance, walk_result in all_walk_results(targets, config, walk):
        tokens[row] += chance * len(walk_result.path)
    return tokens
