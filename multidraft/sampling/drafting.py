"""From lines of the draft model's logits to sparse laws, each of which is told as it is drawn from."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.sampling.from_logits import alike, distributions
from multidraft.sampling.gate import Faults, Lines, RowFault, in_full, problem_of
from multidraft.sampling.processors import Prefixes, checked
from multidraft.sampling.settings import Sampling
from multidraft.verification.loops import compiled, lines, paired

DRAFT = "the draft model"
WHOLE, SUPPORT = 512, 2048  # a vocabulary up to the first is taken whole; of a larger one, so many tokens are drafted
TAIL = 1e-3  # of the law at most is left out with tokens that are hardly ever drafted
COARSE = 8.0  # the temperature at which the most likely tokens are looked for that a law at temperature 0 ranks
STEPS, BINS = 8, 256  # of a logarithm's unit, and how many of them: what lies below has no weight
Columns = Float[Tensor, "lines columns"]
Ids = Int[Tensor, "*lines columns"] | None  # the token of every column
Places = Int[np.ndarray, " k"]
Weights = Float[np.ndarray, " k"]
Found = list[tuple[np.ndarray, np.ndarray]]  # by line some columns, and their weights


class DraftLaw(NamedTuple):
    """Tokens in ascending order (at temperature 0 from the likeliest on), and their probabilities in float64."""

    ids: Places
    probabilities: Weights


NOTHING, NONE = DraftLaw(np.zeros(1, np.int64), np.ones(1)), (np.zeros(0, np.int64), np.zeros(0))


def draft_laws(
    logits: Columns,
    settings: Sequence[Sampling],
    prefixes: Prefixes | None = None,
    *,
    drafts: int,
    vocabulary: int,
    ids: Ids = None,
    support: int | None = None,
) -> tuple[list[DraftLaw], Faults]:
    """The laws that drafts are drawn from, in float64 on the CPU, and the faults of lines that have none (token 0).

    At most `support` tokens have a probability. Left out, it is the whole of a small vocabulary, and as many of a large
    one as hold all but a thin tail. At temperature 0 the law ranks the `drafts` most likely tokens. Column c is token
    `ids[c]`, or c; columns from `vocabulary` on are none of the target's tokens. Any draft law is exact: a processor
    that fails on the draft model's scores, or leaves none of them, is passed over.

    >>> draft_laws(torch.tensor([[0.0, 2.0, 2.0]]), [Sampling()], drafts=1, vocabulary=3, support=2)[0]
    [DraftLaw(ids=array([1, 2]), probabilities=array([0.5, 0.5]))]
    """
    logits = logits if ids is not None else logits[:, :vocabulary]
    count = logits.shape[0]
    laws, faults = [NOTHING] * count, Faults()
    if ids is not None and ids.ndim > 1:
        faults = strange_ids(logits, ids, vocabulary)
    for own, places in alike([own.for_draft or own for own in settings]).items():
        columns = ids if ids is None or ids.ndim == 1 else ids[places]
        mine = prefixes and [prefixes[line] for line in places]
        some = logits if len(places) == count else logits[places]
        for line, law in zip(places, weighed(some, own, mine, drafts, columns, vocabulary, support), strict=True):
            if not len(law.ids):
                table = ids if ids is None or ids.ndim == 1 else ids[line]
                faults[line] = RowFault(DRAFT, str(problem_of(logits[line], table)))
            elif line not in faults:
                laws[line] = law
    return laws, faults


def strange_ids(logits: Columns, ids: Int[Tensor, "lines columns"], vocabulary: int) -> Faults:
    """The faults of lines that score a token twice, or one that is none of the target's; empty columns may name any."""
    scored, tokens = (logits > -torch.inf).cpu().numpy(), ids.cpu().numpy()  # whose calls cost a fraction
    outside = scored & ((tokens < 0) | (tokens >= vocabulary))
    ordered = np.sort(np.where(scored, tokens, -1 - np.arange(tokens.shape[-1])), -1)
    twice = ordered[:, 1:] == ordered[:, :-1]
    faults = Faults()
    for line in np.flatnonzero(outside.any(-1) | twice.any(-1)).tolist():
        strange, doubled = tokens[line][outside[line]].tolist(), ordered[line, 1:][twice[line]].tolist()
        beyond = f"scores token {strange[0]}, and the target has 0 to {vocabulary - 1}" if strange else ""
        faults[line] = RowFault(DRAFT, beyond or f"scores token {doubled[0]} twice")
    return faults


