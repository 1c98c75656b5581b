"""Every field of the table of request fields changes the answer, is refused by name, or is said to be ignored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import httpx2
import pytest
from serving import check_refused, events, served, toy
from tokenizers.processors import TemplateProcessing

from multidraft.server.request_bodies import ChatBody, CompletionBody, TokenizeBody
from multidraft.server.request_fields import ADDRESSES, FIELDS, IGNORED_ELSEWHERE, IGNORED_HEADER, Route, markdown
from multidraft.server.responses import ResponsesBody

LETTERS, END = 'ab"cde', 5
TEMPLATE = (
    "{% for tool in tools or [] %}a{% endfor %}{{ x }}{{ reasoning_effort }}{% for document in documents or [] %}"
    "{{ document.text }}{% endfor %}{% for message in messages %}{{ message.content }}"
    "{% if not loop.last or message.role == 'user' %}e{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}dd{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "f"}}]
TALK = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "ba"}]
BASES: dict[Route, dict[str, Any]] = {
    "completions": {"model": "toy", "prompt": "ab", "max_tokens": 16, "seed": 1},
    "chat": {"model": "toy", "messages": TALK[:1], "max_tokens": 16, "seed": 1},
    "responses": {"model": "toy", "input": "ab", "max_output_tokens": 16, "seed": 1},
}
SCHEMA = {"enum": ["ab"]}
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
ENDS_AT_ONCE = {"logit_bias": {str(END): 100}}
GREEDY = {"temperature": 0, "ignore_eos": True}
CHANGES: dict[str, Any] = {  # a value that changes the answer, or what must stand beside it, and the value
    "temperature": 0,
    "top_p": 0.01,
    "top_k": 1,
    "min_p": 1,
    "typical_p": 0.01,
    "top_n_sigma": 0.01,
    "presence_penalty": (GREEDY | {"logit_bias": {"3": 1.5}}, 2),
    "frequency_penalty": (GREEDY, 2),
    "repetition_penalty": (GREEDY, 5.0),
    "logit_bias": {"3": 100},
    "seed": 2,
    "stop": [*LETTERS],
    "stop_token_ids": list(range(6)),
    "include_stop_str_in_output": ({"stop": [*LETTERS]}, True),
    "min_tokens": (ENDS_AT_ONCE, 4),
    "ignore_eos": (ENDS_AT_ONCE, True),
    "structured_outputs": {"regex": "ab"},
    "guided_json": SCHEMA,
    "guided_regex": "ab",
    "guided_choice": ["ab"],
    "guided_grammar": 'start: "ab"',
    "regex": "ab",
    "ebnf": 'root ::= "ab"',
    "grammar": 'root ::= "ab"',
    "json_schema": SCHEMA,
    "max_tokens": 1,
    "n": 2,
    "response_format": FORM,
    "truncate_prompt_tokens": 1,
    "truncation_side": ({"truncate_prompt_tokens": 1}, "right"),
    "prompt": "ba",
    "echo": True,
    "return_token_ids": True,
    "messages": TALK,
    "max_completion_tokens": 1,
    "top_logprobs": ({"logprobs": True}, 2),
    "tools": TOOLS,
    "tool_choice": ({"tools": TOOLS}, "none"),
    "chat_template_kwargs": {"x": "aaa"},
    "reasoning_effort": "abc",
    "documents": [{"text": "aba"}],
    "add_generation_prompt": False,
    "continue_final_message": ({"messages": TALK}, True),
    "input": "baa",
    "instructions": "ba",
    "max_output_tokens": 1,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}},
    "metadata": {"a": "b"},
}
BY_ROUTE: dict[tuple[str, Route], Any] = {
    ("logprobs", "completions"): 2,
    ("logprobs", "chat"): True,
    ("add_special_tokens", "completions"): False,
    ("add_special_tokens", "chat"): True,
}
ELSEWHERE = {  # fields whose effect other tests show: refused values, other forms of the whole response
    "model": "test_doors.py",
    "best_of": "below",
    "stream": "below",
    "stream_options": "test_api.py",
    "multidraft": "test_api.py",
    "parallel_tool_calls": "test_structured.py",
}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    """Letters and a quotation mark, one of which ends a text; the tokenizer puts a letter before every text."""
    service = toy(LETTERS, tokens_in_cache=400, context=60)
    service.tokenizer.backend_tokenizer.post_processor = TemplateProcessing("c $A", special_tokens=[("c", 3)])
    service.tokenizer.chat_template, service.tokenizer.eos_token = TEMPLATE, LETTERS[END]
    with served(service) as client:
        yield client


def answer(client: httpx2.Client, route: Route, **fields: Any) -> tuple[Any, dict[str, Any], httpx2.Response]:
    """What a request brings: texts and counts, and the response."""
    response = client.post(ADDRESSES[route], json=BASES[route] | fields)
    assert response.status_code == 200, response.text
    content = response.json()
    shown = {name: content.get(name) for name in ("choices", "usage", "output", "metadata")}
    for item in shown["output"] or []:
        item.pop("id")
    return shown, content["usage"], response


def cases(fate: str) -> list[tuple[str, Route]]:
    return [(name, route) for name, field in FIELDS.items() if field.fate == fate for route in ADDRESSES]


HONOURED = [(n, r) for n, r in cases("honoured") if r in FIELDS[n].routes and n not in ELSEWHERE]


@pytest.mark.parametrize(("name", "route"), HONOURED)
def test_a_field_that_is_honoured_changes_the_answer(client, name, route):
    value = BY_ROUTE.get((name, route), CHANGES.get(name))
    beside, value = value if isinstance(value, tuple) else ({}, value)
    changed, _, response = answer(client, route, **beside, **{name: value})
    assert changed != answer(client, route, **beside)[0]
    assert name not in response.headers.get(IGNORED_HEADER, "").split(", ")


@pytest.mark.parametrize(("name", "route"), [(n, r) for n, r in cases("honoured") if r not in FIELDS[n].routes])
def test_a_field_of_another_address_is_refused_by_name_or_said_to_be_ignored(client, name, route):
    response = client.post(ADDRESSES[route], json=BASES[route] | {name: "x"})
    if name in IGNORED_ELSEWHERE:
        assert response.headers[IGNORED_HEADER] == name
    else:
        check_refused(response)
        assert response.json()["error"]["message"].startswith(f"{name} is not supported here: it is for /v1/")


REFUSED_VALUES: dict[str, Any] = {"skip_special_tokens": False, "include_reasoning": False}
PENALTY = {"repetition_penalty": 2}  # without one, the window of penalties means nothing


@pytest.mark.parametrize(("name", "route"), cases("refused"))
def test_a_field_that_is_refused_is_named_with_the_reason(client, name, route):
    value = REFUSED_VALUES.get(name, ["x"])
    response = client.post(ADDRESSES[route], json=BASES[route] | PENALTY | {name: value})
    check_refused(response)
    assert response.json()["error"]["message"] == f"{name} is not supported: {FIELDS[name].about}; leave it out"
    off = True if name in REFUSED_VALUES else None if "budget" in name else -1 if name == "repeat_last_n" else 0
    assert IGNORED_HEADER not in answer(client, route, **{name: off})[2].headers


@pytest.mark.parametrize("route", ADDRESSES)
def test_a_field_may_have_the_name_of_any_part_of_our_own(client, route):
    names = [name for name in dir(ChatBody) if not name.startswith("__") and name not in FIELDS]
    unknown = {name: 1 for name in names if name not in ResponsesBody.model_fields}
    response = client.post(ADDRESSES[route], json=BASES[route] | unknown)
    assert "sent_fields" in unknown
    assert response.headers[IGNORED_HEADER].split(", ")[:3] == [*unknown][:3], response.text  # in their order


@pytest.mark.parametrize("route", ADDRESSES)
def test_fields_without_effect_are_named_in_a_header(client, route):
    plain = answer(client, route)[0]
    names = [name for name, field in FIELDS.items() if field.fate == "ignored"] + [
        "strange",
        "tempĕrature,\n",
        " ",
        "",
        "a b",
    ]
    for name in names:
        shown, _, response = answer(client, route, **{name: True if name == "store" else "x"})
        assert shown == plain
        assert unquote(response.headers[IGNORED_HEADER]) == (name or '""')
    many = answer(client, route, **dict.fromkeys(names, True), **{f"x{index}": 1 for index in range(100)})[2]
    assert many.headers[IGNORED_HEADER].endswith(", ...")
    assert IGNORED_HEADER not in answer(client, route, user=None, strange=None)[2].headers
    assert answer(client, route, user=0, temprature=0)[2].headers[IGNORED_HEADER] == "temprature"


RENAMED: dict[str, tuple[Any, dict[str, Any]]] = {
    "n_predict": (3, {"max_tokens": 3}),
    "max_new_tokens": (3, {"max_tokens": 3}),
    "min_new_tokens": (5, {"min_tokens": 5}),
    "repeat_penalty": (3.0, {"repetition_penalty": 3.0}),
    "no_stop_trim": (True, {"include_stop_str_in_output": True}),
    "n_cmpl": (2, {"n": 2}),
    "n_probs": (2, {"logprobs": True, "top_logprobs": 2}),
}


@pytest.mark.parametrize(("name", "route"), [(n, r) for n, r in cases("renamed") if r in FIELDS[n].routes])
def test_a_field_with_another_name_here_does_the_same(client, name, route):
    value, ours = RENAMED[name]
    ours = {"logprobs": 2} if (name, route) == ("n_probs", "completions") else ours
    base = {key: field for key, field in BASES[route].items() if key not in ours}
    answers = [client.post(ADDRESSES[route], json=base | fields).json() for fields in ({name: value}, ours)]
    assert len({str(each.get("choices") or each["output"][0]["content"]) for each in answers}) == 1
    other = {key: False if value is True else 4 for key in ours}
    response = client.post(ADDRESSES[route], json=base | {name: value} | other)
    check_refused(response)
    assert response.json()["error"]["message"].startswith(f"{name} and ")


def test_all_the_room_that_is_left_is_minus_one(client):
    """The context is 60 tokens, of which a prompt has three; a chat's prompt is longer."""
    for route, name in (("completions", "max_tokens"), ("chat", "max_tokens"), ("chat", "max_completion_tokens")):
        fields = {"ignore_eos": True, "max_tokens": None} | {name: -1}
        assert answer(client, route, **fields)[1]["total_tokens"] == 60
    assert answer(client, "completions", n_predict=-1, max_tokens=None, ignore_eos=True)[1]["total_tokens"] == 60
    long = {"prompt": "ab" * 50, "max_tokens": 10, "ignore_eos": True}
    check_refused(client.post(ADDRESSES["completions"], json=BASES["completions"] | long))
    assert answer(client, "completions", **long, truncate_prompt_tokens=-1)[1]["prompt_tokens"] == 50


