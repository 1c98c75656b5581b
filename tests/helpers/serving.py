"""A real server over tiny models, in a thread of the test's own process."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
from decoded import readers
from fastapi import FastAPI
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.user_models import Model
from multidraft.server import Limits
from multidraft.server.app import build
from multidraft.server.engine import Engine
from multidraft.server.process import Server, bind_socket
from multidraft.server.service import Service

MAX_WAIT_SECONDS, NUM_LETTERS = 60, 6  # seconds, and letters of a toy
GOOD = {"model": "toy", "prompt": "ab", "max_tokens": 3}


def letters(alphabet: int | str) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the first letters of the alphabet, or these, which stand for bytes."""
    symbols = "".join(chr(ord("a") + token) for token in range(alphabet)) if isinstance(alphabet, int) else alphabet
    vocabulary = {letter: token for token, letter in enumerate(symbols)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def service(
    target: Model,
    draft: Model | None,
    tokenizer: Any,
    tree: str = "3x2x1",
    scheme: str = "anchored:lorenz",
    api_keys: Sequence[str] = (),
    names: Sequence[str] = ("toy",),
    **limits: float,
) -> Service:
    """A service over a pair, under the name of `toy`."""
    way = DecodeConfig(md.scheme(scheme)), StaticTree(Tree.parse(tree))
    return Service(Engine(*readers(target, draft), *way, Limits(**limits)), tokenizer, list(names), api_keys)


def toy(tokens: int | str = NUM_LETTERS, **settings: Any) -> Service:
    """A service over a pair of tables of known conditionals, whose tokens are letters, or stand for these bytes."""
    models = (TableModel(random_table(NUM_LETTERS, 2, seed), NUM_LETTERS) for seed in (1, 2))
    return service(*models, letters(tokens), **{"prefill": 4} | settings)


@contextmanager
def serving(load: Callable[[], FastAPI], **limits: float) -> Iterator[tuple[httpx2.Client, Server]]:
    """A server, which may still be loading, and a client; it runs until the block ends."""
    listener = bind_socket("127.0.0.1", 0)
    server = Server(Limits(**limits), load)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    with httpx2.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=MAX_WAIT_SECONDS) as client:
        try:
            until(lambda: server.started or not thread.is_alive())
            yield client, server
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(made_service: Service) -> Iterator[httpx2.Client]:
    """A client of a server that runs until the block ends."""
    with serving(lambda: build(made_service), **vars(made_service.limits)) as (client, server):
        until(lambda: server.app is not None)
        yield client


def until(condition: Callable[[], object]) -> None:
    """Wait for what must come."""
    end = time.monotonic() + MAX_WAIT_SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def complete(client: httpx2.Client, **body: Any) -> dict[str, Any]:
    """The answer to a request."""
    response = client.post("/v1/completions", json={"model": "toy", "prompt": "ab"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def check_refused(response: httpx2.Response, status: int = 400) -> None:
    """The form of OpenAI's errors, which names no file and no traceback."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert "\n" not in error["message"]
    assert len(error["message"]) <= 600


def events(client: httpx2.Client, address: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; every one but the last is JSON."""
    with client.stream("POST", address, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        text = "".join(response.iter_text())
    parts = [part.removeprefix("data: ") for part in text.split("\n\n")]
    assert parts[-2:] == ["[DONE]", ""]
    return [json.loads(part) for part in parts[:-2]]
