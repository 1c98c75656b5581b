"""What a value must be: kinds and ranges of numbers, token ids, biases, stop strings. Without torch.

Every check has the same form, `check(name, value, vocabulary)`, and raises AdviceError with the name that it is given.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from multidraft.errors import AdviceError, is_integer, is_number, quote

MAX_STOP_STRINGS, MAX_STOP_CHARACTERS = 64, 1000
MAX_TOKENS = 10_000_000


@dataclass(frozen=True)
class Range:
    """The kind and range of a number or flag. Calling it checks a value.

    >>> Range(float, above=True)("top_p", 0)
    Traceback (most recent call last):
    ...
    multidraft.errors.AdviceError: top_p is 0; use a number above 0, at most 1
    """

    kind: type  # int, float or bool
    least: float | int = 0
    most: float | int = 1
    above: bool = False  # the least value itself is too small
    below: bool = False  # the most is too large
    also: Mapping[float | int, str] | None = None  # values outside the range that are allowed, and what they mean

    def __call__(self, name: str, value: Any, vocabulary: int | None = None) -> None:
        """Raise AdviceError unless the value is of this kind and in this range."""
        if not self.allows(value):
            raise AdviceError(f"{name} is {quote(value)}; use {self}")

    def allows(self, value: Any) -> bool:
        """Whether the value is of this kind and in this range."""
        if self.kind is bool:
            return isinstance(value, bool)
        if not (is_integer(value) if self.kind is int else is_number(value)):
            return False
        inside = self.least <= value <= self.most and not (self.above and value == self.least)
        return (inside and not (self.below and value == self.most)) or value in (self.also or ())

    def __str__(self) -> str:
        """What to use, in words."""
        if self.kind is bool:
            return "True or False"
        low = f"{'above' if self.above else 'from'} {self.least:.12g}"
        high = f"{', below' if self.below else ', at most' if self.above else ' to'} {self.most:.12g}"
        also = "".join(f", or {value:g} for {meaning}" for value, meaning in (self.also or {}).items())
        return f"a {'whole ' if self.kind is int else ''}number {low}{high}{also}"


FLAG, TOKEN_COUNT = Range(bool), Range(int, 0, MAX_TOKENS)
TEMPERATURE = Range(float, 1e-3, 100, also={0: "greedy decoding"})
TOP_K = Range(int, 1, 2**31 - 1)
PROBABILITY, POSITIVE_PROBABILITY, CUTOFF = Range(float), Range(float, above=True), Range(float, below=True)
FACTOR, PENALTY = Range(float, 0.01, 100), Range(float, -2, 2)
BIAS = Range(float, -100, 100, also={-float("inf"): "never"})  # of a token, or of a sequence


def check_anything(name: str, value: Any, vocabulary: int | None = None) -> None:
    """Accept every value: the class of the processor checks it."""


def check_tokens(name: str, tokens: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a token id, or a list of them, of the vocabulary where that is known."""
    listed = tokens if isinstance(tokens, list | tuple | set) else [tokens]
    if wrong := [token for token in listed if not is_integer(token)]:
        raise AdviceError(f"{name} is {quote(wrong[0])}; use a token id, or a list of them")
    if wrong := [token for token in listed if token < 0 or (vocabulary is not None and token >= vocabulary)]:
        last = "" if vocabulary is None else f" to {vocabulary - 1}"
        raise AdviceError(f"{name} names token {quote(wrong[0])}, but the vocabulary is 0{last}; check it")


def check_biases(name: str, biases: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a dictionary from token ids to numbers."""
    if not isinstance(biases, Mapping):
        raise AdviceError(f"{name} is {quote(biases)}; use a dictionary from token ids to numbers")
    check_tokens(name, list(biases), vocabulary)
    for token, value in biases.items():
        BIAS(f"the {name} of token {token}", value)


def check_sequences(name: str, sequences: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a list of lists of token ids, none of which is empty."""
    if not isinstance(sequences, list | tuple) or not all(isinstance(tokens, list | tuple) for tokens in sequences):
        raise AdviceError(f"{name} is {quote(sequences)}; use a list of lists of token ids")
    for tokens in sequences:
        if not tokens:
            raise AdviceError(f"{name} has an empty sequence; leave it out")
        check_tokens(name, list(tokens), vocabulary)


def check_sequence_biases(name: str, biases: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a dictionary from tuples of token ids to numbers, or a list of such pairs."""
    pairs = list(biases.items()) if isinstance(biases, Mapping) else biases
    if not isinstance(pairs, list | tuple) or not all(isinstance(p, list | tuple) and len(p) == 2 for p in pairs):
        raise AdviceError(f"{name} is {quote(biases)}; use a dictionary from tuples of token ids to numbers")
    check_sequences(name, [tokens for tokens, _ in pairs], vocabulary)
    for tokens, value in pairs:
        BIAS(f"the {name} of {list(tokens)}", value)


def check_decay(name: str, decay: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a pair: the number of tokens after which a penalty begins, and its factor."""
    if not isinstance(decay, list | tuple) or len(decay) != 2:
        raise AdviceError(f"{name} is {quote(decay)}; use a pair: after how many tokens it begins, and its factor")
    TOKEN_COUNT(f"the beginning of {name}", decay[0])
    FACTOR(f"the factor of {name}", decay[1])


def check_stop_strings(name: str, stops: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a text or a list of texts, neither empty nor so many that decoding would crawl."""
    listed = [stops] if isinstance(stops, str) else stops
    if not isinstance(listed, list | tuple) or not all(isinstance(text, str) and text for text in listed):
        raise AdviceError(f"{name} is {quote(stops)}; use a text that is not empty, or a list of such")
    longest = max(map(len, listed), default=0)
    if len(listed) > MAX_STOP_STRINGS or longest > MAX_STOP_CHARACTERS:
        raise AdviceError(
            f"{name} has {len(listed)} strings of up to {longest} characters; use at most {MAX_STOP_STRINGS} strings "
            f"of at most {MAX_STOP_CHARACTERS} characters"
        )


def check_grammar(name: str, value: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a Grammar."""
    from multidraft.sampling.grammar import Grammar

    if not isinstance(value, Grammar):
        raise AdviceError(f"{name} is {quote(value)}; use multidraft.Grammar(tokenizer, json_schema=...)")
