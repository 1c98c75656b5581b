"""What compiled loops compute, by tensor and array operations."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.sampling.drafting import NO_COLUMNS, NUM_BINS, STEPS_PER_NAT, Places, Weights, cutoff
from multidraft.verification.distributions import pick
from multidraft.verification.law import is_duplicate
from multidraft.verification.laws import Anchored
from multidraft.verification.precision import Rows, Tuples


def draw_anchored(draft: Rows, uniform: Float[Tensor, "*batch width"], law: Anchored) -> Tuples:
    """The tuple of the law where something is drafted."""
    n, anchors = law.drafts, law.deterministic_tokens(draft)
    draws = pick(law.without_deterministic(draft, anchors), uniform[..., n : 2 * n])
    free = (anchors < 0).sum(-1, keepdim=True)
    draws = draws.masked_fill(torch.arange(n, device=draft.device) >= free, -1)
    drafted = torch.cat([anchors, draws], -1)
    repeats = int(is_duplicate(draws).sum(-1).max()) if law.top_up and draws.numel() else 0
    for j in range(2 * n, 2 * n + repeats):
        drafted = torch.cat([drafted, pick(law.conditional(draft, drafted), uniform[..., j : j + 1])], -1)
    return torch.nn.functional.pad(drafted, (0, law.width - drafted.shape[-1]), value=-1)


def likeliest_of(
    line: Float[np.ndarray, " columns"], scale: np.floating, max_columns: int, tail: float
) -> tuple[Places, Weights]:
    """The likeliest columns of one line, and their weights."""
    largest = line.max()
    if not np.isfinite(largest):
        return NO_COLUMNS
    depth = (largest - line) * scale
    step_of = np.minimum(depth, NUM_BINS).astype(np.int64)
    last, room = cutoff(np.bincount(step_of, minlength=NUM_BINS)[:NUM_BINS], max_columns, tail)
    candidates = np.flatnonzero(step_of == last)
    candidates = candidates[np.argsort(-line[candidates], kind="stable")][:room]
    columns = np.sort(np.concatenate([np.flatnonzero(step_of < last), candidates]))
    return columns, np.exp(-depth[columns].astype(np.float64) / STEPS_PER_NAT)
