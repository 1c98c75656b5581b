"""Averages that forget."""

FORGETTING = 0.97  # what is left of an observation when the next one comes


class Average:
    """A ratio of two sums that fade."""

    def __init__(self, value: float, weight: float):
        self.above, self.below = value * weight, weight

    def add(self, above: float, below: float) -> None:
        """One more observation: what there was, and what it is measured by."""
        self.above, self.below = self.above * FORGETTING + above, self.below * FORGETTING + below

    @property
    def value(self) -> float:
        """The ratio."""
        return self.above / self.below
