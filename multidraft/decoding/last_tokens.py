"""The one more token that every step ends with."""

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.walks import Ending
from multidraft.machine.device import waits
from multidraft.verification.distributions import pick_each


def draw_last(tree: ScoredTree, endings: list[Ending], numbers: list[float]) -> list[int]:
    """Those of all rows, each with a number in [0, 1); where a look is a wait, all rows are looked at together."""
    weights = [last_weights(tree, row, ending) for row, ending in enumerate(endings)]
    if not waits(weights[0]):
        return [pick_each(own[None], [number])[0] for own, number in zip(weights, numbers, strict=True)]
    return pick_each(torch.stack([own.to(torch.float64) for own in weights]), numbers)


def last_weights(tree: ScoredTree, row: int, ending: Ending) -> Float[Tensor, " vocabulary"]:
    """What it is drawn from: the residual where the walk stopped, or for a bonus the target at the leaf."""
    if ending.weights is not None:
        return ending.weights()
    return tree.one(row, ending.leaf)
