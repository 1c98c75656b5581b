"""Log-probabilities of emitted tokens: looked up in the target pass that scored them, when asked for."""

from dataclasses import dataclass

import torch

from multidraft.decoding.nodes import Nodes
from multidraft.decoding.walks import Ending


@dataclass(frozen=True)
class Logprob:
    """A token's log-probability under the distribution that it was sampled from, and the most likely tokens there."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


def look_up(nodes: Nodes, row: int, ending: Ending, last: int, top: int) -> list[Logprob]:
    """For the accepted tokens of one row and its last one, each from the node above it."""
    above = (0, *ending.path)
    tokens = [*(nodes.rows[row].token[slot] for slot in ending.path), last]
    rows = [row] * len(above)
    logs = nodes.sampling.of_rows(rows).log_probabilities(*nodes.scored(rows, above))
    chosen = logs.gather(-1, torch.tensor(tokens, device=logs.device)[:, None])[:, 0].tolist()
    best = logs.topk(min(top, logs.shape[-1]), -1)
    pairs = [tuple(zip(*both, strict=True)) for both in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [Logprob(*both) for both in zip(chosen, pairs, strict=True)]
