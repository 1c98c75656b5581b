"""Log-probabilities of emitted tokens: looked up in the target pass that scored them, when asked for."""

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.record import Logprob
from multidraft.decoding.state import Scored, prefixes_of
from multidraft.sampling.sampling import log_laws


def look_up(scored: Scored, row: int, path: list[int], tokens: list[int], top: int) -> list[Logprob]:
    """For the accepted tokens of one row and its last one, each from the node above it."""
    places = [(row, node) for node in (0, *path)]
    settings = [scored.rows[row].sampling] * len(places)
    logs = log_laws(scored.lines(places), settings, prefixes_of(scored.rows, scored.trees, places))
    return listed(logs, tokens, top)


def listed(logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int) -> list[Logprob]:
    """Every token's logarithm in its line, and the largest of the line."""
    chosen = logs.gather(-1, torch.tensor(tokens, device=logs.device)[:, None])[:, 0].tolist()
    best = logs.topk(min(top, logs.shape[-1]), -1)
    pairs = [tuple(zip(*both, strict=True)) for both in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [Logprob(*both) for both in zip(chosen, pairs, strict=True)]
