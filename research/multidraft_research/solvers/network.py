"""Tuples merged into token sets, as the arrays that the linear program and the flows share.

A rule sees no more in a tuple than the set of its tokens, so all tuples with the same set are one. For i.i.d. drafts
the sets are listed directly: V = 1000 with 2 drafts has half a million sets and a million tuples, V = 100 with 3 drafts
a sixth of a million sets and a million tuples.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import count

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError

MOST_EDGES = 20_000_000  # about 200 bytes each in the flow solver


@dataclass(frozen=True)
class Network:
    """Every drafted token set with its probability: set `s` holds `token[start[s] : start[s + 1]]`, in ascending order.

    Sets come by size, those of one size in lexicographic order. An edge is a pair of a set and one of its tokens. The
    empty set is there where nothing may be drafted.
    """

    start: Int[np.ndarray, " sets_plus_1"]
    token: Int[np.ndarray, " edges"]
    probability: Float[np.ndarray, " sets"]

    @cached_property
    def size(self) -> Int[np.ndarray, " sets"]:
        """How many tokens each set has."""
        return np.diff(self.start)

    @property
    def owner(self) -> Int[np.ndarray, " edges"]:
        """The set that each edge belongs to."""
        return np.repeat(np.arange(len(self.probability)), self.size)

    def leaves(self, inside: Bool[np.ndarray, " vocab"]) -> Bool[np.ndarray, " sets"]:
        """Which sets have a token that is not `inside`."""
        return np.bincount(self.owner[~inside[self.token]], minlength=len(self.probability)) > 0

    def find(self, tokens: Int[np.ndarray, " some"]) -> int:
        """The set that consists of exactly these distinct tokens."""
        first, last = np.searchsorted(self.size, [len(tokens), len(tokens) + 1])
        block = self.token[self.start[first] : self.start[last]].reshape(last - first, len(tokens))
        low, high = 0, len(block)
        for place, token in enumerate(np.sort(tokens)):
            column = block[low:high, place]
            low, high = low + np.searchsorted(column, token), low + np.searchsorted(column, token, side="right")
        if low == high:
            raise AdviceError(f"the tokens {sorted(tokens.tolist())} cannot be drafted by this law from this draft")
        return int(first + low)


def iid_network(draft: Float[np.ndarray, " vocab"], drafts: int, draft_probability: float = 1.0) -> Network:
    """All sets of at most `drafts` tokens with draft mass, and the probability that i.i.d. draws give exactly that set.

    With probability 1 - `draft_probability` nothing is drawn. Raises AdviceError, before anything is listed, when
    there are more than MOST_EDGES pairs of a set and a token, saying which vocabulary would fit.
    """
    support = np.flatnonzero(draft)
    refuse_large(len(support), drafts, MOST_EDGES)
    blocks = [(support[sets], draft_probability * mass) for sets, mass in sets_of_draws(draft[support], drafts)]
    if drafts == 0 or draft_probability < 1:
        nothing = 1.0 if drafts == 0 else 1 - draft_probability
        blocks.insert(0, (np.empty((1, 0), dtype=np.int64), np.array([nothing])))
    sizes = np.repeat([sets.shape[1] for sets, _ in blocks], [len(mass) for _, mass in blocks])
    return Network(
        start=np.concatenate([[0], np.cumsum(sizes)]),
        token=np.concatenate([sets.ravel() for sets, _ in blocks]),
        probability=np.concatenate([mass for _, mass in blocks]),
    )


def sets_of_draws(
    weight: Float[np.ndarray, " size"], draws: int, elsewhere: float = 0.0
) -> Iterator[tuple[Int[np.ndarray, "sets tokens"], Float[np.ndarray, " sets"]]]:
    """For 1, 2, .. tokens all their sets, with the probability that `draws` draws hit every token of the set.

    The draws fall on tokens of the set or into `elsewhere`, and nowhere else. By inclusion and exclusion it is

        sum over B in S of  (-1)^(|S| - |B|)  (elsewhere + weight(B))^draws

    which cancels badly for small weights. The same number without a minus sign: with `f_m` the probability that `m`
    draws hit every token so far, a further token of weight `w` gives `f_m <- sum_{c >= 1} (m choose c) w^c f_{m-c}`.
    Sets grow by one token at a time, so a set shares the work of its beginning.
    """
    sets = np.empty((1, 0), dtype=np.int64)
    hits = np.full((1, draws + 1), elsewhere) ** np.arange(draws + 1)
    for _ in range(min(draws, len(weight))):
        parent, sets = extend_sets(sets, len(weight))
        hits = _hit_one_more(hits[parent], weight[sets[:, -1]])
        yield sets, hits[:, draws]


def extend_sets(
    sets: Int[np.ndarray, "sets tokens"], size: int
) -> tuple[Int[np.ndarray, " more"], Int[np.ndarray, "more tokens_plus_1"]]:
    """Every ascending set with every later token appended, and the set that each came from."""
    last = sets[:, -1] if sets.shape[1] else np.full(len(sets), -1)
    ways = size - 1 - last
    parent = np.repeat(np.arange(len(sets)), ways)
    place = np.arange(len(parent)) - np.repeat(np.cumsum(ways) - ways, ways)
    return parent, np.column_stack([sets[parent], last[parent] + 1 + place])


def _hit_one_more(hits: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The next `f` of `sets_of_draws`."""
    result = np.zeros_like(hits)
    power = np.ones_like(weight)
    for c in range(1, hits.shape[1]):
        power = power * weight
        for m in range(c, hits.shape[1]):
            result[:, m] += math.comb(m, c) * power * hits[:, m - c]
    return result


def merge_tuples(tuples: Int[Tensor, "tuples width"], probability: Float[Tensor, " tuples"]) -> Network:
    """The token sets of given tuples, of any law; -1 marks an empty position.

    >>> merge_tuples(torch.tensor([[0, 1], [1, 0], [1, 1]]), torch.tensor([0.25, 0.25, 0.5])).token.tolist()
    [1, 0, 1]
    """
    rows = tuples.sort(-1).values
    repeated = torch.zeros_like(rows, dtype=torch.bool)
    repeated[:, 1:] = rows[:, 1:] == rows[:, :-1]
    rows = rows.masked_fill(repeated, -1).sort(-1).values
    sets, index = torch.unique(rows, dim=0, return_inverse=True)
    mass = torch.zeros(len(sets), dtype=torch.float64).index_add(0, index, probability.double())
    size = (sets >= 0).sum(-1)
    start = torch.cat([size.new_zeros(1), size.cumsum(0)])
    return Network(start.numpy(), sets[sets >= 0].numpy(), mass.numpy())


def edges_of(vocabulary: int, drafts: int) -> int:
    """Pairs of a set of at most `drafts` tokens and one of its tokens."""
    return sum(s * math.comb(vocabulary, s) for s in range(1, min(drafts, vocabulary) + 1))


def refuse_large(vocabulary: int, drafts: int, most: int) -> None:
    """Raise when a network would have more than `most` edges, saying what size would fit."""
    if (edges := edges_of(vocabulary, drafts)) > most:
        fits = next(size for size in count(1) if edges_of(size + 1, drafts) > most)
        raise AdviceError(
            f"{drafts} drafts from {vocabulary:,} tokens make {edges:,} pairs of a set and a token, about "
            f"{edges * 200 / 1e9:.1f} GB; at most {most:,} are accepted: {fits:,} tokens with {drafts} drafts. Keep "
            f"the {fits:,} most likely tokens of the draft (top-k), or use the rule lorenz, which has no such limit"
        )
