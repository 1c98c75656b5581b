"""`measure` and `multidraft-judge --measure` against servers whose chunks are known: the numbers are those."""

import itertools
import json
import math

import httpx2
import numpy as np
import pytest
from chunked import ChunkServer
from multidraft_judge import AdviceError, Prompt, measure
from multidraft_judge.command import app
from multidraft_judge.measuring.chunks import Answer, Chunk
from multidraft_judge.measuring.estimates import pooled_ratio
from multidraft_judge.measuring.rows import NO_DRAFTS_SEEN, PLAIN_IN_CHUNKS
from multidraft_judge.prompts import read_prompts
from typer.testing import CliRunner

URL, PLAIN_URL = "http://fake", "http://plain"
MAX_TOKENS = 9
SIZES = {  # the first chunk is the prompt's, and a chunk that begins after 6 tokens may be cut
    "ab": [1, 3, 2, 3],  # 8 tokens in 3 chunks
    "ca": [1, 0, 1, 1, 0, 1, 1, 1, 3],  # 5 in 5, and one that begins with 6 tokens: 8 in 6
    "bd": [2, 3, 2, 2],  # 5 in 2: the last one may be cut
}
ONES = {prompt: [1] * MAX_TOKENS for prompt in SIZES}
PROMPTS = [Prompt("ab", "code"), Prompt("ca", "prose"), Prompt("bd", "code")]


def measured(servers: dict[str, ChunkServer], **settings):
    """What is measured of servers by host, each event half a second after the one before."""
    ticks = itertools.count(0, 0.5)
    transport = httpx2.MockTransport(lambda request: servers[request.url.host].answer(request))
    settings = {"prompts": PROMPTS, "max_tokens": MAX_TOKENS, "temperatures": [0]} | settings
    return measure(URL, "toy", transport=transport, clock=lambda: next(ticks), **settings)


def run(*words: object):
    """The result of the command."""
    return CliRunner().invoke(app, [URL, "--model", "toy", "--measure", *map(str, words)])


@pytest.mark.parametrize("says", ["usage", "timings", "logprobs"])
def test_the_numbers_are_those_of_the_chunks(says):
    everything, code, prose = measured({"fake": ChunkServer(SIZES, says)}).rows
    assert (everything.prompts, everything.tokens, everything.chunks) == (3, 21, 11)
    assert everything.pooled.value == pytest.approx(21 / 11)
    assert everything.mean_of_ratios.value == pytest.approx((8 / 3 + 8 / 6 + 5 / 2) / 3)
    assert (code.task, code.tokens, code.chunks) == ("code", 13, 5)
    assert (prose.task, prose.tokens, prose.chunks) == ("prose", 8, 6)
    assert prose.pooled.low is None  # of one prompt


def test_other_chunks_have_other_numbers():
    """A twin: the same texts in other chunks."""
    sizes = SIZES | {"ab": [1, 2, 3, 2, 1]}  # 7 in 3
    everything, *_ = measured({"fake": ChunkServer(sizes)}).rows
    assert (everything.tokens, everything.chunks) == (20, 11)


def test_intervals_are_the_jackknife_with_students_t():
    pairs = [(8.0, 3.0), (8.0, 6.0), (5.0, 2.0)]
    others = [13 / 8, 13 / 5, 16 / 9]
    mean = sum(others) / 3
    error = math.sqrt(2 / 3 * sum((other - mean) ** 2 for other in others))
    estimate = pooled_ratio(pairs)
    assert estimate.high == pytest.approx(21 / 11 + 4.303 * error)
    assert estimate.low == pytest.approx(21 / 11 - 4.303 * error)


def answers_of(rng: np.random.Generator, count: int, max_tokens: int = 24) -> list[Answer]:
    """Answers of chunks of 1 to 4 tokens, 2.2 in the mean, the last one cut."""
    answers = []
    for _ in range(count):
        sizes = [1]
        while (room := max_tokens - sum(sizes)) > 0:
            sizes.append(min(int(rng.choice(4, p=[0.4, 0.2, 0.2, 0.2])) + 1, room))
        answers.append(Answer([Chunk(size, 0.0) for size in sizes]))
    return answers


def pairs_of(answers: list[Answer], largest: int = 4) -> list[tuple[float, float]]:
    """Tokens and chunks, as far as they count."""
    whole = [answer.whole_chunks(24, largest) for answer in answers]
    return [(sum(chunk.tokens for chunk in chunks), len(chunks)) for chunks in whole]


