"""A reference scores the texts that a server wrote: the same model without drafts, elsewhere or in this process.

How far its log-probabilities may be off by rounding is learnt from the reference against itself, in batches of other
sizes.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from multidraft_judge.evidence.laws import Reported, Settings
from multidraft_judge.evidence.observation import Completion, Token
from multidraft_judge.evidence.places import Place

WIDTHS = (1, 2, 4)  # texts that are scored at once, to learn what that changes
MARGIN = 10  # a difference counts from so many times the largest that rounding has made
MIN_ROUNDING = 1e-4  # as if no float32 kernel did better
BFLOAT16_ROUNDING = 0.01  # as it is stated by --rounding
MIN_PLACES = 2  # in one text, that make a finding
MIN_LOGPROB = -20.0  # below, rounding is larger, and servers write other numbers in place of minus infinity
OTHER_TOKENS = "the reference has another tokenizer than the server: {}; give one that serves the same model"
Scores = list[list[Token] | None]  # of texts; None where a text's tokens are not known


class Reference(ABC):
    """Scores tokens."""

    reported: Reported
    rounding_share = 0.0  # of a stated rounding as bfloat16's, which counts where its own is smaller

    @abstractmethod
    def score(self, completions: Sequence[Completion], settings: Settings, width: int) -> Scores:
        """Every token of the texts with its log-probability and the likeliest ones, `width` texts at once."""


def rounding_of(reference: Reference, completions: Sequence[Completion], settings: Settings) -> float:
    """The largest difference of the reference's log-probabilities from themselves, over batch sizes."""
    alone, *batched = (reference.score(completions, settings, width) for width in WIDTHS)
    pairs = [pair for scores in batched for pair in zip(alone, scores, strict=True)]
    differences = [
        abs(first.logprob - second.logprob)
        for one, other in pairs
        for first, second in zip(one or [], other or [], strict=True)
        if first.logprob > MIN_LOGPROB
    ]
    return max([MIN_ROUNDING, *differences])


def differences(completion: Completion, scored: list[Token], tolerance: float) -> list[Place]:
    """The tokens whose log-probability at the reference differs by more than the tolerance.

    A token that came without likeliest ones is left out: servers write 0 or nothing beside accepted drafts.
    """
    pairs = enumerate(zip(completion.tokens, scored, strict=True))
    return [
        Place.of(completion, position, token.logprob, expected.logprob)
        for position, (token, expected) in pairs
        if token.top
        and max(token.logprob, expected.logprob) > MIN_LOGPROB
        and abs(token.logprob - expected.logprob) > tolerance
    ]
