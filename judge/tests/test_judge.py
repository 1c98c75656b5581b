"""`judge` and `multidraft judge` against a fake server: verdicts, exit codes, errors of one line, resuming."""

import itertools
import json
import math
import random
import re
import signal
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
import typer
from multidraft_judge.asking import client as clients
from multidraft_judge.asking.answers import completion_of
from multidraft_judge.asking.client import Client
from multidraft_judge.command import app, one_line_errors, terminate
from multidraft_judge.errors import AdviceError
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import Ask, Completion, Token
from multidraft_judge.judgement import judge as judge_subject
from multidraft_judge.references.model import FLOAT32_SHARE, load_reference
from multidraft_judge.references.reference import Reference, differences
from multidraft_judge.references.server import ServerReference
from multidraft_judge.verdict import Verdict
from sampled import LETTERS, FakeServer, listed, mixed, plain, speculative, target
from typer.testing import CliRunner

URL = "http://fake"
FEW = {"prompts": ["ab", "ca", "bd"], "budget_tokens": 600, "max_tokens": 24, "num_logprobs": 4}


def judged(server: FakeServer, **settings) -> Verdict:
    """The verdict on a fake server."""
    return judge_subject(URL, "toy", transport=server.transport, **FEW | settings)


def judge(prompts: Path, *words: object, url: str = URL):
    """The result of the command."""
    options = ("--budget-tokens", 600, "--max-tokens", 24, "--logprobs", 4, "--prompts", prompts)
    words = (url, "--model", "toy", *options, *words)
    return CliRunner().invoke(app, [str(word) for word in words])


def ends_with_advice(result, advice: str, note: str | None = None) -> None:
    """Exit code 2, one line on stderr with the advice, nothing on stdout; lines with a `note` may be there."""
    assert isinstance(result.exception, SystemExit), repr(result.exception)
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = (line for line in result.stderr.splitlines() if note is None or note not in line)
    assert line.startswith("multidraft-judge: ")
    assert advice in line


def test_an_innocent_server_exits_with_0(network, prompts, tmp_path):
    network["fake"] = FakeServer()
    result = judge(prompts, "--plot", tmp_path / "evidence.svg")
    assert result.exit_code == 0, result.output
    assert "nothing found in" in result.stdout
    assert "<svg" in (tmp_path / "evidence.svg").read_text()


def test_a_guilty_server_exits_with_1_and_tells_where(network, prompts):
    network["fake"] = FakeServer(mixed(0.9))
    result = judge(prompts, "--json")
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert report["guilty"]
    assert report["reasons"] == ["its tokens are not drawn from the law that it reports"]
    assert report["bets"][0]["found_after"] < report["tokens"] <= 600  # it stops early


def test_a_picture_that_cannot_be_written_hides_no_verdict(network, prompts, tmp_path, monkeypatch):
    network["fake"] = FakeServer(mixed(0.9))

    def full(self: Verdict, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Verdict, "draw", full)
    result = judge(prompts, "--plot", tmp_path / "evidence.svg")
    assert result.exit_code == 1, result.output
    assert "evidence.svg failed: No space left on device" in result.stderr
    assert "bets against the reported law" in result.stdout


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--reference", URL, "--reference-model", "embedded"), "two references"),
        (("--reported", "x"), "--reported is 'x'"),
        (("--reference-model", "embedded", "--reference-dtype", "int8"), "--reference-dtype is 'int8'; use float32"),
        (("--reference-dtype", "float32"), "give --reference-model, too"),
        (("--alpha", 0), "alpha is 0.0; use a number above 0"),
        (("--temperature", 0.5, "--top-p", 0.5, "--reported", "raw"), "raw log-probabilities do not tell"),
        (("--plot", "x.txt"), "end its name in"),
        (("--frequency-penalty", 1, "--reported", "raw"), "raw log-probabilities are listed before penalties"),
        (("--reference", "http://other"), "http://other does not answer"),
    ],
)
def test_bad_use_exits_with_2(network, prompts, words, advice):
    network["fake"] = FakeServer()
    ends_with_advice(judge(prompts, *words), advice)


def test_a_server_that_is_down(network, prompts):
    ends_with_advice(judge(prompts), "http://fake does not answer (Connection refused); start the server")


@pytest.mark.parametrize("url", ["ftp://fake", "fake", "http://fake:x"])
def test_an_address_that_is_none(network, prompts, url):
    ends_with_advice(judge(prompts, url=url), "no address of a server")


