"""Tools: the functions that a request offers, the calls in a model's text, and calls in earlier messages.

A call is read in the forms that models write: `<tool_call>` around a JSON object (Qwen, Hermes), or an answer that is
JSON from its first character (Llama 3). An object is a call if it has the name of a function that the request offers.
"""

import json
import re
import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from multidraft.errors import AdviceError, shown

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
MAX_TOOLS = 128
BEGIN, END = "<tool_call>", "</tool_call>"
PYTHON_TAG = "<|python_tag|>"  # of Llama 3, before a call
Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A function's name, and its arguments as the text of a JSON object."""

    name: str
    arguments: str
    id: str = field(default_factory=lambda: f"call_{uuid.uuid4().hex[:24]}")

    def as_json(self) -> Json:
        """The call in the form of OpenAI's API."""
        return {"id": self.id, "type": "function", "function": {"name": self.name, "arguments": self.arguments}}


def functions_of(tools: list[Json] | None) -> dict[str, Json]:
    """The JSON schema of each function's arguments, by its name; raises AdviceError on tools of another form."""
    if len(tools or ()) > MAX_TOOLS:
        raise AdviceError(f"tools has {len(tools or ())} entries; give at most {MAX_TOOLS}")
    functions: dict[str, Json] = {}
    for tool in tools or ():
        function = tool.get("function")
        function = function if isinstance(function, dict) else {}
        name = function.get("name")
        if tool.get("type") != "function" or not isinstance(name, str) or not FUNCTION_NAME.fullmatch(name):
            raise AdviceError(
                f'tools has {shown(tool)}; use {{"type": "function", "function": {{"name": ..., "parameters": ...}}}} '
                "with a name of at most 64 letters, digits, dots, dashes and underscores"
            )
        parameters = function.get("parameters")
        if not isinstance(parameters, dict | None):
            raise AdviceError(f"tools gives {name} the parameters {shown(parameters)}; use a JSON schema")
        if name in functions:
            raise AdviceError(f"tools has {name} twice; leave one out")
        functions[name] = {"type": "object"} | (parameters or {})
    return functions


def forced_functions(tool_choice: Any, functions: Collection[str]) -> list[str]:
    """The functions of which the answer must call one; none if it need not call any."""
    if tool_choice in (None, "none", "auto"):
        return []
    if not functions:
        raise AdviceError(f"tool_choice is {shown(tool_choice)} and there are no tools; give some, or leave it out")
    if tool_choice == "required":
        return list(functions)
    function = tool_choice.get("function") if isinstance(tool_choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in [*functions]:
        raise AdviceError(
            f"tool_choice is {shown(tool_choice)}; use none, auto, required, or "
            '{"type": "function", "function": {"name": ...}} with the name of one of the tools'
        )
    return [name]


def call_rules(functions: dict[str, Json], rule: str) -> str:
    """The rules of a Lark grammar for a call of one of these functions.

    Each schema is a text of its own, because its references count from its root.
    """
    lines = [f"{rule}: " + " | ".join(f"{rule}_{index}" for index in range(len(functions)))]
    for index, (name, parameters) in enumerate(functions.items()):
        before = json.dumps(f'{{"name": {json.dumps(name)}, "arguments": ')
        lines.append(f'{rule}_{index}: {before} {rule}_{index}_arguments "}}"')
        lines.append(f"{rule}_{index}_arguments: {json_rule(parameters)}")
    return "\n".join(lines)


def json_rule(schema: Json) -> str:
    """The right side of a rule of a Lark grammar for the texts of a schema."""
    from multidraft.sampling.grammar import json_options

    return f"%json {json.dumps(schema | {'x-guidance': json_options()})}"


class CallReader:
    """Separates calls from other text, which comes piece by piece. Text that may become a call is held back."""

    def __init__(self, names: Collection[str], is_single: bool = False):
        self.names, self.is_single = names, is_single
        self.held, self.is_plain, self.count = "", False, 0

    def add(self, text: str) -> tuple[str, list[Call]]:
        """Take a piece of text; returns the other text and the calls that are complete."""
        self.held += text
        if not self.is_plain:
            begin = self.held.lstrip().removeprefix(PYTHON_TAG).lstrip()
            if begin[:1] in ("", "{", "[") or PYTHON_TAG.startswith(begin):  # perhaps a call: only the end tells
                return "", []
            self.is_plain = True
        content, calls = "", list[Call]()
        while BEGIN in self.held and END in self.held.partition(BEGIN)[2]:
            before, _, after = self.held.partition(BEGIN)
            inside, _, self.held = after.partition(END)
            new_calls = calls_in(inside, self.names)
            content += before if new_calls else f"{before}{BEGIN}{inside}{END}"
            calls += self.counted(new_calls)
        complete, begin, after = self.held.partition(BEGIN)
        kept = begin + after if begin else complete[len(complete) - tag_overlap(complete) :]
        content += complete if begin else complete[: len(complete) - len(kept)]
        self.held = kept
        return ("" if self.count and not content.strip() else content), calls

    def close(self) -> tuple[str, list[Call]]:
        """The text that is held back, or the calls in it."""
        text, self.held = self.held, ""
        inside = text.strip().removeprefix(PYTHON_TAG).removeprefix(BEGIN)  # some models leave the closing tag out
        if calls := self.counted(calls_in(inside, self.names)):
            return "", calls
        return text, []

    def counted(self, calls: list[Call]) -> list[Call]:
        """The calls that the request allows."""
        calls = calls[: max(1 - self.count, 0)] if self.is_single else calls
        self.count += len(calls)
        return calls


def tag_overlap(text: str) -> int:
    """The number of last characters that may begin a tag."""
    return next(
        (length for length in range(min(len(text), len(BEGIN) - 1), 0, -1) if BEGIN.startswith(text[-length:])), 0
    )


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


def arguments_of(arguments: Any) -> Json | None:
    """The arguments of a call, which may be the text of an object; None if they are no object."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError):
            return None
    return arguments if isinstance(arguments, dict) else None


def with_call_objects(message: Json) -> Json:
    """A message whose calls have objects for arguments, as chat templates expect; clients send their text."""
    calls = message.get("tool_calls")
    if not calls:
        return {name: value for name, value in message.items() if name != "tool_calls"}
    if not isinstance(calls, list):
        raise AdviceError(f"messages has the tool_calls {shown(calls)}; use a list of calls")
    return message | {"tool_calls": [call_with_object(call) for call in calls]}


def call_with_object(call: Any) -> Json:
    """A call of an earlier message; raises AdviceError if it has no name, or its arguments are no JSON object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise AdviceError(
            f'messages has the call {shown(call)}; use {{"id": ..., "type": "function", "function": {{"name": ..., '
            '"arguments": "{...}"}}'
        )
    arguments = arguments_of(function.get("arguments", "{}"))
    if arguments is None:
        raise AdviceError(f"messages has a call of {function['name'][:64]} whose arguments are no JSON object; mend it")
    return call | {"function": function | {"arguments": arguments}}