def test_best_of_must_be_n_and_a_stream_comes_as_events(client):
    response = client.post(ADDRESSES["completions"], json=BASES["completions"] | {"best_of": 2})
    assert response.json()["error"]["message"].startswith("best_of is not supported")
    for route in ("completions", "chat"):
        assert len(events(client, ADDRESSES[route], BASES[route])) > 1


def test_an_answer_goes_on_with_the_last_message(client):
    """As vLLM and transformers render it; /tokenize shows the prompt, also with tools."""

    def read(**fields: Any) -> str:
        tokens = client.post("/tokenize", json={"messages": TALK} | fields).json()["tokens"]
        used = client.post(ADDRESSES["chat"], json=BASES["chat"] | {"messages": TALK} | fields).json()["usage"]
        assert used["prompt_tokens"] == len(tokens)
        return "".join(LETTERS[token] for token in tokens)

    assert read() == "abebadd"
    assert read(add_generation_prompt=False) == "abeba"
    assert read(continue_final_message=True) == "abeba"
    assert read(continue_final_message=True, add_generation_prompt=False) == "abeba"
    assert read(messages=TALK[:1], continue_final_message=True) == "ab"
    assert read(tools=TOOLS) == "aabebadd"
    assert read(tools=TOOLS, tool_choice="none") == "abebadd"
    assert read(chat_template_kwargs={"x": "ddd"}) == "dddabebadd"
    assert read(add_special_tokens=True) == "cabebadd"
    for address in ("/tokenize", ADDRESSES["chat"]):
        both = {"continue_final_message": True, "add_generation_prompt": True}
        check_refused(client.post(address, json=BASES["chat"] | both))
        check_refused(client.post(address, json=BASES["chat"] | {"chat_template": "ab"}))


