"""Bad input and hard times over HTTP: each request gets a clean answer, and the next one is served as before."""

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import GOOD, MAX_WAIT_SECONDS, NUM_LETTERS, check_refused, events, served, toy, until

from multidraft.server.app import build
from multidraft.server.request_bodies import ChatBody, CompletionBody

JSON = {"content-type": "application/json"}
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "abc"}], "max_tokens": 3, "logprobs": True}
BODIES = [b"", b"{", b"null", b"[]", b"1", b"\xff\xfe\xff", b"[" * 100_000, b'{"a":' * 40_000] + [
    b'{"model": "toy", "prompt": ' + prompt
    for prompt in (b"[" + b"[1]," * 70_000 + b"[1]]}", b'"\\ud800"}', b'"a", "max_tokens": ' + b"9" * 5000 + b"}")
]
LONG = ["a"] * 200, "a" * 2000, ["x", *[1.5] * 30_000]
WRONG: dict[str, list[Any]] = {  # by field
    "model": [None, 1],
    "prompt": [None, "", [], [[]], [""], [1, "a"], [[1], 2], {}, [-1], [NUM_LETTERS], [10**30], *LONG],
    "max_tokens": [-2, 0, 10**9, 10**30, "many", 1.5],
    "min_tokens": [-1, 4],
    "temperature": [-1, 1e-9, 1e300, "hot", float("nan"), float("inf")],
    "top_p": [0, 1.5],
    "top_k": [-2, 10**30],
    "min_p": [2],
    "top_n_sigma": [-2, 101, "x"],
    "presence_penalty": [3],
    "frequency_penalty": [-3],
    "repetition_penalty": [0, 1e-300, 1e-39],
    "logit_bias": [{"x": 1}, {"1": 1e9}, {str(NUM_LETTERS): 1}, [1], {str(token): 0 for token in range(2000)}],
    "seed": ["x", 10**30],
    "n": [0, 1000, 10**30],
    "logprobs": [-1, 1000],
    "stop": ["", [""], [1], ["a"] * 100, "a" * 5000],
    "stop_token_ids": [[NUM_LETTERS], 1],
    "stream": ["maybe"],
    "stream_options": [1],
}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
WRONG_CHATS: dict[str, list[Any]] = {
    "messages": [[], None, "hello", [1], [{}], [{"role": 1, "content": "a"}]]
    + [[{"role": "user", "content": content}] for content in (1, [IMAGE], [1])],
    "tool_choice": [{"type": "function", "function": {"name": "f"}}],
    "tools": ["all"],
    "top_logprobs": [1000],
    "chat_template_kwargs": [{"tokenize": True}],
    "max_tokens": [0],
    "max_completion_tokens": [0],
}


CASES = [
    (address, base | {name: value})
    for address, base, wrong in (("/v1/completions", GOOD, WRONG), ("/v1/chat/completions", CHAT, WRONG_CHATS))
    for name, values in wrong.items()
    for value in values
]


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with served(toy(body=300_000, tokens_in_cache=1000)) as client:
        yield client


@pytest.mark.parametrize("body", BODIES, ids=lambda body: ascii(body[:50]))
def test_bodies_that_are_none(client, body):
    for address in ("/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"):
        check_refused(client.post(address, content=body, headers=JSON))


@pytest.mark.parametrize(("address", "body"), CASES, ids=lambda value: ascii(str(value))[-60:])
def test_requests_that_make_no_sense(client, address, body):
    check_refused(client.post(address, content=json.dumps(body), headers=JSON))  # which writes NaN, too


def test_what_is_not_there(client):
    check_refused(client.post("/v1/completions", json=GOOD | {"model": "other"}), 404)
    nameless = client.post("/v1/completions", json={name: value for name, value in GOOD.items() if name != "model"})
    check_refused(nameless)
    assert nameless.json()["error"]["message"] == "model: Field required; see /v1/models"
    check_refused(client.get("/v1/models/other"), 404)
    check_refused(client.get("/v2"), 404)
    response = client.get("/v1/completions")
    check_refused(response, 405)
    assert response.json()["error"]["message"] == "/v1/completions takes POST, not GET; see /docs"
    assert response.headers["allow"] == "POST"
    check_refused(client.post("/detokenize", json={"tokens": [NUM_LETTERS]}))
    check_refused(client.post("/tokenize", json={}))


def test_a_body_that_is_too_large(client):
    """Said to be so, or found to be so."""
    long = json.dumps(GOOD | {"user": "x" * 400_000}).encode()
    for content in long, iter([long]):
        check_refused(client.post("/v1/completions", content=content, headers=JSON), 413)


def test_fields_that_nobody_knows_are_tolerated(client):
    known = {"stop": None, "user": "me", "tools": [], "response_format": {"type": "text"}, "strange": {"a": [1]}}
    for address, body in ("/v1/completions", GOOD), ("/v1/chat/completions", CHAT | {"tool_choice": "auto"}):
        assert client.post(address, json=body | known).status_code == 200


NUMBERS = st.one_of(st.integers(), st.floats(), st.sampled_from([0, 1, 2, 0.5, -1, 2**31, 2**63]))
PLAIN = st.none() | st.booleans() | NUMBERS | st.text(max_size=5)
LISTS = st.lists(PLAIN, max_size=3) | st.dictionaries(st.text(max_size=3), PLAIN, max_size=2)
VALUES = PLAIN | LISTS | st.lists(LISTS, max_size=2)
FIELDS = sorted({*CompletionBody.model_fields, *ChatBody.model_fields, "suffix"} - {"model"})
SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.filterwarnings("ignore:Do not use the `random` module")  # which the server's thread does meanwhile
@pytest.mark.parametrize(("address", "base"), [("/v1/completions", GOOD), ("/v1/chat/completions", CHAT)])
def test_random_bodies_get_an_answer_or_a_refusal(client, address, base):
    @settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=SUPPRESSED, database=None)
    @given(st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4))
    def run(change: dict) -> None:
        response = client.post(address, content=json.dumps(base | change).encode(), headers=JSON)
        assert response.status_code == 200 or not check_refused(response)
        assert '"code": 500' not in response.text

    run()


