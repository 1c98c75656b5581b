"""Fields of requests one by one: what each changes, and what is refused by its name."""

import itertools
from collections.abc import Iterator

import httpx2
import pytest
from serving import events, letters, served, service

from multidraft.models.table import TableModel, random_table
from multidraft.server.bodies import REFUSED
from multidraft.server.service import Service

LETTERS, SIZE = "abcdÃ©", 6  # the last two are the bytes of one character
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3}


def toy(**limits: int) -> Service:
    """A pair of tables whose tokens are bytes."""
    models = (TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2))
    return service(*models, letters(LETTERS), prefill=4, **limits)


@pytest.fixture(scope="module")
def client() -> Iterator[httpx2.Client]:
    with served(toy()) as client:
        yield client


def complete(client: httpx2.Client, **body) -> dict:
    response = client.post("/v1/completions", json={"model": "toy", "prompt": "ab"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client: httpx2.Client, **body) -> dict[int, list[dict]]:
    """The choices of a stream's events, by their index."""
    chunks = events(client, "/v1/completions", {"model": "toy", "prompt": "ab"} | body)
    choices = sorted((choice for chunk in chunks for choice in chunk["choices"]), key=lambda choice: choice["index"])
    return {index: list(own) for index, own in itertools.groupby(choices, lambda choice: choice["index"])}


def test_a_stop_string_may_begin_or_end_within_a_token_of_bytes(client):
    """A character comes in two tokens, between which a step may end; nothing of a stop string is shown."""
    free = complete(client, max_tokens=60, seed=2)["choices"][0]["text"]
    place = free.index("é", 8)
    for first, last in (place, place + 1), (place, place + 3), (place - 2, place + 1):
        stop = free[first:last]
        expected = free[: free.index(stop)]
        body = dict(max_tokens=60, seed=2, stop=["nowhere", stop])
        (answer,) = complete(client, **body)["choices"]
        assert (answer["text"], answer["finish_reason"]) == (expected, "stop")
        assert "".join(part["text"] for part in streamed(client, **body)[0]) == expected


def test_answers_of_one_stream_are_told_apart(client):
    body = dict(n=3, max_tokens=9, seed=1)
    whole = {choice["index"]: choice for choice in complete(client, **body)["choices"]}
    parts = streamed(client, **body)
    assert {index: "".join(part["text"] for part in own) for index, own in parts.items()} == {
        index: choice["text"] for index, choice in whole.items()
    }
    assert [own[-1]["finish_reason"] for own in parts.values()] == ["length"] * 3


def test_log_probabilities_are_streamed_as_they_are_told_whole(client):
    """Those of the echoed prompt, too; places in the text go on from event to event."""
    body = dict(prompt="abcd", echo=True, logprobs=2, max_tokens=7, seed=3)
    (whole,) = complete(client, **body)["choices"]
    (parts,) = streamed(client, **body).values()
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [value for part in parts for value in part["logprobs"][name]] == values
    assert len(parts) > 2


def test_an_answer_ends_at_the_end_of_text_unless_that_is_ignored():
    made = toy()
    made.ends = {LETTERS.index("d")}
    with served(made) as client:
        (free,) = complete(client, max_tokens=60, seed=5, ignore_eos=True)["choices"]
        (ended,) = complete(client, max_tokens=60, seed=5)["choices"]
    assert (free["finish_reason"], ended["finish_reason"]) == ("length", "stop")
    assert ended["text"] == free["text"][: free["text"].index("d") + 1]


def test_tools_are_shown_to_the_model_unless_none_may_be_called():
    made, tools = toy(), [{"type": "function", "function": {"name": "dab"}}]
    made.tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool['function']['name'] }}{% endfor %}ab"
    with served(made) as client:
        for choice, count in ("auto", 5), (None, 5), ("none", 2):
            answer = client.post("/v1/chat/completions", json=CHAT | {"tools": tools, "tool_choice": choice}).json()
            assert answer["usage"]["prompt_tokens"] == count


FORMS = {"response_format": {"type": "json_schema"}, "tool_choice": "required", "best_of": 2}


@pytest.mark.parametrize(("name", "value"), [*FORMS.items(), *((name, ["x"]) for name in REFUSED)])
def test_what_is_refused_is_named(client, name, value):
    response = client.post("/v1/chat/completions", json=CHAT | {name: value})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(name)


NUMBERS = """
    vllm:num_requests_running vllm:num_requests_waiting vllm:kv_cache_usage_perc vllm:prompt_tokens_total
    vllm:generation_tokens_total vllm:prefix_cache_queries_total vllm:prefix_cache_hits_total
    vllm:time_to_first_token_seconds_bucket vllm:inter_token_latency_seconds_bucket
    vllm:e2e_request_latency_seconds_bucket vllm:request_success_total vllm:spec_decode_num_drafts_total
    vllm:spec_decode_num_draft_tokens_total vllm:spec_decode_num_accepted_tokens_total
    vllm:spec_decode_num_accepted_tokens_per_pos_total multidraft:acceptance_rate multidraft:optimal_acceptance_rate
    multidraft:nodes_per_step
""".split()


@pytest.fixture(scope="module")
def numbers(client) -> list[str]:
    """What Prometheus reads after a request."""
    complete(client, max_tokens=20)
    return client.get("/metrics").text.splitlines()


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_have_vllms_names_and_labels(numbers, name):
    lines = [line for line in numbers if line.startswith(name + "{")]
    assert lines
    assert all('model_name="toy"' in line and 'engine="0"' in line for line in lines)
    assert ("position=" in lines[0]) == name.endswith("per_pos_total")
    assert ("finished_reason=" in lines[0]) == name.endswith("success_total")


def test_a_few_tokens_come_before_an_end_and_any_token_may_be_one():
    """No stop string is looked for among the first, either."""
    made = toy()
    made.ends = {LETTERS.index("d")}
    with served(made) as client:
        (free,) = complete(client, max_tokens=60, seed=5, ignore_eos=True)["choices"]
        body = dict(max_tokens=60, seed=5, ignore_eos=True, stop_token_ids=[LETTERS.index("c")])
        (ended,) = complete(client, **body)["choices"]
        assert (ended["text"], ended["finish_reason"]) == (free["text"][: free["text"].index("c") + 1], "stop")
        for settings in {}, {"stop_token_ids": [LETTERS.index("c")]}, {"stop": ["a"]}:
            whole = complete(client, max_tokens=60, min_tokens=30, n=8, seed=1, **settings)
            assert whole["usage"]["completion_tokens"] >= 8 * 30
            assert "stop" in {choice["finish_reason"] for choice in whole["choices"]}


def test_nobody_gets_more_than_fits(client):
    """With a number of tokens that fits nowhere it is refused; without one the answer ends where there is no room."""
    with served(toy(context=12)) as small:
        assert small.get("/v1/models").json()["data"][0]["max_model_len"] == 12
        assert complete(small)["usage"]["completion_tokens"] == 10
        for number, status in (10, 200), (11, 400), (100_000, 400):
            body = {"model": "toy", "prompt": "ab", "max_tokens": number}
            assert small.post("/v1/completions", json=body).status_code == status
        for prompt in "ab" * 6, "ab" * 10_000:
            assert small.post("/v1/completions", json={"model": "toy", "prompt": prompt}).status_code == 400