def test_cut_chunks_do_not_bias_the_mean():
    """The standard error is 0.005, so false alarm with odds of 1e-6; the twin counts the cut chunks, too."""
    answers = answers_of(np.random.default_rng(0), 6000)
    tokens, chunks = map(sum, zip(*pairs_of(answers), strict=True))
    assert abs(tokens / chunks - 2.2) < 0.025
    tokens, chunks = map(sum, zip(*pairs_of(answers, largest=0), strict=True))
    assert tokens / chunks < 2.2 - 0.04


def test_intervals_cover_the_mean():
    """Of 600 intervals over four prompts 95 % should cover: outside of 91.5 to 98.5 % with odds of 1e-3 at most.

    The twin has the normal quantile in place of Student's, and covers too rarely.
    """
    rng, covered, narrow = np.random.default_rng(1), 0, 0
    for _ in range(600):
        estimate = pooled_ratio(pairs_of(answers_of(rng, 4)))
        reach = estimate.high - estimate.value
        covered += abs(estimate.value - 2.2) < reach
        narrow += abs(estimate.value - 2.2) < reach * 1.96 / 3.182
    assert 0.915 < covered / 600 < 0.985
    assert narrow / 600 < 0.915


def test_speeds_beside_a_plain_server():
    servers = {"fake": ChunkServer(SIZES), "plain": ChunkServer(ONES)}
    measurement = measured(servers, plain=PLAIN_URL)
    row = measurement.rows[0]
    # "ca" has two events without tokens, which take half a second each
    speeds = [8 / 1.5, 8 / 4.0, 7 / 1.5]
    assert row.tokens_per_second.value == pytest.approx(math.prod(speeds) ** (1 / 3))
    assert row.times_plain.value == pytest.approx(math.prod(speeds) ** (1 / 3) / 2.0)
    assert row.plain_pooled.value == 1
    assert measurement.notes == []


def test_the_servers_are_asked_by_turns():
    order = []
    servers = {"fake": ChunkServer(SIZES), "plain": ChunkServer(ONES)}

    def answer(request: httpx2.Request) -> httpx2.Response:
        order.extend([request.url.host] * (request.url.path != "/v1/models"))
        return servers[request.url.host].answer(request)

    settings = {"prompts": ["ab", "ca"], "temperatures": [0], "max_tokens": MAX_TOKENS}
    measure(URL, "toy", plain=PLAIN_URL, transport=httpx2.MockTransport(answer), **settings)
    assert order == ["fake", "fake", "plain", "plain", "fake", "plain"]  # each is warmed up by its first request


def test_a_server_that_sends_token_by_token_is_not_said_to_draft_nothing():
    assert measured({"fake": ChunkServer(ONES)}).notes == [NO_DRAFTS_SEEN]
    assert measured({"fake": ChunkServer(SIZES)}).notes == []


def test_a_plain_server_with_several_tokens_a_chunk_is_a_warning():
    servers = {"fake": ChunkServer(SIZES), "plain": ChunkServer(SIZES)}
    assert measured(servers, plain=PLAIN_URL).notes == [PLAIN_IN_CHUNKS]


def test_texts_may_end_by_themselves():
    """A judge asks vLLM to go on; what follows the end of a text would be drafted more easily."""
    server = ChunkServer(SIZES)
    measured({"fake": server})
    assert not any("ignore_eos" in body for body in server.bodies)
    assert all(body["stream_options"]["continuous_usage_stats"] for body in server.bodies)


def test_a_server_that_refuses_a_field_is_counted_in_another_way():
    measurement = measured({"fake": ChunkServer(SIZES, "logprobs", refused="stream_options")})
    assert measurement.counted_by == {"drafts": "log-probabilities"}
    assert measurement.rows[0].tokens == 21


@pytest.mark.parametrize(
    ("server", "advice"),
    [
        (ChunkServer(SIZES, "nothing"), "does not say how many tokens a chunk has"),
        (ChunkServer(SIZES, refused="model"), "400: no model here"),
        (ChunkServer({prompt: [9] for prompt in SIZES}), "has a whole chunk after the first one"),
    ],
)
def test_servers_that_cannot_be_measured(server, advice):
    with pytest.raises(AdviceError, match=advice) as error:
        measured({"fake": server})
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperatures": []},
        {"temperatures": [1, 1]},
        {"temperatures": [-1]},
        {"max_tokens": 1},
        {"prompts": [""]},
        {"prompts": []},
    ],
)
def test_bad_settings(settings):
    with pytest.raises(AdviceError, match=r"; (give|use) "):
        measured({"fake": ChunkServer(SIZES)}, **settings)