# Hard times


def test_clients_that_vanish_leave_no_row_behind(caplog):
    """In a stream, while a whole answer is computed, before the body has come, and while waiting in the queue."""
    made_service = toy(tokens_in_cache=200_000, rows=2)
    with served(made_service) as client:
        body = GOOD | {"max_tokens": 20_000}
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            next(response.iter_text())
        for request in (body, body, body):
            with pytest.raises(httpx2.ReadTimeout):
                client.post("/v1/completions", json=request, timeout=0.1)
        raw = socket.create_connection((client.base_url.host, client.base_url.port))
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        raw.close()
        until(lambda: not made_service.engine.batch.requests)
        assert client.post("/v1/completions", json=GOOD).status_code == 200
    assert not [record for record in caplog.records if record.exc_info]


def test_a_client_that_sends_slowly_is_answered_and_stalls_nobody(client):
    """Its body comes byte by byte, beside others' requests."""
    body = json.dumps(GOOD | {"seed": 1, "temperature": 0}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    with socket.create_connection((client.base_url.host, client.base_url.port), MAX_WAIT_SECONDS) as slow:
        slow.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode())
        for place in range(len(body)):
            slow.sendall(body[place : place + 1])
            if place % 20 == 0:
                choices = client.post("/v1/completions", content=body, headers=JSON).json()["choices"]
        received = b"".join(iter(lambda: slow.recv(4096), b""))
    assert received.startswith(b"HTTP/1.1 200")
    assert json.loads(received.split(b"\r\n\r\n", 1)[1])["choices"] == choices


async def all_at_once(address: httpx2.URL, count: int) -> list[httpx2.Response]:
    """The same request over so many connections."""
    unlimited = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(base_url=address, timeout=MAX_WAIT_SECONDS, limits=unlimited) as client:
        requests = (client.post("/v1/completions", json=GOOD | {"max_tokens": 20}) for _ in range(count))
        return await asyncio.gather(*requests)


def test_many_at_once_on_a_short_queue_are_answered_or_told_to_come_again():
    with served(toy(queue=8, rows=2)) as client:
        responses = asyncio.run(all_at_once(client.base_url, 64))
        assert {response.status_code for response in responses} == {200, 429}
        for response in responses:
            if response.status_code == 429:
                check_refused(response, 429)
                assert int(response.headers["retry-after"]) > 0
        assert client.post("/v1/completions", json=GOOD).status_code == 200


def test_a_server_that_is_being_stopped_says_so():
    """To those who ask over a connection that they have had before."""
    made_service = toy()
    with served(made_service) as client:
        assert client.post("/v1/completions", json=GOOD).status_code == 200
        made_service.engine.closing = True
        response = client.post("/v1/chat/completions", json=CHAT)
        check_refused(response, 503)
        assert int(response.headers["retry-after"]) > 0
        assert client.get("/health").status_code == 503
        assert client.get("/health").json() == {"status": "stopping", "faults": 0}


def test_what_takes_too_long_is_ended_between_two_steps():
    """A whole answer, a stream, and one that waits for room."""
    made_service = toy(tokens_in_cache=200_000, rows=1)
    with served(made_service) as client:
        vars(made_service.limits)["request"] = 0.3
        body = GOOD | {"max_tokens": 50_000}
        check_refused(client.post("/v1/completions", json=body), 504)
        *_, last = events(client, "/v1/completions", body)
        assert last["error"]["code"] == 504
        check_refused(client.post("/v1/completions", json=body | {"n": 2}), 504)
        until(lambda: not made_service.engine.batch.requests)
        assert client.post("/v1/completions", json=GOOD).status_code == 200


async def deaf(app: Any, body: dict, version: str) -> None:
    """Ask for a stream, take a little of it, and then no more."""
    received, taken = asyncio.Queue[dict](), []
    received.put_nowait({"type": "http.request", "body": json.dumps(body | {"stream": True}).encode()})
    headers, asgi = [(b"content-type", b"application/json")], {"spec_version": version}
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "query_string": b"", "headers": headers}
    scope["asgi"] = asgi

    async def send(message: dict) -> None:
        taken.append(message)
        if len(taken) == 3:
            await asyncio.Event().wait()

    await app(scope, received.get, send)


@pytest.mark.parametrize("version", ["2.3", "2.4"])  # of ASGI: from 2.4 on a time-out is no lost connection
def test_a_client_that_does_not_read_is_left_and_stalls_nobody(version: str):
    """Its answer would go on for minutes, and be kept for it."""
    made_service = toy(tokens_in_cache=200_000, unread=0.3)
    with served(made_service) as client:
        body = GOOD | {"max_tokens": 50_000}
        reader = asyncio.run_coroutine_threadsafe(deaf(build(made_service), body, version), made_service.loop)
        until(lambda: made_service.engine.batch.running)
        assert client.post("/v1/completions", json=GOOD).status_code == 200
        reader.result(MAX_WAIT_SECONDS)
        until(lambda: not made_service.engine.batch.running)
