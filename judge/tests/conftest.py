"""Fake servers by host in place of the network, and prompts for them."""

import json
from pathlib import Path

import httpx2
import pytest
from sampled import FakeServer

PROMPTS = ["ab", "ca", "bd"]


@pytest.fixture
def network(monkeypatch) -> dict[str, FakeServer]:
    """Servers by host, in place of the network."""
    servers: dict[str, FakeServer] = {}

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.host not in servers:
            raise httpx2.ConnectError("Connection refused")
        return servers[request.url.host].answer(request)

    class Connected(httpx2.Client):
        def __init__(self, **settings):
            super().__init__(**settings | {"transport": httpx2.MockTransport(answer)})

    monkeypatch.setattr(httpx2, "Client", Connected)
    return servers


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of prompts."""
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
    return file
