"""Scores that are learnt from the tokens so far, for biases that average out over contexts.

A draft model that is unlike its target favours the likeliest token in one context and others in the next, so that no
fixed score moves. Bins are therefore sorted into *cells*, such as the second likeliest token where the law is nearly
certain, or the likeliest one at the third place of a chunk. Each cell counts how often it came, O, and how often it
should have come, E = sum p, with variance V = sum p (1 - p). The score of its bins is the excess of its rate, shrunk by
the part of it that chance explains (positive-part James-Stein):

    s = (O - E) / (E + 16) max(0, 1 - V / (O - E)^2).

It is known before the token comes, so the bet on it has mean one like any other. At lambda = 1 that bet is nearly the
likelihood ratio of the law that was learnt to the law that should be.

A cell may depend on what was known before its token came. "Third of its chunk" was: chunks end by what came before.
"In a chunk of three" was not (`evidence`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from multidraft_judge.evidence.scores import Seen

if TYPE_CHECKING:
    from jaxtyping import Float

LEARNED_CELLS = (  # each sorts the bins into cells in a way of its own
    "learned: rank",
    "learned: rank by entropy",
    "learned: rank by copied token",
    "learned: rank by place in its chunk",
    "learned: rank by client",
    "learned: token",
    "learned: token by the one before",
    "learned: token by the two before",
)
ENTROPY_STEPS = 2  # cells for one nat
MAX_PLACE = 8  # later places in a chunk are one cell
PRIOR_COUNT = 16.0  # expected occurrences that a cell needs before half of its excess counts
OTHER_RANK = -1  # the rank of the last bin
Cells = list[Sequence[Hashable]]  # of every bin, for each of `LEARNED`


def cells_of(seen: Seen) -> Cells:
    """The cell of every bin, for each of `LEARNED`."""
    positive = seen.law[seen.law > 0]
    entropy = int(-ENTROPY_STEPS * float(positive @ np.log(positive)))
    place = None if seen.place is None else min(seen.place, MAX_PLACE)
    ranks = [*range(len(seen.law) - 1), OTHER_RANK]
    texts = [*seen.texts, OTHER_RANK] if seen.texts else ranks
    by_rank = [[(context, rank) for rank in ranks] for context in (None, entropy, seen.copied, place, seen.client)]
    return [*by_rank, texts, *[[(*seen.before[-count:], text) for text in texts] for count in (1, 2)]]


class Learner:
    """The counts of all cells so far: O - E, E and V."""

    def __init__(self) -> None:
        self.counts = [defaultdict[Hashable, list[float]](lambda: [0.0, 0.0, 0.0]) for _ in LEARNED_CELLS]

    def scores(self, cells: Cells) -> Float[np.ndarray, "learned bins"]:
        """The number that each of `LEARNED` gives to every bin by its cell, from earlier tokens."""
        pairs = zip(self.counts, cells, strict=True)
        return np.array([[shrunk_excess(*counts[cell]) for cell in row] for counts, row in pairs])

    def learn(self, seen: Seen, cells: Cells) -> None:
        """Count a token in its cells, after the bet on it."""
        law = seen.law.tolist()
        for counts, row in zip(self.counts, cells, strict=True):
            counts[row[seen.bin]][0] += 1.0
            for p, cell in zip(law, row, strict=True):
                count = counts[cell]
                count[0] -= p
                count[1] += p
                count[2] += p * (1 - p)


def shrunk_excess(excess: float, expected: float, variance: float) -> float:
    """By how much a cell comes too often, relative to its rate; 0 if chance explains it.

    >>> shrunk_excess(24.0, 80.0, 144.0), shrunk_excess(6.0, 80.0, 144.0)
    (0.1875, 0.0)
    """
    squared = excess * excess
    return excess / (expected + PRIOR_COUNT) * (1 - variance / squared) if squared > variance else 0.0
