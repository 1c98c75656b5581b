"""What tokens are sampled with, and the one table of what each setting must be, for every way in; without torch.

>>> check("top_p", 0)
Traceback (most recent call last):
...
multidraft.errors.AdviceError: top_p is 0; use a number above 0, at most 1
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError, is_integer, is_number, shown

if TYPE_CHECKING:
    from multidraft.sampling.processors import Processors

MOST_STOPS, LONGEST_STOP = 64, 1000


@dataclass(frozen=True)
class Setting:
    """What a setting's value must be: its kind, its range, and values beyond it that have a meaning of their own."""

    kind: type  # int, float or bool
    least: float | int = 0
    most: float | int = 1
    above: bool = False  # the least value itself is too small
    below: bool = False  # the most is too large
    also: Mapping[float | int, str] | None = None  # values, and what they mean

    def allows(self, value: Any) -> bool:
        """Whether it is a value of the setting."""
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


BIAS = Setting(float, -100, 100, also={-float("inf"): "never"})  # of a token, or of a sequence
FACTOR, MOST_TOKENS = Setting(float, 0.01, 100), 10_000_000
KINDS = {  # of settings, by their names
    "temperature draft_temperature": Setting(float, 1e-3, 100, also={0: "greedy decoding"}),
    "top_k draft_top_k": Setting(int, 1, 2**31 - 1),
    "top_p draft_top_p top_h typical_p": Setting(float, above=True),
    "min_p": Setting(float),
    "epsilon_cutoff eta_cutoff": Setting(float, below=True),
    "repetition_penalty encoder_repetition_penalty": FACTOR,
    "presence_penalty frequency_penalty": Setting(float, -2, 2),
    "max_new_tokens max_length": Setting(int, 1, MOST_TOKENS),
    "min_new_tokens min_length no_repeat_ngram_size encoder_no_repeat_ngram_size measure": Setting(int, 0, MOST_TOKENS),
    "num_return_sequences max_num_seqs": Setting(int, 1, 4096),
    "max_time": Setting(float, 0, 1e9),
    "seed": Setting(int, -(2**63), 2**63 - 1),
    "logprobs": Setting(int, 0, 2**20),
    "tune_budget": Setting(float, 0, 86_400),
    "do_sample renormalize_logits remove_invalid_values return_dict_in_generate compile synchronise": Setting(bool),
}
SETTINGS = {name: kind for names, kind in KINDS.items() for name in names.split()}


def check(name: str, value: Any, called: str | None = None) -> None:
    """Raise AdviceError unless the table allows the value; `called` is the setting's name in the message."""
    require(SETTINGS[name], value, called or name)


def require(setting: Setting, value: Any, name: str) -> None:
    """Raise AdviceError unless it is a value of that kind and range."""
    if not setting.allows(value):
        raise AdviceError(f"{name} is {shown(value)}; use {setting}")


def check_all(settings: Mapping[str, Any]) -> None:
    """Check those that are in the table and are set."""
    for name, value in settings.items():
        if value is not None and name in SETTINGS:
            check(name, value)


def check_tokens(name: str, tokens: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a token, or a list of tokens, of the vocabulary where that is known."""
    listed = tokens if isinstance(tokens, list | tuple | set) else [tokens]
    if wrong := [token for token in listed if not is_integer(token)]:
        raise AdviceError(f"{name} is {shown(wrong[0])}; use a token id, or a list of them")
    if wrong := [token for token in listed if token < 0 or (vocabulary is not None and token >= vocabulary)]:
        last = "" if vocabulary is None else f" to {vocabulary - 1}"
        raise AdviceError(f"{name} names token {shown(wrong[0])}, but the vocabulary is 0{last}; check it")


def check_biases(name: str, biases: Any, vocabulary: int | None = None) -> None:
    """Raise AdviceError unless it is a dictionary from tokens to numbers."""
    if not isinstance(biases, Mapping):
        raise AdviceError(f"{name} is {shown(biases)}; use a dictionary from token ids to numbers")
    check_tokens(name, list(biases), vocabulary)
    for token, value in biases.items():
        require(BIAS, value, f"the {name} of token {token}")


def check_stops(name: str, stops: Any) -> None:
    """Raise AdviceError unless it is a text or a list of texts, neither empty nor so many that decoding would crawl."""
    listed = [stops] if isinstance(stops, str) else stops
    if not isinstance(listed, list | tuple) or not all(isinstance(text, str) and text for text in listed):
        raise AdviceError(f"{name} is {shown(stops)}; use a text that is not empty, or a list of such")
    if len(listed) > MOST_STOPS or any(len(text) > LONGEST_STOP for text in listed):
        raise AdviceError(f"{name} has too much; use at most {MOST_STOPS} texts of at most {LONGEST_STOP} characters")


@dataclass(frozen=True)
class Sampling:
    """Processors, then temperature, top-k and top-p, then filters. Raises AdviceError on what makes no distribution.

    The draft model gets the same, so that the two stay close, or what `for_draft` says: any draft law is exact.
    """

    temperature: float | int = 1.0  # 0 for the most likely token
    top_k: int | None = None
    top_p: float | int | None = None
    before: "Processors | None" = None  # penalties, biases, constraints: they change logits
    after: "Processors | None" = None  # min-p and its like: they take the logarithm of a distribution
    for_draft: "Sampling | None" = None

    def __post_init__(self) -> None:
        check("temperature", self.temperature)
        check_all({"top_k": self.top_k, "top_p": self.top_p})

    @property
    def looks_back(self) -> bool:
        """Whether the sequences that lead to the nodes are needed."""
        return any(part is not None and part.looks_back for part in (self.before, self.after))
