"""The text of one answer as it grows, and where a stop string ends it."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from multidraft.decoding.record import Logprob
from multidraft.generation.text import IncrementalDetokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Piece:
    """A token: what it adds to the text, and how it came to be."""

    token: int
    text: str
    kind: str
    logprob: Logprob | None = None


class Text:
    """Pieces come in, and go out as soon as no stop string can begin in them; the first `least` tokens end nothing."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompt: list[int], stops: list[str], least: int = 0):
        self.reader, self.stops, self.least = IncrementalDetokenizer(tokenizer, prompt), stops, least
        self.held: list[Piece] = []
        self.stopped = False

    def add(self, piece: Piece) -> list[Piece]:
        """One more token, whose text is found here; what can be shown now that it is known."""
        self.held.append(replace(piece, text=self.reader.add(piece.token)))
        self.least -= 1
        if self.least >= 0 or not self.stops:
            return self.let_go(len(self.held[-1].text) + sum(len(held.text) for held in self.held[:-1]))
        text = "".join(held.text for held in self.held)
        ends = [place for stop in self.stops if (place := text.find(stop)) >= 0]
        if ends:
            self.stopped = True
            return self.let_go(min(ends), cut=True)
        return self.let_go(len(text) - max((overlap(text, stop) for stop in self.stops), default=0))

    def close(self) -> list[Piece]:
        """What was held back."""
        if self.stopped:
            return []
        rest, self.held = self.held, []
        if last := self.reader.close():
            rest.append(Piece(-1, last, "corrected"))
        return rest

    def let_go(self, count: int, cut: bool = False) -> list[Piece]:
        """The pieces within the first characters; the one that reaches beyond stays, or is cut."""
        free: list[Piece] = []
        while self.held and len(self.held[0].text) <= count:
            count -= len(self.held[0].text)
            free.append(self.held.pop(0))
        if cut and count:
            free.append(replace(self.held[0], text=self.held[0].text[:count]))
        return free


def overlap(text: str, stop: str) -> int:
    """The length of the longest end of a text that a stop string begins with, but for all of it.

    >>> overlap("to be", "begin")
    2
    """
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)
