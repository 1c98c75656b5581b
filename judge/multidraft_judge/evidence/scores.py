"""What is observed of a token, and the scores that are bet on: fixed ones here, and learnt ones in `learning`.

A score gives every bin a number before the token is seen. Each fixed one moves by a mistake that engines make: drafts
accepted too easily, another temperature, look-up drafts verified wrongly, a tail that is cut.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float

FIXED_NAMES = ("the likeliest", "surprise", "copied from the text", "another")
SURPRISE_QUANTILE = 0.99
MIN_PROBABILITY = 1e-12  # of a bin, in logarithms


class Seen(NamedTuple):
    """A token with the law that it should have, and what was known before it came."""

    law: Float[np.ndarray, " bins"]  # probabilities that sum to 1; the last bin is "another"
    bin: int  # into which the token fell
    copied: int | None = None  # the bin of the token that copying would propose
    strata: Collection[str] = ()  # beside "every token"
    texts: Sequence[str] = ()  # of the tokens in all bins but the last
    before: Sequence[str] = ()  # the last tokens before
    place: int | None = None  # in its chunk, from its start; None if the answer came whole
    client: int | None = None  # the place of its request among those that run at once; None if it is alone


def fixed_scores(seen: Seen) -> Float[np.ndarray, "scores bins"]:
    """The number that each of `FIXED` gives to every bin."""
    values = np.zeros((len(FIXED_NAMES), len(seen.law)))
    values[0, 0] = values[3, -1] = 1.0
    values[1] = surprise(seen.law)
    if seen.copied is not None:
        values[2, seen.copied] = 1.0
    return values


def surprise(law: Float[np.ndarray, " bins"]) -> Float[np.ndarray, " bins"]:
    """-log p of the tokens, "another" as the least likely of them, cut at its 99th percentile."""
    logs = -np.log(law.clip(MIN_PROBABILITY))
    logs[-1] = logs[:-1].max(initial=0.0)
    order = logs.argsort()
    cut = order[min(int(np.searchsorted(law[order].cumsum(), SURPRISE_QUANTILE)), len(law) - 1)]
    return logs.clip(max=logs[cut])
