"""Who is let in, how slow a request may be, what is answered before the models are there, and an orderly end."""

import json
import logging
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from copy import deepcopy
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from serving import GOOD, MAX_WAIT_SECONDS, check_refused, served, serving, toy, until
from typer.main import get_command
from typer.testing import CliRunner

import multidraft.cli.serve as command
from multidraft.cli import serving as serving_options
from multidraft.cli.engines import DEFAULT_LOADER
from multidraft.cli.main import app
from multidraft.cli.pair import load
from multidraft.cli.serving import Serving
from multidraft.errors import AdviceError
from multidraft.server import Limits, process
from multidraft.server.app import build
from multidraft.server.process import bind_socket

ROOT, KEY = Path(__file__).parents[2], "s3cret"


@pytest.fixture(scope="module")
def locked():
    """A server with a key."""
    with served(toy(api_keys=[KEY], names=["toy", "other"])) as client:
        yield client


RIGHT = {"Authorization": f"Bearer {KEY}"}
WRONG = [None, "", KEY, "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", "Bearer é"]
ADDRESSES = ["/v1/models", "/openapi.json", "/version", "/docs"]


def test_without_the_key_nothing_is_told(locked):
    """Nor is a body read; but there are addresses that need none."""
    for header in WRONG:
        headers = {} if header is None else {"Authorization": header.encode()}
        for address in [*ADDRESSES, "/nowhere"]:
            check_refused(response := locked.get(address, headers=headers), 401)
            assert response.json()["error"]["type"] == "authentication_error"
    assert locked.post("/v1/completions", content=b"{").status_code == 401
    assert [locked.get(address).status_code for address in ("/", "/health", "/metrics")] == [200] * 3
    for header in (f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}"):
        assert [locked.get(at, headers={"Authorization": header}).status_code for at in ADDRESSES] == [200] * 4


