"""`multidraft serve` as a process: ready when it says so, and an orderly end."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import httpx2
import pytest
from typer.testing import CliRunner

from multidraft.cli.main import app

PATIENCE = 120


@contextmanager
def server(*options: str) -> Iterator[tuple[subprocess.Popen, str]]:
    """A server with the embedded pair, and its address."""
    command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "serve", "--port", "0"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        address = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
        assert httpx2.get(f"{address}/health", timeout=PATIENCE).status_code == 200
        yield process, address
        assert process.wait(PATIENCE) == 130


def finish_after_a_kill(process: subprocess.Popen, address: str) -> str | None:
    """What a stream's last event says, where the server is told to stop after the first one."""
    body = {"model": "embedded", "prompt": "It was", "max_tokens": 300, "ignore_eos": True, "stream": True}
    finish = None
    with httpx2.stream("POST", f"{address}/v1/completions", json=body, timeout=PATIENCE) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                if finish is None:
                    process.send_signal(signal.SIGTERM)
                event = json.loads(line.removeprefix("data: "))
                finish = event["choices"][0]["finish_reason"] if "choices" in event else "failed"
    return finish


def test_without_its_extra_it_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "fastapi", None)
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 2
    assert 'pip install "multidraft[serve]"' in result.stderr


@pytest.mark.slow
def test_a_polite_kill_lets_answers_come_to_their_end():
    with server("--drain", "100") as (process, address):
        assert finish_after_a_kill(process, address) == "length"
        process.wait(PATIENCE)
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(address)


@pytest.mark.slow
def test_it_does_not_wait_longer_than_it_is_told():
    with server("--drain", "0") as (process, address):
        assert finish_after_a_kill(process, address) == "failed"


@pytest.mark.slow
def test_a_kill_while_models_are_loaded_is_one_line():
    command = [sys.executable, "-c", "from multidraft.cli.main import main; main()", "serve", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stderr.readline().startswith("loading embedded")
        process.send_signal(signal.SIGTERM)
        assert process.stderr.read() == "multidraft: stopped\n"
        assert process.wait(PATIENCE) == 130
