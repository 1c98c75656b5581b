"""Answers of a server that are no answers: one line each and exit code 2, whatever is in them; never a verdict."""

import math
import random
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import httpx2
import pytest
from multidraft_judge import judgement
from multidraft_judge.asking import client as clients
from multidraft_judge.errors import AdviceError
from multidraft_judge.judgement import judge as judge_subject
from sampled import FakeServer, listed, mixed
from test_judge import FEW, URL, ends_with_advice, judge, judged

NAN, INFINITY = math.nan, math.inf
VALUES = [NAN, INFINITY, 0.5, "x", True, [], {}, 10**400]  # in place of a log-probability


def each(name: str, value: Any) -> Callable[[dict], dict]:
    """One list of `logprobs`, of as many of this value."""
    return lambda choice: (
        choice | {"logprobs": choice["logprobs"] | {name: [value for _ in choice["logprobs"]["tokens"]]}}
    )


CHANGES: dict[str, Callable[[dict], Any]] = {
    **{f"logprob {value!r:.9}": each("token_logprobs", value) for value in VALUES},
    **{f"listed {value!r:.9}": each("top_logprobs", {"a": value, "b": -1.0}) for value in VALUES},
    **{f"list {value!r:.9}": each("top_logprobs", value) for value in (NAN, 0.5, "x", True, ["a"], [["a", -1.0]])},
    **{f"token {value!r:.9}": each("tokens", value) for value in (NAN, 7, None, [], {}, "x" * 9999)},
    **{f"logprobs {value!r:.9}": (lambda choice, v=value: choice | {"logprobs": v}) for value in (NAN, "x", [1], True)},
    **{f"content {v!r:.9}": (lambda c, v=v: c | {"logprobs": {"content": v}}) for v in ("x", [None], ["x"], [[]], {})},
    "content's token": lambda c: c | {"logprobs": {"content": [{"token": 7, "logprob": -1.0}]}},
    "content's logprob": lambda c: c | {"logprobs": {"content": [{"token": "a", "logprob": NAN}]}},
    "content's list": lambda c: c | {"logprobs": {"content": [{"token": "a", "logprob": -1, "top_logprobs": [3]}]}},
    "no choice": lambda choice: None,
    "text for a choice": lambda choice: "a",
    "number for a text": lambda choice: choice | {"text": 7},
    "number for a reason": lambda choice: choice | {"finish_reason": 7},
    "ids that are none": lambda choice: choice | {"token_ids": ["a"], "prompt_token_ids": "abc"},
    "fewer lists than tokens": lambda c: c | {"logprobs": c["logprobs"] | {"top_logprobs": [listed("a")] * 3}},
    "fewer values than tokens": lambda c: c | {"logprobs": c["logprobs"] | {"token_logprobs": [-1.0, -1.0, -1.0]}},
    "more tokens than asked for": lambda c: c | {
        "logprobs": {name: 100 * values for name, values in c["logprobs"].items()}
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_no_answer_is_never_a_verdict(name, network, prompts):
    """A NaN acquitted the server, and a traceback had the exit code of a guilty one."""
    network["fake"] = FakeServer()
    network["fake"].change = CHANGES[name]
    result = judge(prompts)
    ends_with_advice(result, "http://fake" if "fewer" not in name else "an answer has")


@pytest.mark.parametrize(
    "content",
    [b"[" * 100_000, b"nul", b"\xff\xfe", b"[]", b"7", b'{"choices": {}}', b'{"choices": 7}', b'{"choices": [[]]}',
     b'{"choices": [{"text": "a"}], "usage": 7}', b'{"error": ' + b"[" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/v1/models", "/v1/completions"])
def test_what_is_no_json_of_a_completion_ends_with_advice(content, path):
    server = FakeServer()

    def answer(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, content=content) if request.url.path == path else server.answer(request)

    if path == "/v1/models" and content.startswith(b'{"choices"'):
        return  # an object that names no owner is a server of a kind that is not known
    with pytest.raises(AdviceError, match=URL):
        judge_subject(URL, "toy", transport=httpx2.MockTransport(answer), **FEW)


@pytest.mark.parametrize("line", [b"data: {}\n", b" " * 1000])
@pytest.mark.parametrize("status", [200, 500])
def test_answers_without_an_end_are_cut(line, status, monkeypatch):
    """With and without line ends, and in an error."""
    monkeypatch.setattr(clients, "MAX_ANSWER_BYTES", 2**20)
    server, sent = FakeServer(), [0]

    class Endless(httpx2.SyncByteStream):
        def __iter__(self):
            while True:
                sent[0] += len(line)
                yield line

    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path == "/v1/models":
            return server.answer(request)
        return httpx2.Response(status, stream=Endless())

    with pytest.raises(AdviceError, match="http://fake answers with more than 1 MB"):
        judge_subject(URL, "toy", transport=httpx2.MockTransport(answer), **FEW)
    assert sent[0] < 2**25  # of the requests of a wave together


def certain(choice: dict) -> dict:
    """A choice that says of each of its tokens that nothing else could have come."""
    tokens = choice["logprobs"]["tokens"]
    lists = {
        "token_logprobs": [0.0 for _ in tokens],
        "top_logprobs": [{t: 0.0} | dict.fromkeys("xyz", -99.0) for t in tokens],
    }
    return choice | {"logprobs": choice["logprobs"] | lists}


def often_certain(choice: dict, rng: random.Random) -> dict:
    """The same of 95 % of the chunks."""
    return certain(choice) if rng.random() < 0.95 else choice


@pytest.mark.parametrize("change", [certain, partial(often_certain, rng=random.Random(0))])
def test_a_server_that_is_always_or_mostly_certain_cannot_be_judged(change, network, prompts):
    network["fake"] = FakeServer()
    assert judge(prompts).exit_code == 0  # the twin
    network["fake"].change = change
    ends_with_advice(judge(prompts), "http://fake cannot be judged: in 6")
    assert judge(prompts, "--temperature", 0).exit_code == 0  # where it is right to be


def test_a_server_that_is_mostly_certain_may_still_be_guilty(network, prompts):
    network["fake"] = FakeServer(mixed(0.9))
    network["fake"].change = partial(often_certain, rng=random.Random(0))
    result = judge(prompts, "--budget-tokens", 6000)
    assert (result.exit_code, "guilty: " in result.stdout) == (1, True), result.output


def test_answers_of_one_server_do_not_judge_another(network, prompts, tmp_path):
    network["fake"], network["other"] = FakeServer(), FakeServer()
    assert judge(prompts, "--out", tmp_path).exit_code == 0
    ends_with_advice(judge(prompts, "--out", tmp_path, url="http://other"), "subject 'http://fake' instead of")
    assert network["other"].bodies == []


@pytest.mark.parametrize("status", [401, 403])
def test_a_key_is_named_where_one_is_missing(status):
    response = httpx2.Response(status, json={"error": {"message": "no key"}})
    with pytest.raises(
        AdviceError, match=f"with {status}: no key; pass its key as --api-key, or in MULTIDRAFT_API_KEY"
    ):
        judge_subject(URL, "toy", transport=httpx2.MockTransport(lambda request: response), **FEW)


def test_a_fault_of_the_program_is_no_verdict(network, prompts, monkeypatch):
    network["fake"] = FakeServer()

    def broken(*_: object) -> None:
        raise KeyError("some field")

    monkeypatch.setattr(judgement, "gather_evidence", broken)
    result = judge(prompts)
    assert result.exit_code == 70
    assert "KeyError: 'some field'" in result.stderr
    assert result.stderr.endswith("this is a fault of the program, not of your input; report it with the lines above\n")


def test_nothing_is_said_of_what_was_not_asked(network, prompts, tmp_path):
    """Greedy texts alone, and none of them; a picture says whom it is of."""
    network["fake"] = FakeServer()
    greedy = judge(prompts, "--temperature", 0)
    assert "bets" not in greedy.stdout.split("nothing found")[0]
    assert "not tried" not in greedy.stdout
    sampled = judge(prompts, "--plot", tmp_path / "evidence.svg")
    assert re.search("greedy tokens +0 +not tried", sampled.stdout)
    verdict = judged(FakeServer())
    outcomes = [replace(verdict.bets[0], highest=highest).outcome for highest in (0.04, 0.06)]
    assert outcomes == ["none: no bet has won (10^0.0, guilty from 10^6.0)", "10^0.1, guilty from 10^6.0"]
    verdict.draw(tmp_path / "other.svg")
    assert f"<!-- {URL}: nothing found in {verdict.tokens:,} tokens -->" in (tmp_path / "other.svg").read_text()
