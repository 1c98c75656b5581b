"""A real server over tiny models, in a thread of the test's own process."""

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx2
from fastapi import FastAPI
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.huggingface import Model
from multidraft.server.app import build
from multidraft.server.engine import Engine
from multidraft.server.limits import Limits
from multidraft.server.process import Server, bound
from multidraft.server.service import Service

PATIENCE = 60


def letters(of: int | str) -> PreTrainedTokenizerFast:
    """A tokenizer whose tokens are the first letters of the alphabet, or these, which stand for bytes."""
    named = "".join(chr(ord("a") + token) for token in range(of)) if isinstance(of, int) else of
    vocabulary = {letter: token for token, letter in enumerate(named)}
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
    api_key: str | None = None,
    names: Sequence[str] = ("toy",),
    **limits: int,
) -> Service:
    """A service over a pair, under the name of `toy`."""
    config, bounds = DecodeConfig(md.scheme(scheme), StaticTree(Tree.parse(tree))), Limits(**limits)
    return Service(Engine(target, draft, config, bounds), tokenizer, list(names), bounds, api_key)


@contextmanager
def serving(load: Callable[[], FastAPI], **limits: int) -> Iterator[tuple[httpx2.Client, Server]]:
    """A server, which may still be loading, and a client; it runs until the block ends."""
    listener = bound("127.0.0.1", 0)
    server = Server(Limits(**limits), load)
    thread = threading.Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    with httpx2.Client(base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENCE) as client:
        try:
            while thread.is_alive() and not server.started:
                time.sleep(0.01)
            yield client, server
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def served(made: Service) -> Iterator[httpx2.Client]:
    """A client of a server that runs until the block ends."""
    with serving(lambda: build(made), **vars(made.limits)) as (client, server):
        while server.app is None:
            time.sleep(0.01)
        yield client


def events(client: httpx2.Client, address: str, body: dict[str, Any]) -> list[Any]:
    """The events of a stream; every one but the last is JSON."""
    with client.stream("POST", address, json=body | {"stream": True}) as response:
        assert response.status_code == 200, response.read()
        text = "".join(response.iter_text())
    parts = [part.removeprefix("data: ") for part in text.split("\n\n")]
    assert parts[-2:] == ["[DONE]", ""]
    return [json.loads(part) for part in parts[:-2]]
