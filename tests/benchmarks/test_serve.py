"""The load benchmark against servers in this process: all that is asked for is counted, and no clock is judged."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
import serve
import servers
from abuse import ABUSES, ENDS, QUICK
from abuse import run as abused
from rich.console import Console
from serving import letters, served, service

from multidraft.models.prefix_models import TableModel, random_table

COUNTED = {"ignore_eos": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
WHO = [servers.Contestant("counting", [], COUNTED), servers.Contestant("one an event", [], {})]
SIZE = 6
FEW = ["--requests", "1", "--max-new-tokens", "8", "--clients", "2", "--tree", "2x1", "--json"]


@contextmanager
def sleeping() -> Iterator[int]:
    """A process that stands for a server's, as the servers of these tests are in their own."""
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture
def made_up_runs(monkeypatch, unchecked) -> None:
    """Two contestants, both a pair of tables."""

    @contextmanager
    def running(contestant: servers.Contestant, log: Path, threads: int) -> Iterator[servers.Server]:
        models = (TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2))
        with served(service(*models, letters(SIZE))) as client, sleeping() as process:
            yield servers.Server(str(client.base_url), process)

    monkeypatch.setattr(serve, "running", running)
    monkeypatch.setattr(serve, "contestants", lambda options: WHO)


def test_all_servers_take_their_turn_at_all_loads(made_up_runs, capsys):
    serve.main([*FEW, "--rate", "4", "--target", "toy"])
    runs = json.loads(capsys.readouterr().out)["runs"]
    loads = [("closed", 2, 2), ("open", 4.0, 4)]
    tried = [(run["load"], run["size"], run["requests"], run["server"]) for run in runs]
    assert tried == [(*load, who.name) for load in loads for who in WHO]
    for run in runs:
        assert run["failed"] == 0
        assert run["tokens"] <= run["requests"] * 8
        assert run["first_token_p50"] <= run["first_token_p99"]
    assert all(run["tokens"] == run["requests"] * 8 for run in runs if run["server"] == "counting")
    Console(width=140).print(serve.table(runs, 2))
    assert "one an event" in capsys.readouterr().out
    serve.main([*FEW, "--rate", "--target", "other"])  # whom nobody serves: what fails is counted as such
    run = json.loads(capsys.readouterr().out)["runs"][0]
    assert (run["requests"], run["failed"], run["tokens"], run["first_token_p50"]) == (2, 2, 0, None)


def test_a_server_runs_only_while_it_is_its_turn():
    with sleeping() as number:
        server, process = servers.Server("", number), psutil.Process(number)
        for _ in range(2):
            with server.turn():
                assert becomes(process, is_stopped=False)
            assert becomes(process, is_stopped=True)


def becomes(process: psutil.Process, is_stopped: bool) -> bool:
    """Whether a process is stopped, or is not, within seconds: a signal takes a moment."""
    end = time.monotonic() + 10
    while (process.status() == psutil.STATUS_STOPPED) != is_stopped and time.monotonic() < end:
        time.sleep(0.01)
    return (process.status() == psutil.STATUS_STOPPED) == is_stopped


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


def test_every_server_gets_the_threads_that_are_asked_for(tmp_path, monkeypatch, capsys):
    """Torch takes them from one name, vLLM from another, whatever was set before."""
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {9, 4, 6}, raising=False)
    who = servers.Contestant("shows", [sys.executable, "-c", SHOWS, "{port}"], {})
    with servers.running(who, tmp_path / "log", 2) as server:
        assert server.seconds > 0
    assert (tmp_path / "log").read_text().split()[:2] == ["2", "4,6"]
    for threads in ("0", "100000"):
        with pytest.raises(SystemExit):
            serve.arguments(["--threads", threads])
        assert "there are 1 to" in capsys.readouterr().err


STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"


def test_a_server_that_does_not_end_is_killed_with_what_it_has_begun(monkeypatch):
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.1)
    script = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]); {STUBBORN}"
    with subprocess.Popen([sys.executable, "-c", script, STUBBORN], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(2)] == [b"1\n", b"1\n"]
        (child,) = psutil.Process(process.pid).children()
        servers.stop(process)
        assert process.wait(60) == -signal.SIGKILL
        child.wait(60)


@pytest.mark.slow
def test_no_promise_is_broken(tmp_path):
    """The server under abuse, in short: its promises hold, but for how fast it answers, which no test can say."""
    for part in abused([*ABUSES, *ENDS], QUICK, tmp_path):
        assert sum(part.answers.values()) > 0
        assert [broken for broken in part.broken if not broken.startswith("/health took")] == [], part.name