def test_the_schema_says_what_bodies_may_hold(locked):
    schema = locked.get("/openapi.json", headers=RIGHT).json()["paths"]
    body = schema["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert {"prompt", "min_tokens", "stop_token_ids"} <= body["properties"].keys()
    assert body["properties"]["model"]["enum"] == ["toy", "other"]
    assert {"application/json", "text/event-stream"} == schema["/v1/completions"]["post"]["responses"]["200"][
        "content"
    ].keys()
    for routes in schema.values():
        for route in routes.values():
            assert {"200", "4XX", "5XX"} == route["responses"].keys()


def test_a_model_has_several_names(locked):
    assert [card["id"] for card in locked.get("/v1/models", headers=RIGHT).json()["data"]] == ["toy", "other"]
    for name, status in ("toy", 200), ("other", 200), ("third", 404):
        assert locked.post("/v1/completions", json=GOOD | {"model": name}, headers=RIGHT).status_code == status


def test_no_page_of_the_web_may_use_a_browser_against_the_server(locked):
    """Ours runs its own script alone and in no frame; others may send bodies without asking that are not JSON."""
    headers = locked.get("/").headers
    assert "default-src 'none'; script-src 'sha256-" in headers["content-security-policy"]
    assert (headers["x-frame-options"], headers["x-content-type-options"]) == ("DENY", "nosniff")
    headers = RIGHT | {"Content-Type": "text/plain"}
    assert locked.post("/v1/completions", content=json.dumps(GOOD).encode(), headers=headers).status_code == 400


OPTIONS: dict[str, tuple[str, Any]] = {  # of `serve`, by all names: a value, and what it changes of what is served
    "--target": ("smollm2", ("target", "smollm2")),
    "--draft": ("none", ("draft", "none")),
    "--engine": ("transformers", ("engine", "transformers")),
    "--llama-lib": ("LIBRARY --target embedded", ("llama_lib", "LIBRARY")),
    "--revision": ("v1 --target owner/model", ("revision", "v1")),
    "--trust-remote-code": ("", ("trust", True)),
    "--chat-template": ("TEMPLATE", ("template", "{{ messages }}")),
    "--scheme": ("iid:lorenz", ("scheme", "iid:lorenz")),
    "--tree": ("2x1", ("tree", "2x1")),
    "--plan": ("TEMPLATE", ("plan", "TEMPLATE")),
    "--tune-budget": ("3", ("tune_budget", 3.0)),
    "--walk": ("commit", ("walk", "commit")),
    "--host": ("::1", ("host", "::1")),
    "--port": ("81", ("port", 81)),
    "--served-model-name --name": ("a", ("names", ("a",))),
    "--api-key": (KEY, ("api_keys", (KEY,))),
    "--allowed-origins": ("https://a.org", ("allowed_origins", ("https://a.org",))),
    "--access-log": ("", ("logs", True)),
    "--max-num-seqs --max-rows": ("3", ("rows", 3)),
    "--max-model-len": ("77", ("context", 77)),
    "--max-tokens-in-cache": ("99", ("tokens_in_cache", 99)),
    "--max-queue": ("5", ("queue", 5)),
    "--remember": ("7 --draft lookup", ("remember", 7)),
    "--corpus": ("TEMPLATE --draft lookup", ("corpus", "TEMPLATE")),
    "--max-num-batched-tokens --prefill-tokens": ("9", ("prefill", 9)),
    "--request-timeout": ("8", ("request", 8)),
    "--drain": ("4", ("drain", 4)),
    "--threads": ("1", ("threads", 1)),
    "--ray": ("local", ("ray", "local")),
    "--replicas": ("3 --ray local", ("replicas", 3)),
    "--most-replicas": ("4 --ray local", ("most_replicas", 4)),
}


@pytest.mark.parametrize("names", OPTIONS)
def test_every_option_changes_what_is_served(names, tmp_path, monkeypatch):
    """By each of its names, vLLM's among them; what a limit or a setting then does is tested where it acts."""
    found: dict[str, Any] = {}

    def note(serving: Any, **others: Any) -> None:
        found.update(vars(serving) | vars(serving.limits) | others)

    def here(serving: Any, host: str, port: int, _: Any) -> None:
        note(serving, host=host, port=port, logs=logging.getLogger("multidraft.access").level == logging.INFO)
        logging.getLogger("multidraft.access").setLevel(logging.WARNING)

    def on_ray(ray: str, serving: Any, host: str, port: int, low: int, high: int, _: Any) -> None:
        note(serving, ray=ray, replicas=low, most_replicas=high)

    monkeypatch.setattr(command, "run_here", here)
    monkeypatch.setattr(command, "run_on_ray", on_ray)
    monkeypatch.setattr(log := logging.getLogger("multidraft.access"), "handlers", [])
    monkeypatch.setattr(log, "level", logging.WARNING)
    (template := tmp_path / "template").write_text("{{ messages }}")
    (library := tmp_path / "libllama.so").touch()
    files = {"TEMPLATE": str(template), "LIBRARY": str(library)}
    value, (field, expected) = OPTIONS[names]
    for name in names.split():
        found.clear()
        words = [files.get(word, word) for word in value.split()]
        assert (result := CliRunner().invoke(app, ["serve", name, *words])).exit_code == 0, result.output
        assert found[field] == expected or str(found[field]) == files.get(expected)
        assert CliRunner().invoke(app, ["serve"]).exit_code == 0
        assert found.get(field) != expected or field in ("ray", "replicas", "most_replicas")


def test_settings_arrive_where_they_act():
    """Of a server of the embedded pair; what the limits then refuse is tested with them."""
    threads = torch.get_num_threads()
    settings: dict[str, Any] = dict(scheme="iid:lorenz", tree="2x1", walk="commit", template="{{ 1 }}", api_keys=(KEY,))
    settings |= {"allowed_origins": ("*",), "names": ("a", "b"), "threads": threads + 1}
    limits = Limits(rows=3, context=77, tokens_in_cache=99, queue=5, prefill=9, request=8, drain=4)
    try:
        service = Serving("embedded", "embedded", limits=limits, **settings).service()
        assert torch.get_num_threads() == threads + 1
    finally:
        torch.set_num_threads(threads)
    engine, config = service.engine, service.engine.config
    assert (config.scheme.name, engine.policy.limits.shape.name, config.walk) == ("iid:lorenz", "2x1", "commit")
    assert (service.tokenizer.chat_template, service.api_keys, service.names, service.allowed_origins) == (
        "{{ 1 }}",
        (KEY,),
        ["a", "b"],
        ("*",),
    )
    assert (engine.batch.max_num_seqs, engine.batch.max_tokens, service.context) == (3, 99, 77)
    assert service.limits == engine.limits == limits
    assert Serving("embedded", "none").service().engine.draft is None


@pytest.mark.parametrize("looks_across", [False, True])
def test_a_model_whose_modules_look_across_a_pass_is_served_without_drafts(looks_across, monkeypatch, capsys):
    """As one that comes with code of its own."""

    pair = load("embedded", "embedded", DEFAULT_LOADER)
    pair = pair._replace(target=deepcopy(pair.target))
    if looks_across:
        pair.target.model.norm.register_forward_hook(lambda module, inputs, states: states - states.mean(1, True))
    monkeypatch.setattr(serving_options, "load", lambda *names: pair)
    engine = Serving("embedded", "embedded").service().engine
    assert (engine.draft is None) == looks_across
    assert ("goes on without drafts" in capsys.readouterr().err) == looks_across


def test_the_table_of_options_is_complete():
    group: Any = get_command(app)
    options = {name for option in group.get_command(None, "serve").params for name in option.opts}
    assert options - {"--help"} == {name for names in OPTIONS for name in names.split()}


def test_the_access_log_has_a_line_for_every_request(caplog):
    with caplog.at_level(logging.INFO, "multidraft.access"), served(toy()) as client:
        client.get("/v1/models/no%0Ane", headers={"x-request-id": "mine"})
    (line,) = [record.getMessage() for record in caplog.records if "GET" in record.getMessage()]
    assert '127.0.0.1 "GET /v1/models/no%0Ane" 404 in' in line
    assert line.endswith("request mine")


def connected(client: httpx2.Client, sent: bytes) -> socket.socket:
    """A connection of one's own, over which this has been sent."""
    connection = socket.create_connection((client.base_url.host, client.base_url.port), MAX_WAIT_SECONDS)
    connection.sendall(sent)
    return connection


HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"


def test_what_comes_too_slowly_is_not_waited_for():
    """Nothing, half a line, headers without an end, a body without one; and later on the same connection."""
    with served(toy(receive=0.2)) as client:
        start_time = time.monotonic()
        for sent in (b"", b"GET /hea", b"GET /health HTTP/1.1\r\nHost: x\r\n"):
            with connected(client, sent) as raw:
                assert raw.recv(1 << 16) == b""
        with connected(client, HEAD + b"Content-Length: 99\r\n\r\n{") as raw:
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 408")
        with connected(client, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n") as raw:
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
            raw.sendall(b"GET /hea")
            assert raw.recv(1 << 16) == b""
        assert time.monotonic() - start_time < Limits.receive  # by the limit of this server, not by the default one
        assert client.post("/v1/completions", json=GOOD).status_code == 200


def test_headers_without_an_end_are_not_read():
    """The connection may be closed while they are being sent."""
    with served(toy()) as client, suppress(ConnectionError):
        with connected(client, b"GET /health HTTP/1.1\r\nHost: x\r\n") as raw:
            for _ in range(100):
                raw.sendall(b"x: y\r\n" * 10_000)
            assert raw.recv(1 << 16).startswith(b"HTTP/1.1 400")


def test_others_are_answered_while_a_text_is_tokenized():
    made_service, begun, answered = toy(), threading.Event(), threading.Event()

    def slow(text: str, tokenizer: Any = made_service.tokenizer, **settings: Any) -> Any:
        begun.set()
        assert answered.wait(MAX_WAIT_SECONDS)
        return tokenizer(text, **settings)

    slow.bos_token_id = None
    made_service.tokenizer = slow
    with served(made_service) as client:
        asking = threading.Thread(target=client.post, args=["/tokenize"], kwargs={"json": {"prompt": "ab"}})
        asking.start()
        assert begun.wait(MAX_WAIT_SECONDS)
        assert client.get("/health").status_code == 200
        answered.set()
        asking.join()


def test_health_is_answered_before_the_models_are_there():
    there = threading.Event()

    def load() -> Any:
        assert there.wait(MAX_WAIT_SECONDS)
        return build(toy())

    with serving(load) as (client, server):
        for address in ("/health", "/v1/models", "/metrics"):
            response = client.get(address)
            assert response.status_code == 503
            assert "loaded" in response.json()["error"]["message"]
        assert client.post("/").status_code == 503
        page = client.get("/")  # waits by itself, and for nobody's script but its own
        assert (page.status_code, "script-src 'sha256-" in page.headers["content-security-policy"]) == (200, True)
        there.set()
        until(lambda: server.app)
        assert client.get("/health").status_code == 200
        assert client.get("/").text == page.text


ORIGIN = {"Origin": "https://a.org"}
ASKING = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}


def test_pages_of_the_sites_that_are_allowed_may_ask_also_without_the_key_what_they_may_ask():
    allowed = toy(api_keys=[KEY])
    allowed.allowed_origins = ["https://a.org"]
    with served(allowed) as client, served(toy()) as closed:
        for origin, status in ("https://a.org", 200), ("https://b.org", 400):
            response = client.options("/v1/chat/completions", headers=ASKING | {"Origin": origin})
            assert response.status_code == status
        body = GOOD | {"strange": 1}
        response = client.post("/v1/completions", json=body, headers=RIGHT | ORIGIN)
        assert response.headers["access-control-allow-origin"] == "https://a.org"
        assert "x-ignored-fields" in response.headers["access-control-expose-headers"]
        assert client.post("/v1/completions", json=body, headers=ORIGIN).headers["access-control-allow-origin"]
        assert "access-control-allow-origin" not in closed.post("/v1/completions", json=body, headers=ORIGIN).headers
    for origin in "a.org", "https://a.org/path", "":
        result = CliRunner().invoke(app, ["serve", "--port", "0", "--allowed-origins", origin or " "])
        assert result.exit_code == 2
        assert result.stderr.splitlines()[-1].startswith("multidraft: the allowed origin")


NOWHERE = {
    "/v1/embeddings": "makes no embeddings",
    "/v1/rerank": "ranks nothing",
    "/v1/audio/speech": "text is read and written",
    "/v1/images/generations": "text is read and written",
    "/v1/moderations": "judges no texts",
    "/v1/files": "nothing is stored",
    "/v1/messages": "not Anthropic's",
    "/api/generate": "not Ollama's",
    "/completion": "OpenAI's API",
    "/v1/nowhere": "/v1/nowhere is not served; there are",
}


@pytest.mark.parametrize("address", NOWHERE)
def test_what_other_servers_have_is_named_beside_what_is_there(address):
    with served(toy()) as client:
        for response in (client.post(address, json={}), client.get(address)):
            check_refused(response, 404)
            message = response.json()["error"]["message"]
            assert message.startswith(f"{address} is not served")
            assert NOWHERE[address] in message
            assert "/v1/chat/completions" in message


def test_a_request_with_two_lengths_is_refused_and_its_connection_closed():
    """What stands behind its body might be a request of another client's, in a proxy's eyes."""
    with served(toy()) as client:
        body = json.dumps(GOOD).encode()
        head = HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        with connected(
            client, head + b"%x\r\n%s\r\n0\r\n\r\nGET /health HTTP/1.1\r\nHost: x\r\n\r\n" % (len(body), body)
        ) as raw:
            received = b"".join(iter(lambda: raw.recv(1 << 16), b""))
        assert received.startswith(b"HTTP/1.1 400")
        assert received.count(b"HTTP/1.1") == 1
        assert client.post("/v1/completions", json=GOOD).status_code == 200


def test_an_empty_host_is_not_taken_for_all_of_them():
    with pytest.raises(AdviceError, match="empty"):
        bind_socket(" ", 0)


def test_streams_end_with_an_event_when_the_server_is_stopped(caplog):
    """Those that wait, too, and whole answers with an error."""
    whole, body = list[int](), GOOD | {"max_tokens": 50_000}
    with serving(lambda: build(toy(tokens_in_cache=200_000, rows=2, drain=1)), drain=1) as (client, server):
        until(lambda: server.app)
        asking = threading.Thread(target=lambda: whole.append(client.post("/v1/completions", json=body).status_code))
        with client.stream("POST", "/v1/completions", json=body | {"stream": True, "n": 3}) as response:
            received = response.iter_lines()
            next(received)
            asking.start()
            until(lambda: len(server.app.state.service.engine.batch.requests) == 4)
            server.should_exit = True
            lines = [line for line in received if line]
        asking.join(MAX_WAIT_SECONDS)
    assert whole == [503]
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == 503
    assert lines[-1] == "data: [DONE]"
    assert "stopping: 4 running requests get up to 1 s to end" in caplog.text


def test_the_containers_check_of_health_says_when_the_server_is_well():
    (line,) = [line for line in (ROOT / "examples" / "Dockerfile").read_text().splitlines() if "HEALTHCHECK" in line]
    program, option, code = json.loads(line.partition(" CMD ")[2])
    assert (program, option) == ("python", "-c")
    made_service = toy()
    with served(made_service) as client:
        command = [sys.executable, "-c", code.replace(":8000", f":{client.base_url.port}")]
        assert subprocess.run(command, capture_output=True).returncode == 0
        made_service.engine.closing = True
        assert subprocess.run(command, capture_output=True).returncode != 0


def test_the_containers_answers_end_before_docker_kills_it():
    """`docker stop` sends SIGKILL ten seconds after SIGTERM: with the default of `--drain` it cut streams off."""
    (line,) = [line for line in (ROOT / "examples" / "Dockerfile").read_text().splitlines() if "ENTRYPOINT" in line]
    command = json.loads(line.removeprefix("ENTRYPOINT "))
    assert int(command[command.index("--drain") + 1]) + process.GRACE_SECONDS < 9


def test_without_its_extra_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 2
    assert "pip install -c constraints.txt -e '.[serve]'" in result.stderr


@contextmanager
def started(*options: str) -> Iterator[subprocess.Popen]:
    """The command in a process of its own."""
    code = "from multidraft.cli.main import main; main()"
    arguments = [sys.executable, "-c", code, "serve", "--port", "0", *options]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as server:
        yield server
        assert server.wait(MAX_WAIT_SECONDS) == 143  # SIGTERM, as a shell gives it


@pytest.mark.slow
def test_a_polite_kill_lets_answers_come_to_their_end():
    with started("--drain", "100") as server:
        address = next(
            address_match[0] for line in server.stderr if (address_match := re.search(r"http://[\d.:]+", line))
        )
        until(lambda: httpx2.get(f"{address}/health").status_code == 200)
        body = {"model": "embedded", "prompt": "It was", "max_tokens": 300, "ignore_eos": True, "stream": True}
        with httpx2.stream("POST", f"{address}/v1/completions", json=body, timeout=MAX_WAIT_SECONDS) as response:
            lines = response.iter_lines()
            next(lines)
            server.send_signal(signal.SIGTERM)
            *_, last, done = (line for line in lines if line)
        assert json.loads(last.removeprefix("data: "))["choices"][0]["finish_reason"] == "length"
        assert done == "data: [DONE]"


@pytest.mark.slow
def test_a_kill_while_models_are_loaded_is_one_line():
    with started() as server:
        assert server.stderr.readline().startswith("loading embedded")
        server.send_signal(signal.SIGTERM)
        assert server.stderr.read() == "multidraft: stopped\n"
