"""The action for GitHub, run as its file says, against servers on a port: green, red, and what it leaves behind."""

import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx2
import pytest
import yaml
from multidraft_judge import ci
from multidraft_judge.asking.requests import JOURNAL
from multidraft_judge.judgement import judge
from multidraft_judge.summary import refusal, summary
from sampled import FakeServer, mixed, speculative

ACTION = yaml.safe_load((Path(__file__).parents[1] / "action.yml").read_text())
ACTION_STEPS = ACTION["runs"]["steps"]
(STEP,) = (step for step in ACTION_STEPS if step.get("id") == "judge")
KEY = "a-key-that-nobody-may-see"


@contextmanager
def served(server: FakeServer) -> Iterator[str]:
    """A fake server's address on a port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.do_POST()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            response = server.answer(httpx2.Request(self.command, f"http://fake{self.path}", content=body))
            self.send_response(response.status_code)
            self.send_header("Content-Length", str(len(response.content)))
            self.end_headers()
            self.wfile.write(response.content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listener:
        threading.Thread(target=listener.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listener.server_port}"
        listener.shutdown()


def act(folder: Path, **changed_inputs: str) -> subprocess.CompletedProcess[str]:
    """Run the step that judges, with its variables and the defaults of the action, as GitHub would."""
    inputs = {name: entry.get("default", "") for name, entry in ACTION["inputs"].items()}
    inputs |= {name.replace("_", "-"): value for name, value in changed_inputs.items()}
    variables = {
        name: inputs[re.fullmatch(r"\$\{\{ inputs\.([\w-]+) \}\}", value)[1]] for name, value in STEP["env"].items()
    }
    files = {name: str(folder / name) for name in ("GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT")}
    (folder / "multidraft-judge").symlink_to(sys.prefix)  # in place of what the step before installs
    environment = os.environ | variables | files | {"RUNNER_TEMP": str(folder)}
    return subprocess.run(
        ["bash", "-e", "-c", STEP["run"]], cwd=folder, env=environment, capture_output=True, text=True, timeout=120
    )


def test_an_innocent_server_is_green(tmp_path):
    """False alarm with odds of 1e-6 at most."""
    with served(FakeServer(speculative)) as url:
        result = act(tmp_path, url=url, model="toy", budget_tokens="1500", api_key=KEY)
    assert result.returncode == 0, result.stdout + result.stderr
    assert re.fullmatch(r"::notice title=multidraft-judge::nothing found in 1,\d+ tokens\n", result.stdout)
    page = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert page.startswith("## multidraft-judge: nothing found in 1,")
    assert re.search(r"smallest bias that would have been seen with probability 95 %: 0\.\d+ \(", page)
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "verdict=innocent\n"
    left = tmp_path / ACTION["inputs"]["name"]["default"]
    assert json.loads((left / "report.json").read_text())["guilty"] is False
    assert len((left / "answers" / JOURNAL).read_text().splitlines()) > 10
    assert "<svg" in (left / "evidence.svg").read_text()
    assert KEY not in "".join(file.read_text() for file in left.rglob("*.*")) + page + result.stdout + result.stderr


@pytest.mark.parametrize(("fail_on", "code"), [("guilty", 1), ("guilty,unjudged", 1), ("unjudged", 0), ("never", 0)])
def test_a_biased_server_is_red_where_that_is_asked_for(tmp_path, fail_on, code):
    with served(FakeServer(mixed(0.9))) as url:
        result = act(tmp_path, url=url, model="toy", budget_tokens="1500", fail_on=fail_on)
    assert result.returncode == code, result.stdout + result.stderr
    level = "error" if code else "warning"
    reason = "its tokens are not drawn from the law that it reports"
    assert result.stdout == f"::{level} title=multidraft-judge::{reason}\n"
    page = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert page.startswith("## multidraft-judge: **guilty** in ")
    assert f"    {reason}\n" in page
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == "verdict=guilty\n"
    assert json.loads((tmp_path / "judged" / "report.json").read_text())["reasons"] == [reason]


@pytest.mark.parametrize(("fail_on", "code"), [("guilty", 0), ("guilty,unjudged", 2), ("never", 0)])
def test_a_server_that_is_down_cannot_be_judged(tmp_path, fail_on, code):
    result = act(tmp_path, url="http://127.0.0.1:1", model="toy", fail_on=fail_on)
    assert result.returncode == code, result.stdout + result.stderr
    assert result.stdout.startswith(f"::{'error' if code else 'warning'} title=multidraft-judge::cannot be judged: ")
    assert (
        (tmp_path / "GITHUB_STEP_SUMMARY").read_text().startswith("## multidraft-judge: cannot be judged\n\n    http")
    )
    assert "start the server" in json.loads((tmp_path / "judged" / "report.json").read_text())["unjudged"]


@pytest.mark.parametrize(
    ("inputs", "advice"),
    [
        ({"url": ""}, "the input url is empty"),
        ({"model": " "}, "the input model is empty"),
        ({"budget_tokens": "many"}, "budget-tokens is 'many'"),
        ({"alpha": "nan"}, "alpha is 'nan'"),
        ({"alpha": "1"}, "alpha is '1'"),
        ({"fail_on": "innocent"}, "fail-on is 'innocent'"),
        ({"fail_on": "never,guilty"}, "fail-on is 'never,guilty'"),
        ({"name": "../x"}, "name is '../x'"),
        ({"name": ".."}, "name is '..'"),
        ({"name": "multidraft-judge"}, "'multidraft-judge' is there already"),
    ],
)
def test_inputs_that_cannot_be_used_are_red_whatever_is_asked_for(tmp_path, inputs, advice):
    result = act(tmp_path, **{"url": "http://127.0.0.1:1", "model": "toy", "fail_on": "never"} | inputs)
    assert result.returncode == 2, result.stdout + result.stderr
    assert result.stdout.startswith(f"::error title=multidraft-judge::{advice}")
    assert len(result.stdout.splitlines()) == 1


@pytest.mark.parametrize(("error", "code"), [(RuntimeError("a fault"), 70), (KeyboardInterrupt(), 130)])
def test_what_is_no_verdict_does_not_end_as_one(error, code, monkeypatch):
    """Python's own exit code of a fault is 1, which says guilty."""

    def run(variables):
        raise error

    monkeypatch.setattr(ci, "run", run)
    with pytest.raises(SystemExit) as ended:
        ci.main()
    assert ended.value.code == code