def weighed(
    logits: Columns,
    own: Sampling,
    prefixes: Prefixes | None,
    drafts: int,
    ids: Ids,
    vocabulary: int,
    support: int | None,
) -> list[DraftLaw]:
    """The laws of lines with the same settings: without any token where a line makes no law."""
    if own.before is not None or (own.after is not None and own.temperature > 0):
        logits, ids = spread(logits, ids, vocabulary), None
        logits, own = processed(logits, own, prefixes)
    logits, columns = in_full(logits), logits.shape[-1]
    greedy, large = own.temperature == 0, columns > WHOLE
    most = min(drafts if greedy else own.top_k or columns, support or (SUPPORT if large else columns), columns)
    top_p = own.top_p if not greedy and own.top_p is not None and own.top_p < 1 else None
    wholes = totals(logits, own.temperature) if top_p and own.top_k is None else None
    if not logits.is_cpu and most < columns:
        logits, ids = brought_over(logits, ids, most)
    if greedy and most == 1:
        found = best(logits)
    elif greedy:
        found = [ranked(*line) for line in likeliest(logits, COARSE, most, 0.0)]
    else:
        found = likeliest(logits, float(own.temperature), most, TAIL if large else 0.0)
        if top_p is not None:
            found = nucleus(found, top_p, wholes)
    if ids is None:
        return [law_of(*pair) for pair in found]
    tables = ids.cpu().numpy()
    return [law_of(*pair, tables if ids.ndim == 1 else tables[line]) for line, pair in enumerate(found)]


def brought_over(logits: Columns, ids: Ids, most: int) -> tuple[Float[Tensor, "lines most"], Int[Tensor, "lines most"]]:
    """The most likely columns in ascending order: the only ones that a GPU has to hand over."""
    columns = logits.topk(most, -1).indices.sort(-1).values
    return logits.gather(-1, columns), columns if ids is None else ids.expand(logits.shape).gather(-1, columns)


def law_of(places: Places, weights: Weights, table: Int[np.ndarray, " columns"] | None = None) -> DraftLaw:
    """The law of columns with these weights, by their tokens."""
    return DraftLaw(places if table is None else table[places], weights / weights.sum() if len(weights) else weights)


def totals(logits: Columns, temperature: float | int) -> list[float]:
    """The weights of every line's columns in sum, where the largest is one: of all, wherever they are."""
    best = logits.amax(-1, keepdim=True)
    return ((logits - best) / temperature).exp().sum(-1, dtype=torch.float64).tolist()


def nucleus(found: Found, top_p: float | int, wholes: list[float] | None) -> Found:
    """Of every line's likeliest columns those that hold top-p of the whole; left out, of what top-k has left of it."""
    wholes = [float(weights.sum()) for _, weights in found] if wholes is None else wholes
    kept: Found = []
    for (places, weights), whole in zip(found, wholes, strict=True):
        order = np.argsort(-weights, kind="stable")
        few = np.sort(order[np.cumsum(weights[order]) - weights[order] < top_p * whole])
        kept.append((places[few], weights[few]))
    return kept


def best(scores: Columns) -> Found:
    """Every line's most likely column, the lower one of equals; none where its scores make no law."""
    values = scores.cpu().numpy()
    columns = values.argmax(-1)
    largest = values[np.arange(len(values)), columns]
    return [(columns[i : i + 1], np.ones(1)) if np.isfinite(largest[i]) else NONE for i in range(len(values))]


def ranked(places: Places, weights: Weights) -> tuple[Places, Weights]:
    """Weights at temperature 0: each vanishes beside the one before it, and the order is still told."""
    order, count = np.argsort(-weights, kind="stable"), len(places)
    return places[order], falling(max(count, 1), torch.float64, torch.device("cpu")).numpy()[:count]