def test_what_the_template_does_not_read_is_refused_or_said_to_be_ignored():
    service = toy()
    with served(service) as client:
        chat = BASES["chat"]
        response = client.post(ADDRESSES["chat"], json=chat | {"reasoning_effort": "low"})
        assert response.headers[IGNORED_HEADER] == "reasoning_effort"
        fields = {"chat_template_kwargs": {"enable_thinking": False}, "add_generation_prompt": False}
        response = client.post(ADDRESSES["chat"], json=chat | fields)
        assert response.headers[IGNORED_HEADER] == "chat_template_kwargs.enable_thinking, add_generation_prompt"
        response = client.post(ADDRESSES["chat"], json=chat | {"top_logprobs": 2})
        assert response.json()["error"]["message"].startswith("top_logprobs needs logprobs")
        response = client.post(ADDRESSES["chat"], json=chat | {"documents": [{"text": "a"}]})
        assert response.json()["error"]["message"].startswith("documents is not supported")


TEMPLATE_OF_WORDS = (
    "{# enable_thinking #}{% for message in messages %}{% set documents = message.role %}{{ message.content }}"
    "{% endfor %}{% if not style is defined %}{% set style = 'x' %}{% endif %}{{ style }}"
    "{% for m in messages %}{% generation %}a{% endgeneration %}{% break %}{% endfor %}"
)