@pytest.mark.parametrize(
    ("response", "advice"),
    [
        (httpx2.Response(404, json={"error": {"message": "no such model"}}), "with 404: no such model"),
        (httpx2.Response(500, text="oh\nno"), "with 500: oh no"),
        (httpx2.Response(200, text="<html>"), "without a JSON object"),
        (httpx2.Response(200, json={"error": {"message": "out of memory"}}), "has failed: out of memory"),
        (httpx2.Response(200, json={"choices": []}), "gave no token"),
    ],
)
def test_answers_that_are_none(response, advice):
    server = FakeServer()

    def answer(request: httpx2.Request) -> httpx2.Response:
        models = request.url.path == "/v1/models"
        return server.answer(request) if models else httpx2.Response(response.status_code, content=response.content)

    with pytest.raises(AdviceError, match=advice):
        judge_subject(URL, "toy", transport=httpx2.MockTransport(answer), **FEW)


@pytest.mark.parametrize("key", ["", "a b", "a\n", "ä"])
def test_a_key_that_cannot_be_sent(network, prompts, key):
    network["fake"] = FakeServer()
    ends_with_advice(judge(prompts, "--api-key", key), "--api-key (from Python: api_key) is empty, or has a space")
    assert network["fake"].bodies == []
    assert judge(prompts, "--api-key", "a-B~1").exit_code == 0


@pytest.mark.parametrize("name", ["", "a\ud800"])
def test_a_name_that_cannot_be_sent(network, prompts, name):
    network["fake"] = FakeServer()
    with pytest.raises(AdviceError, match=r"the model's name is .*, which is no text that can be sent"):
        judge_subject(URL, name)
    assert network["fake"].bodies == []


def test_a_server_with_one_model_needs_no_name():
    assert judge_subject(URL, transport=FakeServer().transport, **FEW).as_json() == judged(FakeServer()).as_json()
    lists = {"lists the models a, b": [{"id": "a"}, {"id": "b"}, {"id": "a"}], "lists no model": [{"id": 1}, "a"]}
    for advice, data in lists.items():
        transport = httpx2.MockTransport(lambda request, data=data: httpx2.Response(200, json={"data": data}))
        with pytest.raises(AdviceError, match=f"{advice}; give the name in requests as --model"):
            judge_subject(URL, transport=transport, **FEW)


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("handler", "stop", "code"),
    [(signal.SIG_DFL, interrupt, 130), (terminate, terminate, 143), (interrupt, interrupt, None)],
)
def test_a_signal_has_its_exit_code_or_that_of_the_program_around(capsys, handler, stop, code):
    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises((typer.Exit, KeyboardInterrupt)) as ended, one_line_errors():
            stop(signal.SIGTERM)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert getattr(ended.value, "exit_code", None) == code
    assert "stopped; with --out the same command goes on" in capsys.readouterr().err + str(ended.value)


