"""From lines of the draft model's logits to the sparse distributions that drafts are drawn from."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.sampling.from_logits import distributions
from multidraft.sampling.processors import Prefixes, process_lines
from multidraft.sampling.row_faults import Faults, Lines, RowFault, distribution_error, upcast
from multidraft.sampling.settings import Sampling
from multidraft.sampling.truncation import nucleus_of
from multidraft.transfer import download, upload
from multidraft.verification.loops import compile_loop, lines

DRAFT = "the draft model"
MAX_FULL_VOCABULARY = 512  # up to this size every token can be drafted
MAX_SUPPORT = 2048  # tokens of a larger vocabulary that can be drafted
MAX_TAIL = 1e-3  # probability that the tokens left out hold at most
RANKING_TEMPERATURE = 8.0  # at which the most likely tokens are found that temperature 0 then ranks
STEPS_PER_NAT, NUM_BINS = 8, 256  # scores are binned by their distance from the largest; lower ones have no weight
Columns = Float[Tensor, "lines columns"]
ColumnIds = Int[Tensor, "*lines columns"] | None  # the token id of every column
IdTable = Int[np.ndarray, " columns"] | None  # the same on the CPU
Places = Int[np.ndarray, " k"]
Weights = Float[np.ndarray, " k"]
WeightedColumns = list[tuple[np.ndarray, np.ndarray]]  # by line: columns, and their weights


class DraftDistribution(NamedTuple):
    """Token ids in ascending order (at temperature 0 by falling probability), and their float64 probabilities."""

    ids: Places
    probabilities: Weights


PLACEHOLDER, NO_COLUMNS = DraftDistribution(np.zeros(1, np.int64), np.ones(1)), (np.zeros(0, np.int64), np.zeros(0))


def draft_distributions(
    logits: Columns,
    sampling: Sampling,
    prefixes: Prefixes | None = None,
    *,
    drafts: int,
    vocabulary: int,
    ids: ColumnIds = None,
) -> tuple[list[DraftDistribution], Faults]:
    """The distributions that drafts are drawn from, in float64 on the CPU, and the faults of lines that have none.

    A line with a fault gets token 0. All tokens of a small vocabulary have a probability, and all but a thin tail of a
    large one, at most `MAX_SUPPORT`. At temperature 0 the distribution ranks the `drafts` most likely tokens. Column c
    is token `ids[c]`, or c; columns from `vocabulary` on are no tokens of the target. Lines with ids of their own are
    on the CPU. The output is exact with any draft distribution, so a processor that fails on the draft model's scores
    is skipped.

    >>> draft_distributions(torch.tensor([[2.0, 2.0]]), Sampling(), drafts=1, vocabulary=2)[0]
    [DraftDistribution(ids=array([0, 1]), probabilities=array([0.5, 0.5]))]
    """
    sampling, logits = sampling.for_draft or sampling, logits if ids is not None else logits[:, :vocabulary]
    faults = Faults()
    if ids is not None and ids.ndim > 1:
        if ids.shape[1] == 1 and (certain := certain_distributions(logits, ids, vocabulary)):
            return certain, faults
        faults = faults_of_ids(logits, ids, vocabulary)
    per_line = sparse_distributions(logits, sampling, prefixes, drafts, ids, vocabulary)
    for line, distribution in enumerate(per_line):
        if not len(distribution.ids):
            line_ids = ids if ids is None or ids.ndim == 1 else ids[line]
            faults[line] = RowFault(DRAFT, str(distribution_error(logits[line], line_ids)))
    for line in faults:
        per_line[line] = PLACEHOLDER
    return per_line, faults


def certain_distributions(
    logits: Columns, ids: Int[Tensor, "lines 1"], vocabulary: int
) -> list[DraftDistribution] | None:
    """The distributions of lines with one token each, whatever the settings; None if there is a fault."""
    scores, tokens = lines(upcast(logits)), ids.numpy()[:, 0]
    if not np.isfinite(scores).all() or ((tokens < 0) | (tokens >= vocabulary)).any():
        return None
    return [DraftDistribution(tokens[line : line + 1], np.ones(1)) for line in range(len(tokens))]


def faults_of_ids(logits: Columns, ids: Int[Tensor, "lines columns"], vocabulary: int) -> Faults:
    """The faults of lines that score a token twice, or one that the target lacks; columns of -inf do not count."""
    scored, tokens = (logits > -torch.inf).numpy(), ids.numpy()  # NumPy's calls are much cheaper
    is_outside = scored & ((tokens < 0) | (tokens >= vocabulary))
    ordered = np.sort(np.where(scored, tokens, -1 - np.arange(tokens.shape[-1])), -1)
    is_repeat = ordered[:, 1:] == ordered[:, :-1]
    faults = Faults()
    for line in np.flatnonzero(is_outside.any(-1) | is_repeat.any(-1)).tolist():
        outside_ids, repeated = tokens[line][is_outside[line]].tolist(), ordered[line, 1:][is_repeat[line]].tolist()
        problem = f"scores token {outside_ids[0]}, and the target has 0 to {vocabulary - 1}" if outside_ids else ""
        faults[line] = RowFault(DRAFT, problem or f"scores token {repeated[0]} twice")
    return faults


def sparse_distributions(
    logits: Columns,
    sampling: Sampling,
    prefixes: Prefixes | None,
    drafts: int,
    ids: ColumnIds,
    vocabulary: int,
) -> list[DraftDistribution]:
    """The distributions of lines; one has no tokens if its line makes no distribution."""
    if sampling.before is not None or (sampling.after is not None and sampling.temperature > 0):
        logits, ids = scatter_to_vocabulary(logits, ids, vocabulary), None
        logits, sampling = process(logits, sampling, prefixes)
    logits, size = upcast(logits), logits.shape[-1]
    greedy, is_large = sampling.temperature == 0, size > MAX_FULL_VOCABULARY
    max_columns = min(drafts if greedy else sampling.top_k or size, MAX_SUPPORT if is_large else size, size)
    top_p = sampling.top_p if not greedy and sampling.top_p is not None and sampling.top_p < 1 else None
    whole_weights = total_weights(logits, sampling.temperature) if top_p and sampling.top_k is None else None
    if not logits.is_cpu:
        logits, ids, whole_weights = from_device(logits, ids, max_columns, whole_weights)
    if greedy and max_columns == 1:
        weighted = argmax_columns(logits)
    elif greedy:
        weighted = [rank_weights(*pair) for pair in likeliest(logits, RANKING_TEMPERATURE, max_columns, 0.0)]
    else:
        weighted = likeliest(logits, float(sampling.temperature), max_columns, MAX_TAIL if is_large else 0.0)
        if top_p is not None:
            weighted = nucleus(weighted, top_p, None if whole_weights is None else whole_weights.tolist())
        if min_p := sampling.min_p:
            weighted = [(columns[weights >= min_p], weights[weights >= min_p]) for columns, weights in weighted]
    if ids is None:
        return [distribution_of(*pair) for pair in weighted]
    tables = ids.cpu().numpy()
    return [distribution_of(*pair, tables if ids.ndim == 1 else tables[line]) for line, pair in enumerate(weighted)]


def from_device(
    logits: Columns, ids: ColumnIds, count: int, whole_weights: Float[Tensor, " lines"] | None
) -> tuple[Float[Tensor, "lines k"], Int[Tensor, "*lines k"] | None, Float[Tensor, " lines"] | None]:
    """The `count` most likely columns in ascending order, their ids and the weights: all of it in one copy."""
    weights = logits.new_empty(0) if whole_weights is None else whole_weights
    columns, is_cut = logits.new_empty(0, dtype=torch.int64), count < logits.shape[-1]
    if is_cut:
        columns = logits.topk(count, -1).indices.sort(-1).values
        logits = logits.gather(-1, columns)
    logits, columns, weights = download(logits, columns, weights)
    if is_cut:
        ids = columns if ids is None else ids.cpu()[columns]
    return logits, ids, None if whole_weights is None else weights


def distribution_of(columns: Places, weights: Weights, ids: IdTable = None) -> DraftDistribution:
    """The distribution of columns with these weights, by token id."""
    probabilities = weights / weights.sum() if len(weights) else weights
    return DraftDistribution(columns if ids is None else ids[columns], probabilities)


def total_weights(logits: Columns, temperature: float | int) -> Float[Tensor, " lines"]:
    """Every line's sum of weights over all its columns, where the largest weight is 1."""
    largest = logits.amax(-1, keepdim=True)
    return ((logits - largest) / temperature).exp().sum(-1, dtype=torch.float64)


