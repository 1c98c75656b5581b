"""Answers of a form that a request asks for, and calls of tools: whole, streamed, and what is refused."""

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from serving import check_refused, events, served, service

from multidraft.sampling.grammar import MAX_GRAMMAR_CHARACTERS
from multidraft.server.calls import Call, CallReader, ThoughtReader, calls_of
from multidraft.server.tools import MAX_TOOLS
from multidraft.zoo import load_pair

CHATS, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WEATHER = {"type": "object", "properties": {"city": {"enum": ["Rome", "Oslo"]}}, "required": ["city"]}
WEATHER |= {"additionalProperties": False}
CLOCK = {"$defs": {"zone": {"enum": ["CET", "UTC"]}}, "properties": {"zone": {"$ref": "#/$defs/zone"}}}
CLOCK |= {"required": ["zone"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": WEATHER}},
    {"type": "function", "function": {"name": "clock", "parameters": CLOCK}},
]
CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "Once"}], "max_tokens": 120, "seed": 3}
TEMPLATE = (
    "{% for tool in tools or [] %}{{ tool.function.name }} {% endfor %}{% for message in messages %}"
    "{{ message.content }}{% for call in message.tool_calls or [] %}{{ call.function.arguments.city }}{% endfor %}"
    "{% endfor %}"
)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    """The embedded pair, which knows nothing of JSON, and a template that shows tools and calls."""
    pair = load_pair()
    pair.tokenizer.chat_template = TEMPLATE
    with served(service(pair.target, pair.draft, pair.tokenizer, tree="2x1", context=400)) as client:
        yield client


def form(schema: Any, kind: str = "json_schema") -> dict[str, Any]:
    return {"response_format": {"type": kind, kind: {"name": "answer", "schema": schema, "strict": True}}}


def choice(client: httpx2.Client, **changes: Any) -> dict[str, Any]:
    response = client.post(CHATS, json=CHAT | changes)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]


def joined(client: httpx2.Client, **changes: Any) -> dict[str, Any]:
    """The message and finish reason that a client puts together of a stream."""
    content, calls, reason = "", dict[int, dict](), None
    for event in events(client, CHATS, CHAT | changes):
        (part,) = event["choices"]
        content, reason = content + (part["delta"].get("content") or ""), part["finish_reason"] or reason
        for delta in part["delta"].get("tool_calls", ()):
            index = delta.pop("index")
            if index in calls:  # its arguments go on
                assert [*delta] == ["function"]
                assert [*delta["function"]] == ["arguments"]
                calls[index]["function"]["arguments"] += delta["function"]["arguments"]
                calls[index]["pieces"] += 1
            else:
                calls[index] = delta | {"pieces": 1}
    return {"content": content, "calls": [calls[index] for index in sorted(calls)], "finish_reason": reason}


def without_ids(calls: list[dict]) -> list[dict]:
    assert len({call["id"] for call in calls}) == len(calls)
    assert all(call["id"].startswith("call_") and call["type"] == "function" for call in calls)
    return [call["function"] for call in calls]


@pytest.mark.parametrize("temperature", [0, 1])
def test_an_answer_follows_its_schema_whole_and_streamed(client, temperature):
    asked = form({"type": "array", "items": WEATHER, "minItems": 1, "maxItems": 1}) | {"temperature": temperature}
    whole = choice(client, **asked)
    assert {entry["city"] for entry in json.loads(whole["message"]["content"])} <= {"Rome", "Oslo"}
    assert whole["finish_reason"] == "stop"
    assert "tool_calls" not in whole["message"]
    stream = joined(client, **asked)
    assert (stream["content"], stream["finish_reason"]) == (whole["message"]["content"], "stop")


def test_any_object_answers_of_several_choices_and_completions(client):
    response = client.post(COMPLETIONS, json=dict(model="toy", prompt="Once", n=2, max_tokens=60, **form(WEATHER)))
    assert all("city" in json.loads(answer["text"]) for answer in response.json()["choices"])
    answer = choice(client, response_format={"type": "json_object"}, max_tokens=12, temperature=0)
    assert answer["message"]["content"].lstrip().startswith("{")