def test_a_slow_server():
    def answer(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadTimeout("slow")

    with pytest.raises(AdviceError, match="has not answered within 3 s; give a larger --timeout"):
        judge_subject(URL, "toy", transport=httpx2.MockTransport(answer), timeout=3, **FEW)


def test_a_busy_server_is_waited_for_so_many_times():
    server = FakeServer()
    server.busy = clients.MAX_TRIES - 1
    assert not judged(server).guilty
    server.busy = 10 * clients.MAX_TRIES
    with pytest.raises(AdviceError, match="too busy; try again later"):
        judged(server)


def test_waiting_is_bounded():
    waits = [clients.retry_seconds(header, 3) for header in (None, "7", "soon", "9999", "-1", "nan")]
    assert waits == [8, 7, 8, clients.MAX_WAIT_SECONDS, 0, 8]


def without(part: str):
    """A change of choices that loses a part of the log-probabilities."""
    return lambda choice: choice | {"logprobs": choice["logprobs"] | {part: [None] * len(choice["text"])}}


@pytest.mark.parametrize(
    ("change", "advice"),
    [
        (lambda choice: choice | {"logprobs": None}, "gives no log-probabilities"),
        (without("token_logprobs"), "gives no log-probabilities"),
        (without("top_logprobs"), "only a reference can judge it"),
        (lambda choice: choice | {"finish_reason": "stop"}, "does not list the token that ends it"),
    ],
)
def test_a_server_that_shows_too_little(change, advice):
    server = FakeServer()
    server.change = change
    with pytest.raises(AdviceError, match=advice):
        judged(server)


def test_likely_parts_of_characters_are_no_missing_list():
    """Several tokens then have one text, and a mapping from texts holds them as one; all other tokens are bet on."""

    def broken(choice):
        lists = choice["logprobs"]
        changed = {name: [new, *lists[name][1:]] for name, new in BROKEN.items()}
        return choice | {"logprobs": lists | changed}

    server = FakeServer()
    server.change = broken
    verdict = judged(server, max_tokens=48, budget_tokens=1200)
    assert verdict.reasons == []
    assert 0 < verdict.bets[0].tokens < verdict.tokens


BROKEN = {"tokens": "\ufffd", "token_logprobs": -0.9, "top_logprobs": {"\ufffd": -0.9}}  # a token's, as OpenAI lists it


def test_fewer_likeliest_tokens_than_asked_for():
    def shorter(choice):
        tops = [dict(sorted(top.items(), key=lambda p: -p[1])[:2]) for top in choice["logprobs"]["top_logprobs"]]
        return choice | {"logprobs": choice["logprobs"] | {"top_logprobs": tops}}

    server = FakeServer()
    server.change = shorter
    with pytest.raises(AdviceError, match="lists 2 likeliest tokens where 4 were asked for; pass --logprobs 2"):
        judged(server)


def test_nothing_that_was_asked_is_asked_twice(tmp_path):
    """Neither by a run that goes on, nor by one that was stopped; other settings are refused."""
    servers = [FakeServer() for _ in range(3)]
    first = judged(servers[0], out=tmp_path, budget_tokens=300)
    assert judged(servers[1], out=tmp_path, budget_tokens=300) == first
    assert servers[1].bodies == []
    longer = judged(servers[2], out=tmp_path, budget_tokens=900)
    assert longer.tokens > first.tokens
    lines = (tmp_path / "asked.jsonl").read_text().splitlines()
    asked = [json.loads(line)["ask"] for line in lines[1:]]
    assert len(asked) == len(set(asked)) == len(servers[0].bodies) + len(servers[2].bodies)
    with pytest.raises(AdviceError, match="max_tokens"):
        judged(FakeServer(), out=tmp_path, max_tokens=12)


def test_requests_are_of_all_kinds():
    server = FakeServer()
    judged(server, budget_tokens=2000)
    bodies = server.bodies
    assert {body.get("stream", False) for body in bodies} == {True, False}
    assert {"seed" in body for body in bodies} == {True, False}
    assert {body["temperature"] for body in bodies} == {0.0, 1.0}
    assert {len(body["prompt"]) for body in bodies} == {2, 8}  # three in one, with line breaks
    assert all(body["ignore_eos"] and body["logprobs"] == 4 for body in bodies)


@pytest.mark.parametrize(("owner", "off"), [("vllm", 0), ("sglang", -1), ("llamacpp", 0), ("me", 0)])
def test_what_a_server_cuts_by_default_is_turned_off(owner, off):
    server = FakeServer(owner=owner)
    judged(server)
    judged(server, top_k=2, top_p=0.9)
    cuts = {(body["top_p"], body["top_k"], body["min_p"]) for body in server.bodies if body["temperature"]}
    assert cuts == {(1.0, off, 0.0), (0.9, 2, 0.0)}
    if owner == "llamacpp":  # it may be started with these
        assert all((body["xtc_probability"], body["presence_penalty"]) == (0, 0) for body in server.bodies)


def test_greedy_tokens_that_are_not_the_likeliest_convict():
    server = FakeServer()

    assert not judged(server, temperature=0.0).guilty
    values = listed("a")

    def wrong(choice):
        return choice | {"logprobs": {"tokens": ["c"], "token_logprobs": [values["c"]], "top_logprobs": [values]}}

    server.change = wrong
    verdict = judged(server, temperature=0.0)
    assert verdict.guilty
    assert "a greedy token is not the likeliest: request 0, token 0" in verdict.reasons[0]


def test_a_token_that_cannot_come_convicts():
    server = FakeServer()
    values = listed("a") | {"b": -9999.0}
    server.change = lambda choice: (
        choice | {"logprobs": {"tokens": ["b"], "token_logprobs": [-9999.0], "top_logprobs": [values]}}
    )
    assert "cannot come" in judged(server).reasons[0]


@pytest.mark.parametrize(("reported", "is_impossible"), [("raw", False), ("temperature", True)])
def test_what_is_impossible_goes_by_the_law_behind_the_temperature(reported, is_impossible):
    """At 4 a token of e^-100 has e^-25: one such token convicted."""
    server = FakeServer()
    values = listed("a") | {"b": -100.0}
    server.change = lambda choice: (
        choice | {"logprobs": {"tokens": ["b"], "token_logprobs": [-100.0], "top_logprobs": [values]}}
    )
    reasons = judged(server, temperature=4.0, reported=reported).reasons
    assert any("cannot come" in reason for reason in reasons) == is_impossible


def raised(choice):
    """A choice that lies in the log-probabilities of its tokens, and in nothing else."""
    lists = choice["logprobs"]
    values = [value + 0.01 for value in lists["token_logprobs"]]
    triples = zip(lists["top_logprobs"], lists["tokens"], values, strict=True)
    tops = [top | {token: value} for top, token, value in triples]
    return choice | {"logprobs": lists | {"token_logprobs": values, "top_logprobs": tops}}


class Letters(Reference):
    """The right law, and how far it is off for some width."""

    reported = "sampled"

    def __init__(self, error: float = 0.0):
        self.error = error

    def score(self, completions, settings, width):
        return [self.scored(completion, self.error * (width == 2)) for completion in completions]

    def scored(self, completion, error):
        context, tokens = completion.ask.prompt, []
        for token in completion.tokens:
            values = listed(context)
            tokens.append(
                Token(token.text, values[token.text] + error, tuple(sorted(values.items(), key=lambda p: -p[1])))
            )
            context += token.text
        return tokens


def test_a_reference_finds_what_a_server_lies_about(network, prompts):
    """The server draws from another law and reports that one, so that only a reference sees it."""
    network["fake"], network["good"] = FakeServer(), FakeServer()
    assert judge(prompts, "--reference", "http://good").exit_code == 0
    network["fake"].change = raised
    result = judge(prompts, "--reference", "http://good", "--json")
    assert result.exit_code == 1, result.output
    report = json.loads(result.stdout)
    assert "what it reports is not the reference's law: request 0, token 0" in report["reasons"][0]
    assert abs(report["compared"]["places"][0]["value"] - report["compared"]["places"][0]["expected"] - 0.01) < 1e-9


def test_accepted_drafts_of_llama_cpp_are_tokens_without_lists():
    """It streams them as text alone, and beside a whole answer lists nothing; other servers' text alone is no token."""

    def part(text, *entries):
        return {"choices": [{"text": text, "logprobs": {"content": list(entries)} if entries else None}]}

    def entry(text, logprob, count):
        tops = [{"token": letter, "logprob": value} for letter, value in listed("a").items()][:count]
        return {"token": text, "logprob": logprob, "top_logprobs": tops}

    values = listed("a")
    first, last = entry("b", values["b"], 4), entry("c", values["c"], 4)
    whole = completion_of(Ask(0, "a", 3), [part("bac", first, entry("a", 0.0, 0), last)], 4, URL)
    streamed = completion_of(Ask(0, "a", 3), [part("b", first), part("a"), part("c", last), part("")], 4, URL)
    for completion in (whole, streamed):
        assert (completion.text, completion.unlisted) == ("bac", 1)
        scored = [token._replace(logprob=values[token.text]) for token in completion.tokens]
        assert differences(completion, scored, 0.01) == []
        assert [
            place.position for place in differences(completion, [t._replace(logprob=-9.0) for t in scored], 0.01)
        ] == [0, 2]
    listed_alone = {"tokens": ["b"], "token_logprobs": [values["b"]], "top_logprobs": [values]}
    held_back = [{"choices": [{"text": "b", "logprobs": listed_alone}]}, part("a")]
    assert completion_of(Ask(0, "a", 3), held_back, 4, URL).text == "b"


def test_rounding_is_learnt_from_the_reference_against_itself():
    """Differences of 0.002 in batches of two allow differences of 0.02."""
    server = FakeServer(plain)
    server.change = raised
    verdict = judged(server, reference=Letters(0.002), rounding=0.02)
    assert verdict.reasons == []
    assert math.isclose(verdict.compared.rounding, 0.002)
    assert judged(server, reference=Letters(), rounding=0.02).guilty


def off_by(typical: float, seldom: float) -> Callable[[dict], dict]:
    """A server that rounds, and in one chunk of eight lists another law."""
    rng = random.Random(0)

    def change(choice: dict) -> dict:
        gap = -seldom if rng.random() < 1 / 8 else rng.gauss(0, typical)
        lists = choice["logprobs"]
        values = [value + gap for value in lists["token_logprobs"]]
        tops = [{letter: value + gap for letter, value in top.items()} for top in lists["top_logprobs"]]
        return choice | {"logprobs": lists | {"token_logprobs": values, "top_logprobs": tops}}

    return change


def test_beside_a_float32_reference_a_server_may_round_as_bfloat16_does():
    """As it is, rounding convicts; what is no rounding is found all the same, from 0.001 where none is stated."""
    server, exact = FakeServer(plain), Letters()
    server.change = off_by(0.02, 0.1)
    assert judged(server, reference=exact, rounding=0.01).guilty
    exact.rounding_share = FLOAT32_SHARE
    assert judged(server, reference=exact, rounding=0.01).reasons == []
    for seldom, rounding in ((0.5, 0.01), (0.0011, 0.001)):
        server.change = off_by(0.0, seldom)
        assert "not the reference's law" in judged(server, reference=exact, rounding=rounding).reasons[0]


def test_beside_another_server_the_stated_rounding_counts():
    """Its scores of one text are the same each time, which would convict a server that rounds otherwise."""
    server, other = FakeServer(plain), FakeServer()
    server.change = off_by(0.02, 0.02)
    reference = ServerReference(Client(URL, "toy", 4, transport=other.transport))
    assert judged(server, reference=reference, rounding=0.01).reasons == []
    assert "not the reference's law" in judged(server, reference=reference, rounding=0.009).reasons[0]


def test_a_model_is_read_in_float32():
    pytest.importorskip("multidraft")
    reference = load_reference("embedded", 4, "float32")
    assert reference.rounding_share == FLOAT32_SHARE
    view, torch = map(pytest.importorskip, ("multidraft.models.huggingface.packed_view", "torch"))
    if not view.can_pack(torch.bfloat16):
        pytest.skip("this processor does not multiply bfloat16")
    assert FLOAT32_SHARE > load_reference("embedded", 4).rounding_share
    scored = [load_reference("embedded", 4, dtype).score([Completion(Ask(0, "One day", 4), ASKED)], Settings(), 1)
              for dtype in (None, "float32")]  # fmt: skip
    (stored,), (exact,) = scored
    gaps = [abs(one.logprob - other.logprob) for one, other in zip(stored, exact, strict=True)]
    assert 1e-6 < max(gaps) < 0.3


ASKED = [Token(text, -1.0, (), 0) for text in (" the", " and", " the")]


def test_a_model_that_a_processor_reads_in_float32_is_off_from_a_server_in_bfloat16(monkeypatch):
    """A server in bfloat16 would be convicted of its rounding."""
    view = pytest.importorskip("multidraft.models.huggingface.packed_view")
    monkeypatch.setattr(view, "can_pack", lambda dtype: str(dtype) != "torch.bfloat16")
    assert load_reference("embedded", 4).rounding_share == FLOAT32_SHARE


def test_a_reference_with_another_tokenizer(network, prompts):
    network["fake"], network["other"] = FakeServer(), FakeServer()

    network["other"].change = joined("ab")
    ends_with_advice(judge(prompts, "--reference", "http://other"), "they read the prompt 'ab' as other tokens")
    network["fake"].change, network["other"].change = says([1, 2]), says([1, 3])
    ends_with_advice(judge(prompts, "--reference", "http://other"), "they read the prompt 'ab' as other tokens")
    network["other"].change = says([1, 2])
    assert judge(prompts, "--reference", "http://other").exit_code == 0


def says(ids: list[int]) -> Callable[[dict], dict]:
    """A choice that says these ids of its prompt."""
    return lambda choice: choice | {"prompt_token_ids": ids}


def joined(pair: str) -> Callable[[dict], dict]:
    """A tokenizer to which two letters are one token."""

    def change(choice: dict) -> dict:
        lists = choice["logprobs"]
        text = "".join(lists["tokens"])
        places = [match.start() for match in re.finditer(f"{pair}|.", text)]
        tokens = [text[start:end] for start, end in itertools.pairwise([*places, len(text)])]
        values = {name: [lists[name][place] for place in places] for name in ("token_logprobs", "top_logprobs")}
        return choice | {"logprobs": values | {"tokens": tokens}}

    return change


def renamed(choice: dict) -> dict:
    """A choice that writes all tokens in another way."""
    lists = choice["logprobs"]
    tops = [{letter.upper(): value for letter, value in top.items()} for top in lists["top_logprobs"]]
    return choice | {"logprobs": lists | {"tokens": [*map(str.upper, lists["tokens"])], "top_logprobs": tops}}


def biased(context: str, rng: random.Random) -> str:
    """A step with a hidden bias on d."""
    return "d" if rng.random() < 0.8 else plain(context, rng)


def test_answers_that_do_not_tokenise_back_are_left_out(network, prompts):
    """By ids they are not; a biased server, all of whose texts are such, is guilty either way."""
    network["fake"], network["other"] = FakeServer(plain), FakeServer()
    network["other"].change = joined("cd")
    left_out = judge(prompts, "--reference", "http://other")
    assert left_out.exit_code == 0, left_out.output
    assert re.search(
        r"0 differ by more than 0.001; \d+ texts left out, which it reads as other tokens", left_out.stdout
    )
    network["fake"].step = biased
    network["other"].change = joined("dd")
    assert "not drawn from the law that it reports" in judge(prompts, "--reference", "http://other").stdout
    network["fake"].step = lambda context, rng: "d"
    report = judge(prompts, "--reference", "http://other", "--json")
    assert (report.exit_code, "reports" in report.stdout) == (1, True), report.output


def test_where_both_say_ids_all_answers_are_compared():
    server, other = FakeServer(plain), FakeServer()
    server.says_ids = True
    other.change = renamed
    reference = ServerReference(Client(URL, "toy", 4, transport=other.transport))
    verdict = judged(server, reference=reference)
    assert verdict.reasons == []
    assert (verdict.compared.skipped_texts, verdict.compared.tokens) == (0, verdict.tokens)
    assert {type(body["prompt"]) for body in other.bodies} == {list}
    server.says_ids = False  # the twin: by texts none is
    with pytest.raises(AdviceError, match="reads none of its 28 texts as the tokens that came"):
        judged(server, reference=reference)


def test_a_model_with_another_tokenizer(network, prompts):
    pytest.importorskip("multidraft")
    network["fake"] = FakeServer()
    network["fake"].change = lambda choice: (
        choice | {"logprobs": choice["logprobs"] | {"tokens": ["\u2603x" for _ in choice["logprobs"]["tokens"]]}}
    )
    result = judge(prompts, "--reference-model", "embedded")
    ends_with_advice(result, "it has no token '\u2603x'", note="computes in float32")


def test_penalties_are_sent_and_no_reference_server_can_score_them(network, prompts):
    network["fake"], network["other"] = FakeServer(), FakeServer()
    assert judge(prompts, "--frequency-penalty", 0.5).exit_code == 0
    assert {body["frequency_penalty"] for body in network["fake"].bodies} == {0.5}
    ends_with_advice(judge(prompts, "--presence-penalty", 1, "--reference", "http://other"), "penalties do not count")


def test_a_reference_that_scores_nothing(network, prompts):
    network["fake"], network["other"] = FakeServer(), FakeServer(owner="llamacpp")
    ends_with_advice(judge(prompts, "--reference", "http://other"), "does not score texts")
    network["other"] = FakeServer(owner="vllm")
    ends_with_advice(judge(prompts, "--reference", "http://other"), "scores tokens by number")


def function(law, seed: int = 0):
    """A sampler in Python that draws from a law and reports the right one."""
    rng = random.Random(seed)

    def sample(prompt: str, n: int):
        tokens, mappings, context = [], [], prompt
        for _ in range(n):
            mappings.append(listed(context))
            tokens.append(rng.choices(LETTERS, law(context))[0])
            context += tokens[-1]
        return tokens, mappings

    return sample


def test_a_function_is_judged():
    """False alarm with odds of 1e-6 at most."""
    assert not judge_subject(function(target), budget_tokens=1500).guilty
    verdict = judge_subject(function(lambda _: (0.25,) * 4), budget_tokens=3000)
    assert verdict.guilty
    assert verdict.bets[0].found_after < 400


@pytest.mark.parametrize("answer", [None, (["a"], []), (["a"], [None]), (["a"], [{"a": "x"}]), (["a"], [{"a": 0.5}])])
def test_a_function_that_returns_something_else(answer):
    with pytest.raises(AdviceError, match=r"sample\(prompt, n\) returned .*; return tokens"):
        judge_subject(lambda prompt, n: answer)


@pytest.mark.parametrize(
    "settings",
    [{"alpha": 1.5}, {"rounding": "x"}, {"budget_tokens": 0}, {"top_p": 0}, {"prompts": [""]}],
)
def test_bad_settings_in_python(settings):
    with pytest.raises(AdviceError):
        judge_subject(function(target), **settings)


def test_speculative_and_plain_are_one_law():
    assert {judged(FakeServer(step)).guilty for step in (plain, speculative)} == {False}
