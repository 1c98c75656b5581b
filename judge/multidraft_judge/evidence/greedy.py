"""At temperature 0 every token must be the likeliest, or tie with it within rounding."""

from collections.abc import Iterator

from multidraft_judge.evidence.observation import Completion, Token
from multidraft_judge.evidence.places import Place


def unlikely(completion: Completion, tolerance: float, scored: list[Token] | None = None) -> Iterator[Place]:
    """The tokens of a greedy text that are not the likeliest, by the server's list or by a reference's."""
    for position, token in enumerate(completion.tokens if scored is None else scored):
        if token.top and token.logprob < token.top[0][1] - tolerance:
            yield Place.of(completion, position, token.logprob, token.top[0][1])