CHOICES = ["Rome", 'say "Oslo"']
VLLM_FORMS: dict[str, tuple[Any, str]] = {  # of a kind of form: its value, and a regular expression for the answer
    "json": (WEATHER, r'\s*{\s*"city"\s*:\s*"(Rome|Oslo)"\s*}'),
    "regex": ("(ab|cd){2}", "(ab|cd){2}"),
    "choice": (CHOICES, "|".join(CHOICES)),
    "grammar": ('start: "ab" (c | "d")\nc: "c"+ "e"', "abc+e|abd"),
}
GBNF = 'root ::= "ab" (c | "d")\nc ::= "c"+ "e"'


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        *(({f"guided_{kind}": value}, kind) for kind, (value, _) in VLLM_FORMS.items()),
        *(
            ({"structured_outputs": {"json": None, "regex": None, "json_object": False} | {kind: value}}, kind)
            for kind, (value, _) in VLLM_FORMS.items()
        ),
        ({"guided_json": json.dumps(WEATHER), "response_format": None, "structured_outputs": {}}, "json"),
        ({"guided_grammar": GBNF}, "grammar"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_vllms_names_for_a_form(client, fields, kind):
    shape = VLLM_FORMS[kind][1]
    assert re.fullmatch(shape, choice(client, **fields)["message"]["content"])
    response = client.post(COMPLETIONS, json=dict(model="toy", prompt="Once", n=3, max_tokens=90) | fields)
    assert all(re.fullmatch(shape, answer["text"]) for answer in response.json()["choices"])


def test_vllms_name_for_any_object_and_forms_beside_tools(client):
    answer = choice(client, structured_outputs={"json_object": True}, max_tokens=12, temperature=0)
    assert answer["message"]["content"].lstrip().startswith("{")
    beside = choice(client, guided_regex="ab", tools=TOOLS, tool_choice="none")
    assert (beside["message"]["content"], beside["finish_reason"]) == ("ab", "stop")
    either = choice(client, guided_json=WEATHER, tools=TOOLS)
    assert either["finish_reason"] == "tool_calls" or "city" in json.loads(either["message"]["content"])


def test_an_answer_that_is_cut_says_so(client):
    answer = choice(client, max_tokens=3, **form(WEATHER))
    assert answer["finish_reason"] == "length"
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer["message"]["content"])
    cut = choice(client, max_tokens=3, tools=TOOLS, tool_choice="required")
    assert cut["finish_reason"] == "length"
    assert "tool_calls" not in cut["message"]
    assert cut["message"]["content"]


@pytest.mark.parametrize("tool", ["weather", "clock", None])
def test_a_forced_call_has_arguments_of_its_schema_whole_and_streamed(client, tool):
    named = {"type": "function", "function": {"name": tool}} if tool else "required"
    whole = choice(client, tools=TOOLS, tool_choice=named)
    assert (whole["finish_reason"], whole["message"]["content"]) == ("tool_calls", None)
    (function,) = without_ids(whole["message"]["tool_calls"])
    assert function["name"] in ([tool] if tool else ["weather", "clock"])
    allowed = {"weather": {"city": ["Rome", "Oslo"]}, "clock": {"zone": ["CET", "UTC"]}}[function["name"]]
    assert all(value in allowed[name] for name, value in json.loads(function["arguments"]).items())
    stream = joined(client, tools=TOOLS, tool_choice=named)
    assert (stream["finish_reason"], stream["content"]) == ("tool_calls", "")
    assert without_ids(stream["calls"]) == [function]
    assert all(call["pieces"] > 2 for call in stream["calls"])  # a piece with the name, and more of them for arguments