def test_a_stopped_run_goes_on(tmp_path):
    server, whole = ChunkServer(SIZES), measured({"fake": ChunkServer(SIZES)})
    server.failing_after = 3  # one that warms up, and two prompts
    with pytest.raises(AdviceError, match="500: stopped"):
        measured({"fake": server}, out=tmp_path)
    server.failing_after = None
    assert measured({"fake": server}, out=tmp_path).rows == whole.rows
    assert server.prompts == {"ab": 2, "ca": 1, "bd": 2}  # "ab" and "bd" were the first of a run, which warms up
    measured({"fake": server}, out=tmp_path)
    assert server.prompts.total() == 5
    measured({"fake": server}, out=tmp_path, temperatures=[0, 1])
    assert server.prompts == {"ab": 4, "ca": 2, "bd": 3}
    with pytest.raises(AdviceError, match="max_tokens 9 instead of 12"):
        measured({"fake": server}, out=tmp_path, max_tokens=12)


def test_the_command(network, tmp_path):
    network |= {"fake": ChunkServer(SIZES), "plain": ChunkServer(ONES)}
    file = tmp_path / "prompts.jsonl"
    file.write_text("".join(json.dumps({"prompt": text, "category": task}) + "\n" for text, task in PROMPTS))
    words = ("--prompts", file, "--max-tokens", MAX_TOKENS, "--temperature", 0, "--temperature", 0.7)
    result = run(*words, "--plain", PLAIN_URL, "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert [(row["temperature"], row["task"]) for row in report["rows"]] == [
        (temperature, task) for temperature in (0, 0.7) for task in (None, "code", "prose")
    ]
    assert report["rows"][0]["pooled"]["value"] == pytest.approx(21 / 11)
    result = run(*words, "--limit", 2)
    assert "16 / 9" in result.stdout, result.output
    assert "tokens by drafts: usage; in brackets 95 % over prompts" in result.stdout


@pytest.mark.parametrize(
    ("words", "advice"),
    [
        (("--measure", "--reference", URL), "--reference is for a verdict, and --measure gives none"),
        (("--measure", "--budget-tokens", 10), "--budget-tokens is for a verdict"),
        (("--measure", "--limit", 2), "--limit is for --prompts FILE"),
        (("--plain", URL), "--plain is for --measure"),
        (("--temperature", 0, "--temperature", 1), "a verdict is on one temperature"),
        (("--measure", "--plain", "http://other"), "http://other does not answer"),
    ],
)
def test_bad_use_exits_with_2(network, words, advice):
    network["fake"] = ChunkServer(SIZES)
    result = CliRunner().invoke(app, [URL, "--model", "toy", *map(str, words)])
    assert (result.exit_code, result.stdout) == (2, ""), result.output
    (line,) = result.stderr.splitlines()
    assert advice in line


@pytest.mark.parametrize(
    ("line", "prompt"),
    [
        ({"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]}, Prompt("Write.", "writing")),
        ({"category": "rag", "messages": [{"role": "user", "content": "Find."}]}, Prompt("Find.", "rag")),
        ({"prompt": ["Say.", "Why?"], "category": "stem"}, Prompt("Say.", "stem")),  # MT-Bench on the hub
        ({"question": "2 + 2?", "answer": "4"}, Prompt("2 + 2?", "spec_al_gsm8k")),
        ({"problem": "x = 1", "solution": "1"}, Prompt("x = 1", "spec_al_gsm8k")),
        ({"text": "Sort.", "code": "..."}, Prompt("Sort.", "spec_al_gsm8k")),
        ({"prompt": "def f():", "task_id": "HumanEval/0"}, Prompt("def f():", "spec_al_gsm8k")),
    ],
)
def test_prompts_of_benchmarks(tmp_path, line, prompt):
    file = tmp_path / "spec_al_gsm8k.jsonl"
    file.write_text(json.dumps(line))
    assert read_prompts(file) == [prompt]


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ({"turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING SPECDEC_BENCH"]}, "is a placeholder"),
        ({"turns": []}, 'has no "prompt" string'),
        ({"messages": [{"role": "system", "content": "Be brief."}]}, 'has no "prompt" string'),
    ],
)
def test_lines_without_a_prompt(tmp_path, line, advice):
    file = tmp_path / "speed.jsonl"
    file.write_text(json.dumps(line))
    with pytest.raises(AdviceError, match=advice):
        read_prompts(file)
