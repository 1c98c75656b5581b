"""The load benchmark against servers in this process: all that is asked for is counted, and no clock is judged."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import serve
import servers
from serving import letters, served, service

from multidraft.models.table import TableModel, random_table

ENDS = {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
WHO = [servers.Contestant("counting", [], ENDS), servers.Contestant("one an event", [], {})]
SIZE = 6


@pytest.fixture
def own(monkeypatch) -> None:
    """Two contestants, both a pair of tables."""

    @contextmanager
    def running(contestant: servers.Contestant, log: Path, threads: int) -> Iterator[servers.Server]:
        models = (TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2))
        with served(service(*models, letters(SIZE))) as client:
            yield servers.Server(str(client.base_url), os.getpid())

    monkeypatch.setattr(serve, "running", running)
    monkeypatch.setattr(serve, "contestants", lambda options: WHO)
    monkeypatch.setattr(serve, "QUICK", serve.QUICK | {"requests": 1, "rate": [4.0]})


def test_all_servers_take_their_turn_at_all_loads(own, capsys):
    serve.main(["--quick", "--json", "--target", "toy"])
    found = json.loads(capsys.readouterr().out)["runs"]
    loads = [("closed", 2), ("open", 4.0)]
    assert [(run["load"], run["size"], run["server"]) for run in found] == [
        (*load, who.name) for load in loads for who in WHO
    ]
    for run in found:
        assert (run["requests"], run["failed"]) == (run["size"], 0)
        assert run["tokens"] <= run["size"] * 12
        assert run["tokens"] == run["size"] * 12 or run["server"] != "counting"
        assert run["first_token_p50"] <= run["first_token_p99"]


def test_what_fails_is_counted_as_such_in_a_table_too(own, capsys, monkeypatch):
    monkeypatch.setattr(serve, "QUICK", serve.QUICK | {"rate": []})
    serve.main(["--quick", "--json", "--target", "other"])
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert (run["requests"], run["failed"], run["tokens"], run["first_token_p50"]) == (2, 2, 0, None)
    serve.main(["--quick", "--target", "toy"])
    assert "one an event" in capsys.readouterr().out


def test_tokens_of_a_step_share_its_time():
    answer = serve.Answer(0.0, [(1.0, 2), (1.9, 3), (2.0, 1)])
    assert answer.tokens == 6
    assert answer.gaps == pytest.approx([0.3, 0.3, 0.3, 0.1])


def test_a_server_that_does_not_begin_says_why(tmp_path):
    broken = servers.Contestant("broken", ["sh", "-c", "echo no such model; exit 1"], {})
    with pytest.raises(servers.AdviceError, match="no such model"), servers.running(broken, tmp_path / "log", 1):
        pass


SHOWS = """
import http.server, os, sys, torch
print(torch.get_num_threads(), os.environ["VLLM_CPU_OMP_THREADS_BIND"], flush=True)
class Fine(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Fine).serve_forever()
"""


def test_every_server_gets_the_threads_that_are_asked_for(tmp_path, monkeypatch):
    """Torch takes them from one name, vLLM from another, whatever was set before."""
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setattr(servers, "cores", lambda: [4, 6, 9])
    who = servers.Contestant("shows", [sys.executable, "-c", SHOWS, "{port}"], {})
    with servers.running(who, tmp_path / "log", 2) as server:
        assert server.seconds > 0
    assert (tmp_path / "log").read_text().split()[:2] == ["2", "4,6"]


@pytest.mark.parametrize("threads", ["0", "100000"])
def test_threads_that_are_not_there_are_refused(threads, capsys):
    with pytest.raises(SystemExit):
        serve.arguments(["--threads", threads])
    assert "there are 1 to" in capsys.readouterr().err
