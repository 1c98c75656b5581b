"""Calls of functions in a model's text, which comes piece by piece.

A call is read in the forms that models write: `<tool_call>` around a JSON object (Qwen, Hermes), or an answer that is
JSON from its first character (Llama 3). An object is a call if it has the name of a function that the request offers.
Arguments behind the name are passed on as they come. A call in another form is held back until it is complete.
"""

import json
import re
import uuid
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from multidraft.generation.stopping import overlap
from multidraft.sampling import thinking
from multidraft.server.tools import Json, arguments_of

BEGIN, END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"  # of Llama 3, before a call
LEADS = [re.compile(rf"(?:[{space}]|{re.escape(PYTHON_TAG)}|{BEGIN})*") for space in (r"\s", r"\s;,")]
# what stands before the first call, and before later ones
OPEN_CALL = re.compile(
    r'\{\s*"name"\s*:\s*"([^"\\]{1,64})"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)  # a call up to its arguments
SIGNS = re.compile(r'["\\{}]')


@dataclass(frozen=True)
class Call:
    """A function's name, and its arguments as the text of a JSON object, which is torn if the answer was cut."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def as_json(self) -> Json:
        """The call in the form of OpenAI's API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


@dataclass(frozen=True)
class CallDelta:
    """What a piece of text adds to a call: the call, or more of its arguments."""

    index: int
    call: Call | None = None
    arguments: str = ""

    def as_json(self) -> Json:
        """The delta in the form of OpenAI's API."""
        added = {"function": {"arguments": self.arguments}} if self.call is None else self.call.as_json()
        return {"index": self.index} | added


def calls_of(deltas: Iterable[CallDelta]) -> list[Call]:
    """The calls that deltas add up to.

    >>> [call.name + call.arguments for call in calls_of([CallDelta(0, Call("f", "")), CallDelta(0, arguments="{}")])]
    ['f{}']
    """
    calls: dict[int, Call] = {}
    for delta in deltas:
        call = delta.call or calls[delta.index]
        calls[delta.index] = Call(call.name, call.arguments + delta.arguments, call.id)
    return [*calls.values()]


class ObjectReader:
    """Finds the end of a JSON object whose text comes piece by piece; `depth` braces are open already."""

    def __init__(self, depth: int):
        self.depth, self.in_string, self.skipped = depth, False, 0  # characters behind a backslash, of the next piece

    def end(self, text: str) -> int | None:
        """The place behind the brace that closes the object; None if it is not in this piece."""
        place = self.skipped
        while found := SIGNS.search(text, place):
            place, sign = found.end(), found[0]
            if sign == "\\":
                place += 1
            elif sign == '"':
                self.in_string = not self.in_string
            elif not self.in_string:
                self.depth += 1 if sign == "{" else -1
                if not self.depth:
                    return place
        self.skipped = max(place - len(text), 0)
        return None


class ThoughtReader:
    """Separates what a model thinks before it answers from its answer; what may become a tag is held back.

    `is_open` if the prompt has begun to think. Without `keeps_tags` they are left out of the thought.
    """

    def __init__(self, is_open: bool, keeps_tags: bool):
        self.thinks: bool | None = True if is_open else None  # None where it may still begin
        self.held, self.keeps_tags = "", keeps_tags

    def add(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """Take a piece of text; returns what is certain of the thought, and of the answer."""
        self.held += text
        tag = ""
        if self.thinks is None:
            begin = self.held.lstrip()
            if thinking.BEGIN.startswith(begin[: len(thinking.BEGIN)]):
                if len(begin) < len(thinking.BEGIN) and not is_last:
                    return "", ""
                self.thinks = begin.startswith(thinking.BEGIN)
            else:
                self.thinks = False
            if self.thinks:
                end = self.held.index(thinking.BEGIN) + len(thinking.BEGIN)
                tag, self.held = self.held[:end], self.held[end:]
        thought = tag if self.keeps_tags else ""
        if self.thinks:
            inside, end_tag, after = self.held.partition(thinking.END)
            kept = 0 if end_tag or is_last else overlap(inside, thinking.END)
            thought += inside[: len(inside) - kept] + (end_tag if self.keeps_tags else "")
            self.held, self.thinks = after if end_tag else inside[len(inside) - kept :], not end_tag
        if self.thinks:
            return thought, ""
        answer, self.held = self.held, ""
        return thought, answer


class CallReader:
    """Separates calls from other text. Text that may become a call is held back."""

    def __init__(self, names: Collection[str], is_single: bool = False):
        self.names, self.is_single = names, is_single
        self.held, self.count = "", 0
        self.may_begin = True  # a call: at the start of the answer, at an opening tag, and behind a call
        self.arguments: ObjectReader | None = None  # of the call that is being read
        self.rest: ObjectReader | None = None  # of its object, behind the arguments

    @property
    def is_torn(self) -> bool:
        """Whether the arguments of the last call have no end yet."""
        return self.arguments is not None

    def add(self, text: str) -> tuple[str, list[CallDelta]]:
        """Take a piece of text; returns the text that is no call, and what is new of calls."""
        self.held += text
        content, deltas, before = "", list[CallDelta](), (0, False)
        while self.held and (now := (len(self.held), self.may_begin)) != before:
            before = now
            more, more_deltas = self.read()
            content, deltas = content + more, deltas + more_deltas
        return content, deltas

    def read(self) -> tuple[str, list[CallDelta]]:
        """Take one part of the text that is held, if it is known what it is."""
        if self.arguments is not None:
            return "", self.read_arguments(self.arguments)
        if self.rest is not None:
            self.rest = None if self.take(self.rest)[1] else self.rest
            return "", []
        if not self.may_begin:
            return self.read_plain(), []
        opened = OPEN_CALL.match(self.held, self.lead)
        if opened is None or opened[1] not in self.names:
            return self.read_whole_calls()
        self.held, self.arguments = self.held[opened.end() :], ObjectReader(0)
        return "", self.begin([Call(opened[1], "")])

    @property
    def lead(self) -> int:
        """The number of characters of space and opening tags that are held before what may be a call."""
        match = LEADS[self.count > 0].match(self.held)
        return match.end() if match else 0

    def take(self, reader: ObjectReader) -> tuple[str, bool]:
        """Take the held text up to the end of an object; returns it, and whether the end was in it."""
        end = reader.end(self.held)
        taken, self.held = self.held[:end], "" if end is None else self.held[end:]
        return taken, end is not None

    def read_arguments(self, reader: ObjectReader) -> list[CallDelta]:
        """Pass on arguments up to their end."""
        piece, has_ended = self.take(reader)
        if has_ended:
            self.arguments, self.rest = None, ObjectReader(1)
        return [] if self.is_single and self.count > 1 else [CallDelta(self.count - 1, arguments=piece)]

    def read_plain(self) -> str:
        """The text before an opening tag; what may become one is held back."""
        before, tag, after = self.held.partition(BEGIN)
        kept = len(before) - (0 if tag else overlap(before, BEGIN))
        self.held, self.may_begin = before[kept:] + tag + after, bool(tag)
        return before[:kept]

    def read_whole_calls(self) -> tuple[str, list[CallDelta]]:
        """Calls that are complete, or text that is none; nothing while only what follows can tell."""
        before, begin = self.held[: self.lead], self.held[self.lead :]
        has_tag, tags = BEGIN in before, (BEGIN, PYTHON_TAG, END)[: 2 + (self.count > 0 or BEGIN in before)]
        if begin[:1] not in ("", "{", "[") and not any(t.startswith(begin[: len(t)]) for t in tags):
            self.held, self.may_begin = begin, False
            return before, []
        if END in begin and (self.count or has_tag):
            inside, _, after = begin.partition(END)
            calls, text = calls_in(inside, self.names), self.held[: len(self.held) - len(after)]
            self.held, self.may_begin = after, bool(calls) or not inside.strip()
            return ("" if self.may_begin else text), self.begin(calls)
        return "", []

    def close(self) -> tuple[str, list[CallDelta]]:
        """The text that is held back, or the calls in it."""
        inside = self.held[self.lead :]  # some models leave the closing tag out
        text, self.held = self.held, ""
        if calls := calls_in(inside, self.names):
            return "", self.begin(calls)
        return ("" if self.count and not text.strip() else text), []

    def begin(self, calls: list[Call]) -> list[CallDelta]:
        """Count calls; returns those that the request allows."""
        first, self.count = self.count, self.count + len(calls)
        allowed = 1 if self.is_single else self.count
        return [CallDelta(index, call) for index, call in enumerate(calls, first) if index < allowed]


def calls_in(text: str, names: Collection[str]) -> list[Call]:
    """The calls that a text consists of, objects or lists of them; none if there is anything else in it."""
    values, text = list[Any](), text.strip()
    try:
        while text:
            value, end = json.JSONDecoder().raw_decode(text)
            values += value if isinstance(value, list) else [value]
            text = text[end:].lstrip(" \t\r\n;,")
    except (ValueError, RecursionError):
        return []
    calls = [call for value in values if (call := call_of(value, names))]
    return calls if len(calls) == len(values) else []


def call_of(value: Any, names: Collection[str]) -> Call | None:
    """The call that a JSON value stands for, if it names one of the functions."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or value["name"] not in names:
        return None
    arguments = arguments_of(value.get("arguments", value.get("parameters", {})))
    return None if arguments is None else Call(value["name"], json.dumps(arguments, ensure_ascii=False))
