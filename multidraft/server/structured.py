"""The form of an answer that a request asks for, as a grammar: `response_format`, vLLM's fields, and forced calls."""

import json
from functools import partial
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError, quote
from multidraft.sampling.grammar import Grammar, lark_of, schema_text
from multidraft.server.request_bodies import GenerationBody
from multidraft.server.tools import call_rules, forced_functions, json_rule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANY_OBJECT = {"type": "object"}
ANY_JSON: tuple[str, Any] = ("json_schema", {})  # of llama.cpp

STRUCTURED_KEYS = ("json", "regex", "choice", "grammar")  # the keys of vLLM's structured_outputs
SPACING_KEYS = ("whitespace_pattern", "disable_any_whitespace", "disable_additional_properties")
FORM_FIELDS = {  # other servers' fields, and the keys that they stand for
    **{f"guided_{kind}": kind for kind in STRUCTURED_KEYS},
    **{"regex": "regex", "ebnf": "grammar", "grammar": "grammar", "json_schema": "json"},
}
MAX_CHOICES = 1024
Form = dict[str, Any]  # one keyword of Grammar, or a `grammar` in Lark's form or in llama.cpp's


def grammar_of(
    body: GenerationBody, tokenizer: "PreTrainedTokenizerBase", thinking: bool | None = None
) -> Grammar | None:
    """The grammar of a request's answers, None if any text will do; raises AdviceError on an unsupported form."""
    grammar = partial(Grammar, tokenizer, thinking=thinking)
    (field, form), functions = answer_form(body), body.functions
    forced = forced_functions(body.tool_choice, functions)
    if not form and not forced:
        return None
    if body.ignore_eos:
        raise AdviceError("ignore_eos would go on behind the form that is asked for; leave one of them out")
    try:
        if forced:
            rules = call_rules({name: functions[name] for name in forced}, "call")
            return grammar(lark=f"start: call\n{rules}")
        if functions and body.tool_choice != "none":  # a call, or an answer
            if "json_schema" not in form:
                raise AdviceError('beside tools only a JSON schema is supported; use one, or tool_choice "none"')
            rules = f"start: answer | call\nanswer: {json_rule(form['json_schema'])}\n" + call_rules(functions, "call")
            return grammar(lark=rules)
        return grammar(lark=lark_of(form["grammar"])) if "grammar" in form else grammar(**form)
    except AdviceError as error:
        raise AdviceError(f"{'tools' if forced else field}: {error}") from None


def has_form(body: GenerationBody) -> bool:
    """Whether a request asks for a form."""
    return bool(answer_form(body)[1] or forced_functions(body.tool_choice, body.functions))


def answer_form(body: GenerationBody) -> tuple[str, Form]:
    """The field that asks for a form, and the form; an empty one for any text. At most one field may ask."""
    fields = {"response_format": body.response_format, "structured_outputs": body.structured_outputs}
    fields |= {name: getattr(body, name) for name in FORM_FIELDS}
    asking = [name for name, value in fields.items() if value not in (None, {}) or (name, value) == ANY_JSON]
    if len(asking) > 1:
        raise AdviceError(f"{asking[1]} and {asking[0]} both ask for a form; leave one of them out")
    if not asking:
        return "", {}
    (name,) = asking
    if name == "response_format":
        schema = answer_schema(body.response_format)
        return name, {} if schema is None else {"json_schema": schema}
    return name, form_of(name, *kind_of(name, fields[name]))


def kind_of(name: str, value: Any) -> tuple[str, Any]:
    """The kind of a form in one of vLLM's fields, and what it is made of; other keys of vLLM's only tune its search."""
    if name != "structured_outputs":
        return FORM_FIELDS[name], value
    keys = value if isinstance(value, dict) else {}
    for key in SPACING_KEYS:
        if keys.get(key) not in (None, False):
            raise AdviceError(f"structured_outputs.{key} is not supported: white space is fixed; leave it out")
    kinds = [
        kind for kind in (*STRUCTURED_KEYS, "json_object", "structural_tag") if keys.get(kind) not in (None, False)
    ]
    if kinds == ["json_object"]:
        return "json", ANY_OBJECT
    if len(kinds) != 1 or kinds[0] not in STRUCTURED_KEYS:
        raise AdviceError(
            f"structured_outputs is {quote(value)}; use an object with one of {', '.join(STRUCTURED_KEYS)}"
        )
    return kinds[0], value[kinds[0]]


def form_of(name: str, kind: str, value: Any) -> Form:
    """One of vLLM's forms; raises AdviceError on a value of another type."""
    if kind == "json":
        return {"json_schema": json.loads(schema_text(value if isinstance(value, str) else json.dumps(value), name))}
    if kind == "choice":
        if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES or not all(is_text(text) for text in value):
            raise AdviceError(f"{name} is {quote(value)}; use a list of 1 to {MAX_CHOICES} texts that are not empty")
        return {"lark": "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in value)}
    if not is_text(value):
        raise AdviceError(f"{name} is {quote(value)}; use a text that is not empty")
    return {kind: value}


def is_text(value: Any) -> bool:
    """Whether a value is a text with some characters."""
    return isinstance(value, str) and bool(value)


def answer_schema(response_format: Any) -> dict[str, Any] | None:
    """The JSON schema of `response_format`; None for any text."""
    kind = response_format.get("type") if isinstance(response_format, dict) else response_format
    if kind == "text":
        return None
    if kind not in ("json_object", "json_schema"):
        raise AdviceError(f"response_format has the type {quote(kind)}; use text, json_object or json_schema")
    form = response_format.get("json_schema")
    schema = (form if isinstance(form, dict) else response_format).get("schema")  # llama.cpp has it beside the type
    if kind == "json_object" and schema in (None, {}):
        return ANY_OBJECT
    if not isinstance(schema, dict):
        raise AdviceError(
            'response_format has no schema; use {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'
        )
    schema_text(schema, "response_format")  # checks its size
    return schema
