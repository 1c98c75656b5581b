"""`/v1/responses`: text in, text out, whole and as events, and what is refused; and the page of all routes."""

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from serving import check_refused, letters, served, service

from multidraft.models.prefix_models import TableModel, random_table
from multidraft.server.request_fields import FIELDS, IGNORED_ELSEWHERE

ADDRESS, SIZE = "/v1/responses", 6
BODY: dict[str, Any] = {"model": "toy", "input": "ab", "max_output_tokens": 9, "seed": 1}


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    """Tables whose tokens are letters; the first of them ends a text."""
    models = (TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2))
    toy = service(*models, letters(SIZE), prefill=4)
    toy.tokenizer.chat_template = "{% for message in messages %}{{ message.role[0] }}{{ message.content }}{% endfor %}"
    toy.ends = {chat: {0} for chat in (False, True)}
    with served(toy) as client:
        yield client


def response(client: httpx2.Client, **changes: Any) -> dict[str, Any]:
    answer = client.post(ADDRESS, json=BODY | changes)
    assert answer.status_code == 200, answer.text
    return answer.json()


def text(answer: dict[str, Any]) -> str:
    ((content,),) = [item["content"] for item in answer["output"]]
    return content["text"]


def stream_of(client: httpx2.Client, **changes: Any) -> list[dict[str, Any]]:
    with client.stream("POST", ADDRESS, json=BODY | changes | {"stream": True}) as answer:
        assert answer.status_code == 200, answer.read()
        blocks = "".join(answer.iter_text()).split("\n\n")
    assert blocks.pop() == ""
    pairs = [block.split("\n") for block in blocks]
    events = [json.loads(data.removeprefix("data: ")) for _, data in pairs]
    assert [kind for kind, _ in pairs] == [f"event: {event['type']}" for event in events]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_the_text_is_that_of_the_same_chat(client):
    messages = [{"role": "system", "content": "c"}, {"role": "user", "content": "ab"}]
    settings = {"temperature": 0.7, "top_p": 0.9}
    chat = client.post(
        "/v1/chat/completions", json={"model": "toy", "messages": messages, "max_tokens": 9, "seed": 1} | settings
    ).json()
    whole = response(client, instructions="c", **settings)
    assert text(whole) == chat["choices"][0]["message"]["content"]
    usage = chat["usage"]
    assert whole["usage"]["input_tokens"] == usage["prompt_tokens"]
    assert whole["usage"]["output_tokens"] == usage["completion_tokens"]
    assert whole["usage"]["total_tokens"] == usage["total_tokens"]
    assert (whole["object"], whole["error"], whole["instructions"]) == ("response", None, "c")
    assert {name: whole[name] for name in settings} == settings
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [{"role": "developer", "content": "c"}, {"type": "message", "role": "user", "content": parts}]
    assert text(response(client, input=items, **settings)) == text(whole)


def test_a_stream_tells_the_same_step_by_step(client):
    for seed, tokens in ((1, 9), (2, 40)):
        whole = response(client, seed=seed, max_output_tokens=tokens)
        first, second, added, part, *deltas, text_done, part_done, item_done, last = stream_of(
            client, seed=seed, max_output_tokens=tokens
        )
        kinds = [event["type"].removeprefix("response.") for event in (first, second, added, part)]
        assert kinds == ["created", "in_progress", "output_item.added", "content_part.added"]
        assert {event["type"] for event in deltas} == {"response.output_text.delta"}
        assert (
            "".join(event["delta"] for event in deltas) == text_done["text"] == part_done["part"]["text"] == text(whole)
        )
        assert last["type"] == f"response.{whole['status']}"
        assert last["response"]["output"] == [item_done["item"]]
        assert last["response"]["usage"] == whole["usage"]
        assert {event["item_id"] for event in (part, *deltas, text_done)} == {item_done["item"]["id"]}


def test_an_answer_that_is_cut_is_incomplete(client):
    cut, ended = response(client, max_output_tokens=1, seed=2), response(client, max_output_tokens=200)
    assert (cut["status"], cut["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (ended["status"], ended["incomplete_details"]) == ("completed", None)
    assert ended["output"][0]["status"] == "completed"


def test_an_error_in_a_stream_is_its_last_event():
    """A server that gives a request no time."""
    models = (TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2))
    with served(service(*models, letters(SIZE), request=0)) as client:
        check_refused(client.post(ADDRESS, json=BODY), 504)
        *_, last = stream_of(client)
        assert (last["type"], last["code"], last["error"]["code"]) == ("error", "504", 504)
        assert last["message"] == last["error"]["message"]


WRONG: list[dict[str, Any]] = [
    *(
        {name: "x"}
        for name, field in FIELDS.items()
        if field.fate == "honoured" and "responses" not in field.routes and name not in IGNORED_ELSEWHERE
    ),
    *({"input": value} for value in ([], None, 3, [3], [{}], [{"role": "user"}], [{"role": "tool", "content": "a"}])),
    *({"input": [{"role": "user", "content": value}]} for value in ([3], [{"type": "input_image"}], {})),
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"const": 7}}}},  # which no letters spell
    *({"input": [{"type": "function_call_output", "output": "x"}]}, {"text": {"format": "json"}}),
    *({"text": {"format": {"type": "json_schema"}}}, {"text": {"format": {"type": "xml"}}}, {"text": 3}),
    *({"text": {"verbosity": "low"}}, {"text": {"formt": {"type": "json_object"}}}),
    *({"max_output_tokens": 0}, {"max_output_tokens": 10**9}, {"temperature": -1}, {"top_p": 0}, {"model": "other"}),
]


@pytest.mark.parametrize("fields", WRONG, ids=lambda fields: ascii(str(fields))[:60])
def test_what_is_not_supported_is_refused_in_one_line(client, fields):
    for stream in False, True:
        check_refused(client.post(ADDRESS, json=BODY | fields | {"stream": stream}), 404 if "model" in fields else 400)
    known = dict(store=True, user="me", tools=[], tool_choice="auto", parallel_tool_calls=True, metadata={"a": "b"})
    assert response(client, **known, include=[], truncation="disabled")["metadata"] == {"a": "b"}


def test_the_page_of_routes_names_every_route_and_field_and_loads_nothing(client):
    page, schema = client.get("/docs"), client.get("/openapi.json").json()
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    for path, verbs in schema["paths"].items():
        assert f"{path}</code>" in page.text
        for route in verbs.values():
            content = route.get("requestBody", {"content": {"application/json": {"schema": {}}}})["content"]
            for name in content["application/json"]["schema"].get("properties", {}):
                assert f"<code>{name}</code>" in page.text
    assert "<script" not in page.text
    assert "http" not in page.text
