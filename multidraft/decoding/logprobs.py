"""Log-probabilities of emitted tokens: looked up in the target pass that scored them, when asked for."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.walks import Ending


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability under the distribution that it was sampled from, and the most likely tokens there."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def look_up(tree: ScoredTree, row: int, ending: Ending, last: int, top: int) -> list[Logprob]:
    """For the accepted tokens of one row and its last one, each from the node above it."""
    above = (0, *ending.path)
    tokens = [*(tree.rows[row].token[slot] for slot in ending.path), last]
    rows = [row] * len(above)
    logs = tree.sampling.of_rows(rows).log_probabilities(*tree.scored(rows, above))
    return listed(logs, tokens, top)


def listed(logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int) -> list[Logprob]:
    """Each token's own, and the most likely tokens', from one line of logarithms a token."""
    chosen = logs.gather(-1, torch.tensor(tokens, dtype=torch.int64, device=logs.device)[:, None])[:, 0].tolist()
    best = logs.topk(min(top, logs.shape[-1]), -1)
    pairs = [tuple(zip(*both, strict=True)) for both in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [Logprob(*both) for both in zip(chosen, pairs, strict=True)]