@lru_cache(64)
def falling(count: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, " count"]:
    """Weights that sum up to one, each vanishing beside the one before it."""
    weights = torch.logspace(0, (1 - count) * min(30, 120 // count), count, base=2, dtype=dtype, device=device)
    return weights / weights.sum()


def spread(logits: Columns, ids: Ids, vocabulary: int) -> Lines:
    """Scores for the whole vocabulary, as processors expect them: minus infinity where there is no column."""
    if ids is None:
        return torch.nn.functional.pad(logits, (0, vocabulary - logits.shape[-1]), value=-torch.inf)
    whole, known = logits.new_full((len(logits), vocabulary), -torch.inf), ids.expand(logits.shape)
    return whole.scatter_reduce_(-1, known.clamp(0, vocabulary - 1), logits, "amax")  # empty columns name any token


def processed(logits: Lines, own: Sampling, prefixes: Prefixes | None) -> tuple[Lines, Sampling]:
    """The processed scores and what is left to be done, each processor passed over where it leaves no law."""
    logits = passed_over(in_full(logits), *checked(own.before, logits, prefixes))
    if own.after is None or own.temperature == 0:
        return logits, replace(own, before=None, after=None)
    laws, bad = distributions(logits, own.temperature, own.top_k, own.top_p)
    logs = laws.log()
    logs[bad] = logits[bad]
    return passed_over(logs, *checked(own.after, logs, prefixes)), Sampling()


def passed_over(before: Lines, after: Lines, faults: Faults) -> Lines:
    """The lines after processing; those before where it has failed."""
    fine = after.amax(-1).isfinite()
    fine[[*faults]] = False
    return torch.where(fine[:, None], after, before)


# The likeliest columns: how far scores are below the largest is counted in steps, which tells where to cut unsorted


def likeliest_loops(scores: Columns, temperature: float, most: int, tail: float) -> Found:
    """As `likeliest`, by compiled loops."""
    values = lines(scores)
    largest, scale = values.max(-1), values.dtype.type(STEPS / temperature)
    places, depths, counts = likeliest_lines(values, largest, scale, most, tail)
    found = zip(places, depths, counts.tolist(), strict=True)
    return [(columns[:count], np.exp(own[:count])) for columns, own, count in found]  # NumPy's has vector instructions


@paired(likeliest_loops)
def likeliest(scores: Columns, temperature: float, most: int, tail: float) -> Found:
    """Every line's most likely columns in ascending order, with their weights: `most` of them, or all but a `tail`.

    The largest weight is one; of equal scores the lower column comes first. A line that makes no law has no columns.
    """
    values = scores.cpu().numpy()
    return [likeliest_of(line, values.dtype.type(STEPS / temperature), most, tail) for line in values]


def likeliest_of(
    line: Float[np.ndarray, " columns"], scale: np.floating, most: int, tail: float
) -> tuple[Places, Weights]:
    """The same of one line."""
    largest = line.max()
    if not np.isfinite(largest):
        return NONE
    depth = (largest - line) * scale
    steps = np.minimum(depth, BINS).astype(np.int64)
    last, room = cut(np.bincount(steps, minlength=BINS)[:BINS], most, tail)
    edge = np.flatnonzero(steps == last)
    edge = edge[np.argsort(-line[edge], kind="stable")][:room]
    places = np.sort(np.concatenate([np.flatnonzero(steps < last), edge]))
    return places, np.exp(-depth[places].astype(np.float64) / STEPS)


@compiled
def likeliest_lines(values, largest, scale, most, tail):
    """Every line's likeliest columns, the logarithms of their weights, and how many they are."""
    size = min(most, values.shape[1])
    places, logs = np.empty((len(values), size), np.int64), np.empty((len(values), size))
    found, steps = np.zeros(len(values), np.int64), np.empty(values.shape[1], np.int16)
    for row in range(len(values)):
        if np.isfinite(largest[row]):
            steps_of(steps, values[row], largest[row], scale)
            counts = counts_of(steps)
            last, room = cut(counts, most, tail)
            lowest, ties = edge(values[row], steps, last, room, counts[last])
            found[row] = collect(places[row], values[row], steps, last, lowest, ties)
            for place in range(found[row]):
                depth = (largest[row] - values[row, places[row, place]]) * scale
                logs[row, place] = -np.float64(depth) / STEPS
    return places, logs, found


@compiled
def steps_of(steps, values, largest, scale):
    """How many steps each score is below the largest; the last number stands for more, too."""
    for column in range(values.size):  # which is compiled into vector instructions
        steps[column] = np.int16(min((largest - values[column]) * scale, values.dtype.type(BINS)))


@compiled
def counts_of(steps):
    """How many scores there are in every step; four tables, because a count that is written can be read late."""
    counts = np.zeros((4, BINS + 1), np.int64)
    for column in range(steps.size):
        counts[column & 3, steps[column]] += 1
    return counts.sum(0)[:BINS]


@compiled
def cut(counts, most, tail):
    """The last step that counts, and how many columns of it there is room for."""
    spare, last, taken = 0.0, counts.size - 1, 0
    for step in range(counts.size):  # its columns weigh less than its upper edge, not than its lower
        spare += tail * counts[step] * math.exp(-(step + 1) / STEPS)
    while last > 0 and counts[last] * math.exp(-last / STEPS) <= spare:
        spare -= counts[last] * math.exp(-last / STEPS)
        last -= 1
    for step in range(last):
        if taken + counts[step] >= most:
            return step, most - taken
        taken += counts[step]
    return last, min(most - taken, counts[last])


@compiled
def edge(values, steps, last, room, there):
    """The lowest score that is taken of the last step, and how many of those that equal it."""
    if room == there:
        return -np.inf, 0
    inside, found = np.empty(there), 0
    for column in range(values.size):
        if steps[column] == last:
            inside[found] = values[column]
            found += 1
    inside.sort()
    lowest = inside[there - room]
    return lowest, room - (inside > lowest).sum()


@compiled
def collect(places, values, steps, last, lowest, ties):
    """Fill in the columns above the last step, and of those in it what is taken; how many they are."""
    found = 0
    for column in range(values.size):
        if steps[column] <= last:
            equal = steps[column] == last and values[column] == lowest
            if steps[column] < last or values[column] > lowest or (equal and ties > 0):
                places[found] = column
                found, ties = found + 1, ties - equal
    return found