def nucleus(weighted: WeightedColumns, top_p: float | int, whole_weights: list[float] | None) -> WeightedColumns:
    """The columns of every line that hold top-p of its `whole_weights`, by default the sum of its columns' weights."""
    whole_weights = [float(weights.sum()) for _, weights in weighted] if whole_weights is None else whole_weights
    nuclei: WeightedColumns = []
    for (columns, weights), total in zip(weighted, whole_weights, strict=True):
        inside = np.flatnonzero(nucleus_of(weights, top_p * total)[0]) if len(weights) else slice(0)
        nuclei.append((columns[inside], weights[inside]))
    return nuclei


def argmax_columns(scores: Columns) -> WeightedColumns:
    """Every line's most likely column, the first among equals; none if its scores make no distribution."""
    values = scores.cpu().numpy()
    columns = values.argmax(-1)
    largest = values[np.arange(len(values)), columns]
    finite = np.isfinite(largest)
    return [(columns[i : i + 1], np.ones(1)) if finite[i] else NO_COLUMNS for i in range(len(values))]


def rank_weights(columns: Places, weights: Weights) -> tuple[Places, Weights]:
    """Weights at temperature 0: each is negligible beside the one before it, but keeps the order of the columns."""
    order, count = np.argsort(-weights, kind="stable"), len(columns)
    return columns[order], vanishing_weights(max(count, 1), torch.float64, torch.device("cpu")).numpy()[:count]


