"""From lines of the draft model's logits to sparse laws, each of which is told as it is drawn from."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.sampling.from_logits import distributions, falling, largest
from multidraft.sampling.gate import Faults, RowFault, in_full, problem_of, softmax
from multidraft.sampling.processors import Prefixes, checked
from multidraft.sampling.sampling import alike
from multidraft.sampling.settings import Sampling

DRAFT = "the draft model"
WHOLE, SUPPORT = 4096, 2048  # a vocabulary up to the first is taken whole; of a larger one, so many tokens are drafted
TAIL = 1e-3  # of the law at most may be left out with tokens that are hardly ever drafted
DraftLaw = tuple[Int[Tensor, " k"], Float[Tensor, " k"]]  # tokens, and their probabilities in float64
NOTHING: DraftLaw = torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.float64)


def draft_laws(
    logits: Float[Tensor, "lines columns"],
    settings: Sequence[Sampling],
    prefixes: Prefixes | None = None,
    *,
    drafts: int,
    vocabulary: int,
    ids: Int[Tensor, "*lines columns"] | None = None,
    support: int | None = None,
) -> tuple[list[DraftLaw], Faults]:
    """The laws that drafts are drawn from, in float64 on the CPU.

    At most `support` tokens have a probability, and these sum to one. Left out, it is the whole of a small vocabulary,
    and the most likely tokens of a large one, these first; the tail that is cut off holds little. At temperature 0 the
    law ranks the `drafts` most likely tokens. Column c is token `ids[c]`, or c; columns from `vocabulary` on are none
    of the target's tokens.

    Any draft law is exact. So a processor that fails on the draft model's scores, or leaves none of them, is passed
    over there; only the model's own scores are a fault (and the law there is token 0).

    >>> draft_laws(torch.tensor([[0.0, 2.0, 2.0]]), [Sampling()], drafts=1, vocabulary=3, support=2)[0]
    [(tensor([1, 2]), tensor([0.5000, 0.5000], dtype=torch.float64))]
    """
    logits = logits if ids is not None else logits[:, :vocabulary]
    laws, faults = [NOTHING] * len(logits), Faults()
    for own, lines in alike([own.for_draft or own for own in settings]).items():
        columns = ids if ids is None or ids.ndim == 1 else ids[lines]
        mine = prefixes and [prefixes[line] for line in lines]
        some = logits if len(lines) == len(logits) else logits[lines]
        tokens, weights = weighed(some, own, mine, drafts, columns, vocabulary, support)
        for line, law in zip(lines, zip(tokens, weights, strict=True), strict=True):
            if np.isnan(law[1][0]):
                faults[line] = RowFault(DRAFT, str(problem_of(logits[line])))
            else:
                laws[line] = law_of(*law, TAIL if own.temperature > 0 else 0.0)
    return laws, faults


def law_of(tokens: Int[np.ndarray, " count"], weights: Float[np.ndarray, " count"], least: float) -> DraftLaw:
    """The law of tokens with these weights, without those that have none, or less than `least` of the mean."""
    kept = weights > least * weights.mean()
    tokens, weights = tokens[kept], weights[kept]
    return torch.from_numpy(tokens), torch.from_numpy(weights / weights.sum())


def weighed(
    logits: Float[Tensor, "lines columns"],
    own: Sampling,
    prefixes: Prefixes | None,
    drafts: int,
    ids: Int[Tensor, "*lines columns"] | None,
    vocabulary: int,
    support: int | None,
) -> tuple[Int[np.ndarray, "lines count"], Float[np.ndarray, "lines count"]]:
    """The best tokens of lines with the same settings, and their weights: NaN first where a line makes no law."""
    if own.before is not None or (own.after is not None and own.temperature > 0):
        logits, ids = spread(logits, ids, vocabulary), None
        logits, own = processed(logits, own, prefixes)
    columns = logits.shape[-1]
    most = support or (columns if columns <= WHOLE else SUPPORT)
    count = min(drafts if own.temperature == 0 else min(own.top_k or most, most), columns)
    if count == columns and own.temperature > 0 and (own.top_p or 1) >= 1:
        return whole(logits, own.temperature, ids)
    tokens, scores = largest(in_full(logits), count)
    weights = ranked(scores) if own.temperature == 0 else tempered(scores, own, logits)
    weights[~np.isfinite(scores[:, 0]), 0] = np.nan
    return named(tokens, ids), weights


def whole(
    logits: Float[Tensor, "lines columns"], temperature: float | int, ids: Int[Tensor, "*lines columns"] | None
) -> tuple[Int[np.ndarray, "lines columns"], Float[np.ndarray, "lines columns"]]:
    """All tokens, in no order, and their weights."""
    laws, bad = softmax(logits, temperature)
    weights = laws.cpu().double().numpy()
    weights[bad, 0] = np.nan
    return named(np.broadcast_to(np.arange(logits.shape[-1]), weights.shape), ids), weights


def named(
    columns: Int[np.ndarray, "lines count"], ids: Int[Tensor, "*lines columns"] | None
) -> Int[np.ndarray, "lines count"]:
    """The tokens of columns."""
    if ids is None:
        return columns
    table = ids.cpu().numpy()
    return table[columns] if ids.ndim == 1 else np.take_along_axis(table, columns, -1)


def ranked(scores: Float[np.ndarray, "lines count"]) -> Float[np.ndarray, "lines count"]:
    """Weights at temperature 0: each vanishes beside the one before it, and the order is still told."""
    return np.isfinite(scores) * falling(scores.shape[1], torch.float64, torch.device("cpu")).numpy()


def tempered(
    scores: Float[np.ndarray, "lines count"], own: Sampling, logits: Float[Tensor, "lines columns"]
) -> Float[np.ndarray, "lines count"]:
    """The exponentials of the best scores at a temperature, up to where they hold top-p of the sum."""
    with np.errstate(invalid="ignore"):  # lines that make no law
        weights = np.exp((scores.astype(np.float64) - scores[:, :1]) / own.temperature)
    if own.top_p is None or own.top_p >= 1:
        return weights
    whole = weights.sum(-1)
    if own.top_k is None:
        best = torch.from_numpy(scores[:, :1]).to(logits.device)
        whole = ((logits - best) / own.temperature).exp().sum(-1, dtype=torch.float64).cpu().numpy()
    return weights * (weights.cumsum(-1) - weights < own.top_p * whole[:, None])


def spread(
    logits: Float[Tensor, "lines columns"], ids: Int[Tensor, "*lines columns"] | None, vocabulary: int
) -> Float[Tensor, "lines vocabulary"]:
    """Scores for the whole vocabulary, as processors expect them: minus infinity where there is no column."""
    if ids is None:
        return torch.nn.functional.pad(logits, (0, vocabulary - logits.shape[-1]), value=-torch.inf)
    whole = logits.new_full((len(logits), vocabulary), -torch.inf)
    return whole.scatter_reduce_(-1, ids.expand(logits.shape), logits, "amax")  # empty columns may share an id


def processed(
    logits: Float[Tensor, "lines vocabulary"], own: Sampling, prefixes: Prefixes | None
) -> tuple[Float[Tensor, "lines vocabulary"], Sampling]:
    """The processed scores and what is left to be done, each processor passed over where it leaves no law."""
    logits = passed_over(in_full(logits), *checked(own.before, logits, prefixes))
    if own.after is None or own.temperature == 0:
        return logits, replace(own, before=None, after=None)
    laws, bad = distributions(logits, own.temperature, own.top_k, own.top_p)
    logs = laws.log()
    logs[bad] = logits[bad]
    return passed_over(logs, *checked(own.after, logs, prefixes)), Sampling()


def passed_over(
    before: Float[Tensor, "lines vocabulary"], after: Float[Tensor, "lines vocabulary"], faults: Faults
) -> Float[Tensor, "lines vocabulary"]:
    """The lines after processing; those before where it has failed."""
    fine = after.amax(-1).isfinite()
    fine[[*faults]] = False
    return torch.where(fine[:, None], after, before)
