"""The form of an answer that a request asks for, as a grammar: `response_format`, and calls that are forced."""

from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError, shown
from multidraft.sampling.grammar import Grammar, schema_text
from multidraft.server.bodies import GenerationBody
from multidraft.server.tools import call_rules, forced_functions, json_rule

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

ANY_OBJECT = {"type": "object"}


def grammar_of(body: GenerationBody, tokenizer: "PreTrainedTokenizerBase") -> Grammar | None:
    """The grammar of a request's answers, None if any text will do; raises AdviceError on an unsupported form."""
    schema, functions = answer_schema(body.response_format), body.functions
    forced = forced_functions(body.tool_choice, functions)
    if schema is None and not forced:
        return None
    if body.ignore_eos:
        raise AdviceError("ignore_eos would go on behind the form that is asked for; leave one of them out")
    field = "tools" if forced else "response_format"
    try:
        if forced:
            rules = call_rules({name: functions[name] for name in forced}, "call")
            return Grammar(tokenizer, lark=f"start: call\n{rules}")
        assert schema is not None
        if functions and body.tool_choice != "none":  # a call, or an answer
            rules = f"start: answer | call\nanswer: {json_rule(schema)}\n" + call_rules(functions, "call")
            return Grammar(tokenizer, lark=rules)
        return Grammar(tokenizer, schema)
    except AdviceError as error:
        raise AdviceError(f"{field}: {error}") from None


def answer_schema(response_format: Any) -> dict[str, Any] | None:
    """The JSON schema of `response_format`; None for any text."""
    kind = response_format.get("type") if isinstance(response_format, dict) else response_format
    if kind in (None, "text"):
        return None
    if kind == "json_object":
        return ANY_OBJECT
    if kind != "json_schema":
        raise AdviceError(f"response_format is {shown(kind)}; its type may be text, json_object or json_schema")
    form = response_format.get("json_schema")
    schema = form.get("schema") if isinstance(form, dict) else None
    if not isinstance(schema, dict):
        raise AdviceError(
            'response_format has no schema; use {"type": "json_schema", "json_schema": {"name": ..., "schema": {...}}}'
        )
    schema_text(schema, "response_format")  # checks its size
    return schema