def test_a_word_of_a_template_is_no_variable_of_it():
    """Nor is a name that it gives to a part of the conversation; of a variable with a default in it, it is one."""
    service = toy()
    service.tokenizer.chat_template = TEMPLATE_OF_WORDS
    with served(service) as client:
        unread = dict.fromkeys(("enable_thinking", "message", "role", "loop", "sty", "is"), 1)
        for address in ("/tokenize", ADDRESSES["chat"]):
            fields = {"chat_template_kwargs": unread | {"style": "ab"}, "reasoning_effort": "none"}
            response = client.post(address, json=BASES["chat"] | fields)
            names = [*(f"chat_template_kwargs.{name}" for name in unread), "reasoning_effort"]
            assert response.headers[IGNORED_HEADER].removeprefix("max_tokens, seed, ") == ", ".join(names)
            check_refused(client.post(address, json=BASES["chat"] | {"documents": [{"text": "a"}]}))
            for name in ("messages", "special", "self", "tokenizer", "conversation"):
                check_refused(client.post(address, json=BASES["chat"] | {"chat_template_kwargs": {name: []}}))
        service.tokenizer.chat_template = "{% if"
        check_refused(client.post(ADDRESSES["chat"], json=BASES["chat"] | {"documents": [{"text": "a"}]}))


