"""How much easier than predicted drafts are found in a call: learnt from every verdict, and forgotten again."""

import numpy as np
from jaxtyping import Float

from multidraft.verification.loops import paired

UP = [0.17, 0.33, 0.5, 0.7, 1.2, 2.3, 3.5]
LOGS = np.array([-step for step in reversed(UP)] + [0.0] + UP)
EASES = np.exp(LOGS)
SPREAD, ELSEWHERE = 0.2, 0.03  # texts differ by so much in the logarithm; how likely one is quite another thing
CHANGE = 0.03  # how likely the text becomes another one between two nodes of a row
SURE = 0.998  # no claim is believed to be likelier
USUAL = np.exp(-0.5 * (LOGS / SPREAD) ** 2)
TEXTS = (1 - ELSEWHERE) * USUAL / USUAL.sum() + ELSEWHERE / len(LOGS)  # how likely is what, before anything is seen


class Ease:
    """A belief in how much easier than predicted drafts are found: chances 1 - a of missing become (1 - a)^g.

    So that one number serves nodes with one draft and with many: no acceptance leaves the unit interval, and what is
    nearly certain stays so. Above one is easier. A hidden Markov model says what g is: most texts are much like those
    that predictions come from, and whenever the belief is asked for, the text may have become another one, the likelier
    the more nodes there were. What drafts claim at a node of weight w counts as an event of probability
    w (1 - (1 - a)^g), which is its mean.
    """

    def __init__(self) -> None:
        self.believed = TEXTS
        self.heard: list[tuple[float, float, float]] = []
        self.lasting = 1.0  # how likely the text is still the same one, after what was heard
        updated(TEXTS, np.array([(0.5, 0.5, 1.0)]), 1.0)  # compiled before any clock runs

    def add(self, claimed: float, predicted: float, weight: float, rows: int = 1) -> None:
        """A node that was entered with some weight, in one of so many rows: what its drafts claimed, and should have.

        A row's text is followed as quickly in a batch as alone, by more nodes.
        """
        self.heard.append((min(claimed, 1.0), predicted / weight, weight))
        self.lasting *= (1 - CHANGE) ** (1 / rows)

    @property
    def belief(self) -> Float[np.ndarray, " eases"]:
        """How likely each of `EASES` is."""
        if self.heard:
            self.believed = updated(self.believed, np.array(self.heard), self.lasting)
            self.heard.clear()
            self.lasting = 1.0
        return self.believed

    @property
    def exponent(self) -> float:
        """The exponent g, by its mean logarithm."""
        return float(np.exp(self.belief @ LOGS))


@paired("multidraft.autotune.ease_loops")
def updated(
    believed: Float[np.ndarray, " eases"], heard: Float[np.ndarray, "nodes 3"], lasting: float
) -> Float[np.ndarray, " eases"]:
    """The belief after some nodes, each what it claimed, its predicted acceptance, and its weight.

    The text is the same one afterwards with probability `lasting`.
    """
    claimed, rate, weight = heard.T[..., None]
    likely = chance(rate, weight, EASES)
    logs = (claimed * np.log(likely) + (1 - claimed) * np.log1p(-likely)).sum(0)
    found = believed * np.exp(logs - logs.max())
    return found * (lasting / found.sum()) + (1 - lasting) * TEXTS


def chance(
    rate: Float[np.ndarray, "*nodes"] | float, weight: Float[np.ndarray, "*nodes"] | float, ease: np.ndarray | float
) -> np.ndarray:
    """How likely a node's drafts are believed to claim it: by their predicted acceptance, its weight, and the ease."""
    return weight * np.minimum(1 - (1 - np.clip(rate, 1 - SURE, SURE)) ** ease, SURE)
