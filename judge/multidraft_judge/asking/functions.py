"""A sampler in Python as the subject, so that an engine's own tests can judge it without a server."""

from collections.abc import Callable, Mapping
from typing import Any

from multidraft_judge.errors import AdviceError, is_number, quote
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import Ask, Completion, Token

ADVICE = "return tokens, and for each of them a dictionary of the likeliest tokens' log-probabilities"


class Function:
    """`sample(prompt, n)` returns n tokens or fewer, and for each a mapping from tokens to log-probabilities.

    A mapping holds the likeliest tokens at its place, or all; which ones must not depend on the token that came. At a
    token that is not in its mapping, "another" came.
    """

    def __init__(self, sample: Callable[[str, int], Any]):
        self.sample = sample

    def complete(self, ask: Ask, settings: Settings) -> Completion:
        """Call the function."""
        return Completion(ask, tokens_of(self.sample(ask.prompt, ask.max_tokens)))


def tokens_of(answer: Any) -> list[Token]:
    """The tokens that a function returned; raises AdviceError on anything else."""
    try:
        tokens, mappings = answer
        pairs = list(zip(tokens, mappings, strict=True))
    except (TypeError, ValueError):
        raise AdviceError(f"sample(prompt, n) returned {quote(answer)}; {ADVICE}") from None
    return [token_of(token, mapping) for token, mapping in pairs]


def token_of(token: Any, mapping: Any) -> Token:
    """One token with its mapping."""
    if not isinstance(mapping, Mapping) or not all(is_number(value) and value < 1e-3 for value in mapping.values()):
        raise AdviceError(f"sample(prompt, n) returned {quote(mapping)} for a token; {ADVICE}")
    top = sorted(((str(other), float(value)) for other, value in mapping.items()), key=lambda pair: -pair[1])
    return Token(str(token), dict(top).get(str(token), float("nan")), tuple(top))
