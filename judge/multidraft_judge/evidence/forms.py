"""A JSON form that some answers have to have. Whether a text has it needs no bets: its beginnings are all known.

Drafts are where engines lose it: a mask that comes a token late, or not behind every draft, or an end of text that is
accepted inside a block and run over. The form is short, so that texts end within the tokens that they may have.
"""

from dataclasses import dataclass, field
from typing import Any

from multidraft_judge.evidence.observation import Completion

COLOURS = ("red", "green", "blue")
ITEMS = {"type": "array", "items": {"type": "string", "enum": [*COLOURS]}, "minItems": 2, "maxItems": 2}
SCHEMA = {"type": "object", "properties": {"colours": ITEMS}, "required": ["colours"], "additionalProperties": False}
FIELDS: dict[str, Any] = {  # of a request for the form
    "response_format": {"type": "json_schema", "json_schema": {"name": "colours", "strict": True, "schema": SCHEMA}}
}
# What may follow each piece of a text. Not every engine counts items, so that any number of them will do.
KEY, WORDS, LAST = '"colours"', tuple(f'"{colour}"' for colour in COLOURS), "}"
FOLLOWING: dict[str, tuple[str, ...]] = {"": ("{",), "{": (KEY,), KEY: (":",), ":": ("[",), "[": (*WORDS, "]")}
FOLLOWING |= {**dict.fromkeys(WORDS, (",", "]")), ",": WORDS, "]": (LAST,), LAST: ()}
WHITE_SPACE = " \t\r\n"
MIN_TEXTS = 4  # before anything follows: half of them at least have to begin as the form does
CONTEXT_CHARACTERS = 40  # that are shown before and after a place


@dataclass
class Forms:
    """The answers that were asked to have the form."""

    texts: int = 0
    tokens: int = 0
    begun: int = 0  # texts that begin as the form does
    broken: list[str] = field(default_factory=list)  # texts that leave it: the request, and the text around the place

    def add(self, completion: Completion) -> None:
        """Look at an answer."""
        text, tokens = completion.written, completion.tokens
        is_cut = not completion.is_stopped or len(tokens) >= completion.ask.max_tokens
        place = broken_at(text, is_cut, tokens[-1].text if tokens else "")
        self.texts, self.tokens = self.texts + 1, self.tokens + len(tokens)
        self.begun += place is None or bool(text[:place].strip(WHITE_SPACE))
        if place is not None:
            before, after = text[:place][-CONTEXT_CHARACTERS:], text[place:][:CONTEXT_CHARACTERS]
            self.broken.append(f"request {completion.ask.index}: {before!r} > {after!r}")

    @property
    def is_unknown(self) -> bool:
        """Whether the server seems to think first, or to take no form at all, which is no fault of its drafts."""
        return self.texts >= MIN_TEXTS and 2 * self.begun < self.texts

    @property
    def convicts(self) -> bool:
        """Whether a server that takes forms has left one."""
        return bool(self.broken) and self.texts >= MIN_TEXTS and not self.is_unknown


def broken_at(text: str, is_cut: bool, end: str = "") -> int | None:
    """Where a text leaves the form; None if it does not. One that is not cut has to be whole.

    Some servers write the token that ends a text, too: behind a whole one `end` may stand.

    >>> broken_at('{"colours": ["red", "gr', True), broken_at('{"colours": []} {', True), broken_at('{"colours"', False)
    (None, 16, 10)
    """
    place, piece = 0, ""
    while True:
        remainder = text[place:].lstrip(WHITE_SPACE)
        place = len(text) - len(remainder)
        following = next((following for following in FOLLOWING[piece] if remainder.startswith(following)), None)
        if following is None:
            break
        place, piece = place + len(following), following
    is_beginning = is_cut and any(following.startswith(remainder) for following in FOLLOWING[piece])
    is_right = is_beginning or (piece == LAST and remainder in ("", end))
    is_escaped = remainder.startswith('"') and "\\" in remainder  # which may spell the same word
    return None if is_right or is_escaped else place
