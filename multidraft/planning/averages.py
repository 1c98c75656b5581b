"""What is learnt while decoding, and forgotten again."""

import math

FORGETTING = 0.95  # what is left of an observation when the next one of its row comes


class Ease:
    """How much easier than predicted drafts are found: chances 1 - a of missing become (1 - a)^g, and g is learnt.

    So that one number serves nodes with one draft and with many: no acceptance leaves the unit interval, and what is
    nearly certain stays so. Above one is easier.
    """

    def __init__(self, prior: float) -> None:
        self.prior = prior  # for how many nodes the belief counts at first that predictions are right
        self.claimed = self.predicted = self.weight = 0.0

    def add(self, claimed: float, predicted: float, weight: float, rows: int = 1) -> None:
        """A node that was entered with some weight, in one of so many rows: what its drafts claimed, and should have.

        A row's text is followed as quickly in a batch as alone, by more nodes.
        """
        if not self.weight:
            self.claimed = self.predicted = self.prior * predicted / weight
            self.weight = self.prior
        left = FORGETTING ** (1 / rows)
        self.claimed = self.claimed * left + claimed
        self.predicted = self.predicted * left + predicted
        self.weight = self.weight * left + weight

    @property
    def exponent(self) -> float:
        """The exponent."""
        if not self.weight:
            return 1.0
        seen, predicted = within(self.claimed / self.weight), within(self.predicted / self.weight)
        return math.log(1 - seen) / math.log(1 - predicted)


def within(share: float) -> float:
    """A share that is neither nothing nor all."""
    return min(max(share, 0.005), 0.995)
