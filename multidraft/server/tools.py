"""Tools: the functions that a request offers, calls that are forced, and calls in earlier messages."""

import json
import re
from collections.abc import Collection
from typing import Any

from multidraft.errors import AdviceError, quote

FUNCTION_NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
MAX_TOOLS = 128
Json = dict[str, Any]


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
                f'tools has {quote(tool)}; use {{"type": "function", "function": {{"name": ..., "parameters": ...}}}} '
                "with a name of at most 64 letters, digits, dots, dashes and underscores"
            )
        parameters = function.get("parameters")
        if not isinstance(parameters, dict | None):
            raise AdviceError(f"tools gives {name} the parameters {quote(parameters)}; use a JSON schema")
        if name in functions:
            raise AdviceError(f"tools has {name} twice; leave one out")
        functions[name] = {"type": "object"} | (parameters or {})
    return functions


def forced_functions(tool_choice: Any, functions: Collection[str]) -> list[str]:
    """The functions of which the answer must call one; none if it need not call any."""
    if tool_choice in (None, "none", "auto"):
        return []
    if not functions:
        raise AdviceError(f"tool_choice is {quote(tool_choice)} and there are no tools; give some, or leave it out")
    if tool_choice == "required":
        return list(functions)
    function = tool_choice.get("function") if isinstance(tool_choice, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    if name not in [*functions]:
        raise AdviceError(
            f"tool_choice is {quote(tool_choice)}; use none, auto, required, or "
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
    from multidraft.sampling.grammar import check_properties, json_options

    check_properties(schema, "the JSON schema")
    return f"%json {json.dumps(schema | {'x-guidance': json_options()})}"


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
        raise AdviceError(f"messages has the tool_calls {quote(calls)}; use a list of calls")
    return message | {"tool_calls": [call_with_object(call) for call in calls]}


def call_with_object(call: Any) -> Json:
    """A call of an earlier message; raises AdviceError if it has no name, or its arguments are no JSON object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise AdviceError(
            f'messages has the call {quote(call)}; use {{"id": ..., "type": "function", "function": {{"name": ..., '
            '"arguments": "{...}"}}'
        )
    arguments = arguments_of(function.get("arguments", "{}"))
    if arguments is None:
        raise AdviceError(f"messages has a call of {function['name'][:64]} whose arguments are no JSON object; mend it")
    return call | {"function": function | {"arguments": arguments}}