def test_with_tools_and_a_schema_the_answer_is_a_call_or_follows_the_schema(client):
    kinds = set[str]()
    for seed in range(8):
        answer = choice(client, tools=TOOLS, seed=seed, temperature=2, **form(WEATHER))
        kinds.add(answer["finish_reason"])
        assert answer["finish_reason"] == "tool_calls" or "city" in json.loads(answer["message"]["content"])
        if len(kinds) == 2:
            break
    assert kinds == {"stop", "tool_calls"}  # with fixed seeds, some of each
    assert "city" in choice(client, tools=TOOLS, tool_choice="none", **form(WEATHER))["message"]["content"]


def test_tools_and_earlier_calls_reach_the_template(client):
    plain = client.post(CHATS, json=CHAT | {"max_tokens": 1}).json()["usage"]["prompt_tokens"]
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
    conversation = [*CHAT["messages"], {"role": "assistant", "content": None, "tool_calls": [call]}]
    conversation += [{"role": "tool", "tool_call_id": "call_1", "content": "rain"}]
    whole = client.post(CHATS, json=CHAT | {"max_tokens": 1, "messages": conversation})
    assert whole.status_code == 200, whole.text
    expected = client.post("/tokenize", json={"prompt": "OnceOslorain", "add_special_tokens": False}).json()["count"]
    assert whole.json()["usage"]["prompt_tokens"] == expected > plain
    offered = client.post(CHATS, json=CHAT | {"max_tokens": 1, "tools": TOOLS, "parallel_tool_calls": False})
    assert offered.json()["usage"]["prompt_tokens"] > plain
    null = [*CHAT["messages"], {"role": "assistant", "content": "ab", "tool_calls": None}]
    assert client.post(CHATS, json=CHAT | {"max_tokens": 1, "messages": null}).status_code == 200


DEEP = {"type": "array"}
for _ in range(150):
    DEEP = {"type": "array", "items": DEEP}
BAD_SCHEMAS: list[Any] = [
    *(3, [], "x", None, {"type": "banana"}, {"$ref": "#"}, {"$ref": "http://a.b/c"}, {"not": {}}, DEEP),
    *({"enum": ["x" * MAX_GRAMMAR_CHARACTERS]}, {"pattern": "((", "type": "string"}, {"format": "x", "type": "string"}),
]
TOOL = {"type": "function", "function": {"name": "f"}}
BAD_FIELDS: list[dict[str, Any]] = [
    *(form(schema) for schema in BAD_SCHEMAS),
    *({"response_format": value} for value in ({"type": "xml"}, {"type": 1}, "json", {"type": "json_schema"}, [1])),
    *({"guided_json": value} for value in (3, "{", [], {"type": "banana"})),
    *({"guided_regex": value} for value in (3, "((", "", ["a"])),
    *({"guided_choice": value} for value in (3, [], [""], [1], "ab", ["x" * MAX_GRAMMAR_CHARACTERS], ["a"] * 5000)),
    *({"guided_grammar": value} for value in (3, "", "start: %%", "root ::= (", "root ::= other", "x" * 99_999)),
    *({"structured_outputs": value} for value in (3, {"x": 1}, {"json": {}, "regex": "a"}, {"structural_tag": "a"})),
    {"guided_regex": "a", "response_format": {"type": "json_object"}},
    form({"type": "object", "properties": {f"{number:x}": {} for number in range(4001)}}),
    {"guided_regex": "a", "tools": TOOLS},
    {"guided_regex": "a", "ignore_eos": True},
    {"tools": [{}]},
    {"tools": [{"type": "function", "function": {"name": ""}}]},
    {"tools": [{"type": "function", "function": {"name": "a b"}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": []}}]},
    {"tools": [TOOL, TOOL]},
    {"tools": [{"type": "function", "function": {"name": f"f{i}"}} for i in range(MAX_TOOLS + 1)]},
    {"tools": TOOLS, "tool_choice": "always"},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "other"}}},
    {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": ["x"]}}},
    {"tool_choice": "required"},
    {"tools": [TOOL | {"function": {"name": "f", "parameters": {"type": 3}}}], "tool_choice": "required"},
    {"tools": TOOLS, "tool_choice": "required", "ignore_eos": True},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": "f"}]},
    {"messages": [{"role": "assistant", "content": "", "tool_calls": [{"function": {}}]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "[1]"}}]}]},
    {"messages": [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}]},
]


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda fields: ascii(str(fields))[-60:])
def test_what_is_wrong_is_refused_in_one_line_and_the_next_is_answered(client, fields):
    for stream in False, True:
        response = client.post(CHATS, json=CHAT | fields | {"stream": stream})
        check_refused(response)
        assert response.json()["error"]["message"].startswith(tuple(fields))
    assert client.post(CHATS, json=CHAT | {"max_tokens": 1}).status_code == 200