def test_the_tokenizer_names_what_it_does_not_read_and_truncates(client):
    def tokens(ignored: str | None, **fields: Any) -> list[int]:
        response = client.post("/tokenize", json=fields | {"model": "toy", "user": None, "temperature": None})
        assert response.headers.get(IGNORED_HEADER) == ignored, response.text
        return response.json()["tokens"]

    for source in ({"prompt": "abde"}, {"messages": TALK}):
        whole = tokens(None, **source)
        assert tokens(None, **source, truncate_prompt_tokens=2) == whole[-2:]
        assert tokens(None, **source, truncate_prompt_tokens=2, truncation_side="right") == whole[:2]
        assert tokens(None, **source, truncate_prompt_tokens=-1) == whole
        assert tokens("strange, max_tokens", **source, strange=1, max_tokens=3, n=1) == whole
    unread = {"tools": TOOLS, "chat_template_kwargs": {"x": "a"}, "continue_final_message": True}
    assert tokens(", ".join(unread), prompt="ab", **unread) == tokens(None, prompt="ab")
    check_refused(client.post("/tokenize", json={"prompt": "ab", "truncate_prompt_tokens": 0}))


@pytest.mark.parametrize("route", ADDRESSES)
@pytest.mark.parametrize("one_by_one", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_null_is_taken_everywhere(client, route, one_by_one):
    plain, names = answer(client, route)[0], sorted(FIELDS.keys() - BASES[route].keys())
    for group in [[name] for name in names] if one_by_one else [names]:
        shown, _, response = answer(client, route, **dict.fromkeys(group))
        assert (shown, response.headers.get(IGNORED_HEADER)) == (plain, None), group


def test_more_tokens_than_come_are_no_least_number(client):
    """The 16 tokens of a completion without max_tokens, as in vLLM; all the room, or what is asked for."""
    for new_tokens, least in ((None, 17), (-1, 58), (20, 21)):
        fields = {"max_tokens": new_tokens} | ENDS_AT_ONCE
        _, usage, _ = answer(client, "completions", **fields, min_tokens=least - 1)
        assert usage["completion_tokens"] >= least - 1
        response = client.post(ADDRESSES["completions"], json=BASES["completions"] | fields | {"min_tokens": least})
        check_refused(response)
        assert response.json()["error"]["message"].startswith(f"min_tokens is {least}, above the {least - 1} new")


@pytest.mark.parametrize("form", [{"json_schema": {"schema": SCHEMA}}, {"schema": SCHEMA}, {"type": None}, {"a": 1}])
def test_a_form_without_a_type_is_refused(client, form):
    for route in ("completions", "chat"):
        response = client.post(ADDRESSES[route], json=BASES[route] | {"response_format": form})
        check_refused(response)
        assert response.json()["error"]["message"].startswith("response_format")


def test_pairs_and_schemas_as_llama_cpp_has_them(client):
    plain = answer(client, "completions", logit_bias={"3": 100})[0]
    assert answer(client, "completions", logit_bias=[[3, 100]])[0] == plain
    assert "c" not in answer(client, "completions", logit_bias=[[3, False]])[0]["choices"][0]["text"]
    for form in ({"type": "json_object", "schema": SCHEMA}, {"type": "json_schema", "schema": SCHEMA}):
        assert answer(client, "chat", response_format=form)[0]["choices"][0]["message"]["content"] == '"ab"e'
    response = client.post(
        ADDRESSES["chat"], json=BASES["chat"] | {"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}
    )
    assert response.json()["error"]["message"].startswith("structured_outputs.whitespace_pattern")


def test_the_table_has_every_field_of_the_bodies_and_the_page_prints_it():
    bodies = {"completions": CompletionBody, "chat": ChatBody, "responses": ResponsesBody}
    for route, body in bodies.items():
        assert {*body.model_fields} <= {n for n, field in FIELDS.items() if field.fate in ("honoured", "ignored")}, (
            route
        )
        honoured = {n for n, field in FIELDS.items() if field.fate == "honoured" and route in field.routes}
        if route != "responses":  # which passes the rest on to a chat
            assert honoured <= {*body.model_fields}
    assert {*TokenizeBody.model_fields} - {"return_token_strs"} <= {*FIELDS}
    assert {name for name, _ in HONOURED} == {*CHANGES, *(name for name, _ in BY_ROUTE)}
    page = Path(__file__).parents[2] / "docs" / "serving.md"
    assert markdown() in page.read_text(encoding="utf-8")