@pytest.mark.parametrize("text", ["$(touch harm)", "`touch harm`", '"; touch harm; "', "'; touch harm; '"])
def test_no_input_is_a_part_of_the_code(tmp_path, text):
    act(tmp_path, url=text, model=text, reference=text, api_key=text, fail_on=text, alpha=text, name=text)
    assert not (tmp_path / "harm").exists()
    subprocess.run(["bash", "-c", f'echo "{text}"'], cwd=tmp_path, check=False)  # the twin, which such a text harms
    assert (tmp_path / "harm").exists() or "'" in text


def test_expressions_stand_only_where_github_does_not_run_them():
    assert [step for step in ACTION_STEPS if "${{" in step.get("run", "")] == []
    assert "run" in ACTION_STEPS[0]
    assert sorted(re.findall(r"inputs\.([\w-]+)", str(STEP["env"]))) == sorted(ACTION["inputs"])


def test_what_a_server_writes_is_no_markdown_and_no_command(tmp_path):
    """Neither its errors nor its tokens: here a token that cannot come, and a greedy one that is not the likeliest."""
    harm = "a\n\n# b\n::warning::c\n<b>"

    def change(choice):
        others = {f"{number}": -30.0 for number in range(17)}
        tops = [{harm: -60.0, "a": -0.1, "b": -2.4} | others] * len(choice["text"])
        lists = {"tokens": [harm for _ in tops], "token_logprobs": [-60.0 for _ in tops], "top_logprobs": tops}
        return choice | {"logprobs": lists}

    server = FakeServer()
    server.change = change
    with served(server) as url:
        result = act(tmp_path, url=url, model="toy")
    assert result.returncode == 1, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert lines
    assert all(line.startswith("::error title=multidraft-judge::") for line in lines)
    page = (tmp_path / "GITHUB_STEP_SUMMARY").read_text()
    assert [line for line in page.splitlines() if "# b" in line and not line.startswith("    ")] == []
    assert "cannot come by its own law: request " in page
    assert [line[:4] for line in refusal(harm).splitlines() if "b" in line[3:] and "#" in line[3:]] == ["    "]


def test_the_summary_says_the_smallest_bias():
    """It is the table's; with hardly any token there is none."""
    settings = {"prompts": ["ab", "ca"], "max_tokens": 8, "num_logprobs": 8}
    verdict = judge("http://fake", "toy", transport=FakeServer().transport, budget_tokens=2000, **settings)
    least = min(float(row[2]) for row in verdict.rows() if row[0].startswith("smallest bias"))
    assert verdict.innocent
    assert f"with probability 95 %: {least:.3f} (" in summary(verdict)
    short = judge("http://fake", "toy", transport=FakeServer().transport, budget_tokens=8, temperature=0.0, **settings)
    assert "Too few tokens were judged to see a bias of any size. The bets" in summary(short)