def test_a_form_that_leaves_no_token_ends_its_answer_alone(client):
    """A reference to itself, which shows after some tokens; and an end that may not come yet."""
    inner = {"type": "object", "properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"]}
    endless = inner | {"$defs": {"x": {"$ref": "#/$defs/x"}}, "additionalProperties": False}
    for fields in form(endless), form({"const": 7}) | {"min_tokens": 50}:
        check_refused(client.post(CHATS, json=CHAT | fields))
        *_, last = events(client, CHATS, CHAT | fields)
        assert last["error"]["code"] == 400
    assert client.get("/health").json() == {"status": "ok", "faults": 0}


ONE, TWO = Call("weather", '{"city": "Oslo"}'), Call("clock", "{}")
OBJECT, OTHER = '{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name": "clock", "parameters": {}}'
BRACES, ORDERED = r"}\"{\\", '{"arguments": {"city": "Oslo"}, "name": "weather"}'
TEXTS = {  # what a model writes, the text without calls, the calls
    "nothing": ("", "", []),
    "text": ("Hello <tool", "Hello <tool", []),
    "Qwen": (f"<tool_call>\n{OBJECT}\n</tool_call>\n<tool_call>\n{OTHER}\n</tool_call>", "", [ONE, TWO]),
    "text before": (f"Let me see.\n<tool_call>{OBJECT}</tool_call>", "Let me see.\n", [ONE]),
    "left open": (f"So: <tool_call>{OBJECT}", "So: ", [ONE]),
    "Llama 3": (f" {OBJECT}", "", [ONE]),
    "Llama 3 with its tag": (f"<|python_tag|>{OBJECT}; {OTHER}", "", [ONE, TWO]),
    "a list": (f"[{OBJECT}, {OTHER}]", "", [ONE, TWO]),
    "arguments as text": (json.dumps({"name": "weather", "arguments": ONE.arguments}), "", [ONE]),
    "another function": ('{"name": "cook", "arguments": {}}', '{"name": "cook", "arguments": {}}', []),
    "JSON that is no call": ('{"answer": 7}', '{"answer": 7}', []),
    "torn before the arguments": (OBJECT[:30], OBJECT[:30], []),
    "torn in the arguments": (OBJECT[:-3], "", [Call("weather", '{"city": "Oslo')]),
    "braces in strings": (OBJECT.replace("Oslo", BRACES), "", [Call("weather", ONE.arguments.replace("Oslo", BRACES))]),
    "other fields behind": (OBJECT[:-1] + ', "id": {"a": "}"}}' + f"; {OTHER}", "", [ONE, TWO]),
    "another order": (ORDERED, "", [ONE]),
    "text behind": (f"<tool_call>{OBJECT}</tool_call>\nDone.", "\nDone.", [ONE]),
    "two between tags": (f"<tool_call>{OBJECT}\n{OTHER}</tool_call>", "", [ONE, TWO]),
    "two in another order": (f"<tool_call>{OBJECT}{ORDERED}</tool_call> <tool_call>", " <tool_call>", [ONE, ONE]),
    "no JSON between tags": ("<tool_call>x</tool_call> y", "<tool_call>x</tool_call> y", []),
    "arguments that are no object": ('{"name": "clock", "arguments": 3}', '{"name": "clock", "arguments": 3}', []),
    "text between": (f"<tool_call>{OBJECT}</tool_call>\nDone. <tool_call>{ORDERED}</tool_call>\n", "\nDone. ",
                     [ONE, ONE]),
    "space around": (f"\n\n<tool_call>\n{OBJECT}\n</tool_call>\n \n", "", [ONE]),
    "text with space, space behind": (f"I see. \n\n<tool_call>{OBJECT}</tool_call> ok\n", "I see. \n\n ok\n", [ONE]),
    "separators first": (f";{OBJECT}", f";{OBJECT}", []),
    "both tags": (f"<|python_tag|><tool_call>{ORDERED}</tool_call>", "", [ONE]),
    "an end alone": (f"</tool_call> {OBJECT}", f"</tool_call> {OBJECT}", []),
    "space alone": (" \n\n", " \n\n", []),
    "too deep": ("[" * 100_000, "[" * 100_000, []),
}  # fmt: skip


