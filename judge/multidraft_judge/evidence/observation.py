"""What is observed of a completion: every token with the likeliest ones at its place, and in which chunk it came."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from multidraft_judge.evidence import bets as evidence
from multidraft_judge.evidence.laws import Settings, law_of
from multidraft_judge.evidence.scores import Seen

MAX_MATCH = 8  # tokens at the end of a text that are looked up earlier in it
LAST_TOKENS = 2  # by which biases are told apart
MAX_COPY_CHARACTERS = 40  # more than a token has
ID_PREFIX = "token_id:"  # of a token's text, where a server writes its number
BROKEN_CHARACTER = "\ufffd"  # in the text of a token that is a part of a character, which several tokens may be
LOGPROB_TOLERANCE = 1e-3  # log-probabilities of one token differ by less where a server states it twice


class Token(NamedTuple):
    """A token, its log-probability, and the likeliest tokens at its place."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...]  # likeliest first; which ones must not depend on the token that came
    chunk: int = 0  # of the stream; 0 for all tokens of an answer that came whole
    id: int | None = None  # where the server says it

    @property
    def bin(self) -> int:
        """The place of the token among the likeliest, or their number if it is another.

        Two tokens may have one text, such as parts of characters: the log-probability tells them apart.
        """
        for place, (text, value) in enumerate(self.top):
            if text == self.text and abs(value - self.logprob) < LOGPROB_TOLERANCE:
                return place
        return len(self.top)


@dataclass(frozen=True)
class Ask:
    """One request, and what is special about it."""

    index: int
    prompt: str
    max_tokens: int
    temperature: float = 1.0
    streamed: bool = True
    seed: int | None = None
    beside: int = 1  # requests that run at once, this one included
    client: int = 0  # the place of this one among them
    cancel_after: int | None = None  # events of the stream, after which the connection is closed
    beside_cancelled: bool = False
    reused: bool = False  # the prompt was asked before
    formed: bool = False  # the answer has to have a form (`forms`)

    @property
    def strata(self) -> set[str]:
        """The strata of all its tokens."""
        named = {
            evidence.ALONE: self.beside == 1,
            evidence.BESIDE: self.beside > 1,
            evidence.BESIDE_CANCELLED: self.beside_cancelled,
            evidence.REUSED: self.reused,
        }
        return {name for name, holds in named.items() if holds}


@dataclass(frozen=True)
class Completion:
    """The answer to a request."""

    ask: Ask
    tokens: list[Token]
    prompt_ids: list[int] | None = None  # where the server says them
    unlisted: int = 0  # tokens that came without the likeliest ones beside them
    written: str = ""  # the text as the server writes it, where it has to have a form
    is_stopped: bool = False  # and whether it has ended by itself

    @property
    def prompt(self) -> str:
        """The prompt in the form of the tokens' texts: some servers write numbers there."""
        if self.prompt_ids is None or not self.tokens or not self.tokens[0].text.startswith(ID_PREFIX):
            return self.ask.prompt
        return "".join(f"{ID_PREFIX}{token}" for token in self.prompt_ids)

    @property
    def text(self) -> str:
        """The texts of all tokens."""
        return "".join(token.text for token in self.tokens)

    def as_json(self) -> dict[str, Any]:
        """A record for a journal."""
        form = {"written": self.written, "is_stopped": self.is_stopped} if self.ask.formed else {}
        return {
            "ask": self.ask.index,
            "tokens": [list(token) for token in self.tokens],
            "prompt_ids": self.prompt_ids,
            "unlisted": self.unlisted,
        } | form

    @classmethod
    def from_json(cls, ask: Ask, record: dict[str, Any]) -> "Completion":
        """The answer of a journal's record."""
        tokens = [Token(text, value, tuple(map(tuple, top)), *rest) for text, value, top, *rest in record["tokens"]]
        form = record.get("written", ""), record.get("is_stopped", False)
        return cls(ask, tokens, record["prompt_ids"], record["unlisted"], *form)


def observe(completion: Completion, settings: Settings, tops: list[Any] | None = None) -> Iterator[Seen]:
    """Every token of an answer with the law that the server reports for it, or that a reference's `tops` give.

    Tokens whose law the listed ones do not settle are left out; that depends on the law alone.
    """
    context, ask = Context(completion.prompt), completion.ask
    client = None if ask.beside == 1 else ask.client
    laws, places = tops or completion.tokens, places_in_chunks(completion)
    for token, law_at, place in zip(completion.tokens, laws, places, strict=True):
        texts = [text for text, _ in law_at.top]
        is_unique = not any(BROKEN_CHARACTER in text for text in texts)
        law = law_of(np.array([value for _, value in law_at.top]), settings) if is_unique else None
        if law is not None and not (law_at.bin == len(texts) and settings.only_listed):
            last = context.pieces[-LAST_TOKENS:]
            yield Seen(law, law_at.bin, context.copied(texts), strata(ask, place), texts, last, place, client)
        context.add(token.text)


def places_in_chunks(completion: Completion) -> Iterator[int | None]:
    """The place of each token in its chunk, from the chunk's start; None where the answer came whole."""
    chunk, place = None, 0
    for token in completion.tokens:
        place = place + 1 if token.chunk == chunk else 0
        chunk = token.chunk
        yield place if completion.ask.streamed else None


def strata(ask: Ask, place: int | None) -> set[str]:
    """The strata of a token by its place in its chunk, as far as they leave its law as it is."""
    if place is None:
        return ask.strata
    return ask.strata | {evidence.LATER if place else evidence.FIRST}


@dataclass
class Context:
    """The text before a token, to find what copying would propose."""

    text: str
    pieces: list[str] = field(default_factory=list)

    def add(self, piece: str) -> None:
        """The next token's text."""
        self.text += piece
        self.pieces.append(piece)

    def copied(self, listed: list[str]) -> int | None:
        """The listed token that followed the longest match of the last tokens earlier in the text."""
        for count in range(min(MAX_MATCH, len(self.pieces)), 0, -1):
            suffix = "".join(self.pieces[-count:])
            place = self.text.rfind(suffix, 0, len(self.text) - 1) if suffix else -1
            if place >= 0:
                following = self.text[place + len(suffix) :][:MAX_COPY_CHARACTERS]
                fitting = [i for i, text in enumerate(listed) if text and following.startswith(text)]
                return max(fitting, key=lambda i: len(listed[i]), default=None)
        return None