@lru_cache(64)
def vanishing_weights(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    """Weights that sum to one, each negligible beside the one before it."""
    weights = torch.logspace(0, (1 - count) * min(30, 120 // count), count, base=2, dtype=dtype, device=device)
    return weights / weights.sum()


def scatter_to_vocabulary(logits: Columns, ids: ColumnIds, vocabulary: int) -> Lines:
    """Scores for the whole vocabulary, as processors expect them; minus infinity for tokens without a column."""
    if ids is None:
        return torch.nn.functional.pad(logits, (0, vocabulary - logits.shape[-1]), value=-torch.inf)
    scores = logits.new_full((len(logits), vocabulary), -torch.inf)
    tokens = upload(ids, logits.device).expand(logits.shape)
    return scores.scatter_reduce_(-1, tokens.clamp(0, vocabulary - 1), logits, "amax")  # -inf columns may have any id


def process(logits: Lines, sampling: Sampling, prefixes: Prefixes | None) -> tuple[Lines, Sampling]:
    """The processed scores and the settings still to apply; a processor is skipped if it leaves no distribution."""
    device = next((prefix.device for prefix in prefixes or () if prefix is not None), logits.device)
    logits = upload(logits, device)  # where processors have their tensors: drafters may be elsewhere
    logits = keep_valid(upcast(logits), *process_lines(sampling.before, logits, prefixes))
    if sampling.after is None or sampling.temperature == 0:
        return logits, replace(sampling, before=None, after=None)
    probs, bad_lines = distributions(logits, *sampling.numbers)
    log_probs = probs.log()
    log_probs[bad_lines] = logits[bad_lines]
    return keep_valid(log_probs, *process_lines(sampling.after, log_probs, prefixes)), Sampling()


def keep_valid(before: Lines, after: Lines, faults: Faults) -> Lines:
    """The lines after processing, or before it where processing failed."""
    is_valid = after.amax(-1).isfinite()
    if faults:
        is_valid[[*faults]] = False
    return torch.where(is_valid[:, None], after, before)


# The likeliest columns: scores are binned by their distance from the largest, which gives the cutoff without sorting


def likeliest(scores: Columns, temperature: float, max_columns: int, tail: float) -> WeightedColumns:
    """Every line's most likely columns in ascending order, with weights: `max_columns` of them, or all but a `tail`.

    The largest weight is one; of equal scores the first columns are taken. A line that makes no distribution has none.
    """
    values = lines(scores.cpu())
    largest, scale = values.max(-1), values.dtype.type(STEPS_PER_NAT / temperature)
    columns, logs, counts = likeliest_lines(values, largest, scale, max_columns, tail)
    results = zip(columns, logs, counts.tolist(), strict=True)
    return [(ids[:count], np.exp(log_weights[:count])) for ids, log_weights, count in results]  # NumPy's exp is faster


@compile_loop
def likeliest_lines(values, largest, scale, max_columns, tail):
    """Every line's likeliest columns, the logarithms of their weights, and their number."""
    size = min(max_columns, values.shape[1])
    columns, logs = np.empty((len(values), size), np.int64), np.empty((len(values), size))
    sizes, steps = np.zeros(len(values), np.int64), np.empty(values.shape[1], np.int16)
    for row in range(len(values)):
        if np.isfinite(largest[row]):
            steps_of(steps, values[row], largest[row], scale)
            counts = counts_of(steps)
            last, room = cutoff(counts, max_columns, tail)
            lowest, num_tied = lowest_taken(values[row], steps, last, room, counts[last])
            sizes[row] = collect(columns[row], values[row], steps, last, lowest, num_tied)
            for index in range(sizes[row]):
                depth = (largest[row] - values[row, columns[row, index]]) * scale
                logs[row, index] = -np.float64(depth) / STEPS_PER_NAT
    return columns, logs, sizes


@compile_loop
def steps_of(steps, values, largest, scale):
    """Fill in how many steps each score is below the largest; the last bin holds all that are lower."""
    for column in range(values.size):  # a loop that is vectorised
        steps[column] = np.int16(min((largest - values[column]) * scale, values.dtype.type(NUM_BINS)))


@compile_loop
def counts_of(steps):
    """The number of scores in every step; four tables avoid waiting for a count that was just written."""
    counts = np.zeros((4, NUM_BINS + 1), np.int64)
    for column in range(steps.size):
        counts[column & 3, steps[column]] += 1
    return counts.sum(0)[:NUM_BINS]


@compile_loop
def cutoff(counts, max_columns, tail):
    """The last step whose columns are taken, and how many of them there is room for."""
    tail_weight, last, taken = 0.0, counts.size - 1, 0
    for step in range(counts.size):  # a column weighs at least the step's lower edge
        tail_weight += tail * counts[step] * math.exp(-(step + 1) / STEPS_PER_NAT)
    while last > 0 and counts[last] * math.exp(-last / STEPS_PER_NAT) <= tail_weight:
        tail_weight -= counts[last] * math.exp(-last / STEPS_PER_NAT)
        last -= 1
    for step in range(last):
        if taken + counts[step] >= max_columns:
            return step, max_columns - taken
        taken += counts[step]
    return last, min(max_columns - taken, counts[last])


@compile_loop
def lowest_taken(values, steps, last, room, size):
    """The lowest score of the last step that is taken, and how many columns with this score are taken."""
    if room == size:
        return -np.inf, 0
    scores, count = np.empty(size), 0
    for column in range(values.size):
        if steps[column] == last:
            scores[count] = values[column]
            count += 1
    scores.sort()
    lowest = scores[size - room]
    return lowest, room - (scores > lowest).sum()


@compile_loop
def collect(columns, values, steps, last, lowest, ties):
    """Fill in the columns above the last step and those taken of it; returns their number."""
    count = 0
    for column in range(values.size):
        if steps[column] <= last:
            is_tied = steps[column] == last and values[column] == lowest
            if steps[column] < last or values[column] > lowest or (is_tied and ties > 0):
                columns[count] = column
                count, ties = count + 1, ties - is_tied
    return count