def cuts(text: str) -> Iterator[list[str]]:
    """A text whole, cut at every place, in pieces of 7, and in single characters; a long one in pieces alone."""
    size = len(text) // 100
    yield [text]
    for place in range(1, len(text) if size < 10 else 0):
        yield [text[:place], text[place:]]
    for step in (max(7, size), max(1, size)):
        yield [text[place : place + step] for place in range(0, len(text), step)] or [text]


@pytest.mark.parametrize("kind", TEXTS)
def test_calls_are_found_wherever_the_text_is_cut(kind):
    text, content, calls = TEXTS[kind]
    for pieces in cuts(text):
        reader = CallReader(["weather", "clock"])
        parts = [reader.add(piece) for piece in pieces] + [reader.close()]
        assert "".join(part for part, _ in parts) == content
        all_calls = calls_of(delta for _, deltas in parts for delta in deltas)
        assert [(call.name, call.arguments) for call in all_calls] == [(call.name, call.arguments) for call in calls]
        single = CallReader(["weather", "clock"], is_single=True)
        assert len(calls_of(single.add(text)[1] + single.close()[1])) == min(len(calls), 1)
        assert reader.is_torn == (kind == "torn in the arguments")


THOUGHTS = {  # what a model writes, whether the prompt has begun to think, the thought, the answer
    "none": ("Hello <think> you", False, "", "Hello <think> you"),
    "a call that is thought of": (f"<think>\n<tool_call>{OBJECT}</tool_call></think>\n\nNo.", False,
                                  f"\n<tool_call>{OBJECT}</tool_call>", "\n\nNo."),
    "begun by the prompt": (f"{OBJECT}\n</think>Yes", True, f"{OBJECT}\n", "Yes"),
    "without an end": (f"<think>{OBJECT}</thin", False, f"{OBJECT}</thin", ""),
    "behind space": ("\n <think>a</think>b", False, "a", "b"),
    "a beginning of a tag": ("\n<thin", False, "", "\n<thin"),
    "space": (" \n", False, "", " \n"),
    "nothing at all": ("", True, "", ""),
    "two": ("<think>a</think><think>b</think>", False, "a", "<think>b</think>"),
}  # fmt: skip


@pytest.mark.parametrize("kind", THOUGHTS)
def test_thoughts_are_separated_wherever_the_text_is_cut(kind):
    text, is_open, thought, answer = THOUGHTS[kind]
    for pieces in cuts(text):
        for keeps_tags in True, False:
            reader = ThoughtReader(is_open, keeps_tags)
            last = [index == len(pieces) - 1 for index in range(len(pieces))]
            parts = [reader.add(piece, is_last) for piece, is_last in zip(pieces, last, strict=True)]
            thoughts, answers = ("".join(column) for column in zip(*parts, strict=True))
            assert answers == answer
            assert thoughts + answers == text if keeps_tags else thoughts == thought
