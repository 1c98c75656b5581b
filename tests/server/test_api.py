"""The API over HTTP: what clients send and read, in both forms, whole and streamed; and what each field changes."""

import itertools
from collections.abc import Iterator

import httpx2
import pytest
import torch
from serving import SIZE, complete, events, served, service
from serving import toy as toy_service

import multidraft as md
from multidraft.models.table import random_table
from multidraft.server.bodies import REFUSED
from multidraft.zoo import load_pair

TARGET = random_table(SIZE, 2, 1)
MESSAGES = [{"role": "user", "content": "The old house"}]
CHAT = {"model": "toy", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def toy() -> Iterator[httpx2.Client]:
    """A table model of known conditionals, whose tokens are letters."""
    with served(toy_service()) as client:
        yield client


@pytest.fixture(scope="module")
def pair() -> Iterator[httpx2.Client]:
    """The embedded pair."""
    with served(service(*load_pair(), tree="2x1x1")) as client:
        yield client


def text(answer: dict, index: int = 0) -> str:
    return answer["choices"][index]["text"]


def test_a_seed_gives_the_text_that_generate_gives(pair):
    """Greedy too, and through both forms."""
    target, draft, tokenizer = load_pair()
    for settings in ({"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "top_k": 40, "seed": 5}):
        answer = complete(pair, prompt="The old house", max_tokens=12, **settings)
        generator = torch.Generator().manual_seed(5 * 1_000_003)
        own = {name: value for name, value in settings.items() if name != "seed"}
        inputs = tokenizer(["The old house"])["input_ids"]
        rows, _ = md.generate(target, draft, inputs, tree="2x1x1", max_new_tokens=12, generator=[generator], **own)
        assert text(answer) == tokenizer.decode(rows[0])
        assert answer["usage"] == {
            "prompt_tokens": len(inputs[0]),
            "completion_tokens": 12,
            "total_tokens": 12 + len(inputs[0]),
        }


def test_streams_say_the_same_one_event_a_step(pair):
    body = dict(model="toy", prompt="The old house", max_tokens=16, seed=3)
    whole, chunks = complete(pair, **body), events(pair, "/v1/completions", body)
    assert "".join(text(chunk) for chunk in chunks) == text(whole)
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert len(chunks) <= 17
    assert all("usage" not in chunk for chunk in chunks)
    assert whole["metrics"]["speculative_decoding"]["num_drafts"] >= len(chunks) - 2


def test_chats_in_both_ways(pair):
    body = dict(model="toy", messages=MESSAGES, max_completion_tokens=9, seed=1)
    whole = pair.post("/v1/chat/completions", json=body).json()
    chunks = events(pair, "/v1/chat/completions", body | {"stream_options": {"include_usage": True}})
    *parts, last = chunks
    assert whole["object"] == "chat.completion"
    assert whole["choices"][0]["message"]["role"] == "assistant"
    assert (
        "".join(part["choices"][0]["delta"]["content"] for part in parts) == whole["choices"][0]["message"]["content"]
    )
    assert [part["choices"][0]["delta"].get("role") for part in parts] == ["assistant"] + [None] * (len(parts) - 1)
    assert [part["usage"] for part in parts] == [None] * len(parts)
    assert last["choices"] == []
    assert last["usage"] == whole["usage"]
    assert last["metrics"]["speculative_decoding"]["num_accepted_tokens"] >= 0
    parts = [{"role": "user", "content": [{"type": "text", "text": "The old"}, {"type": "text", "text": " house"}]}]
    assert pair.post("/v1/chat/completions", json=body | {"messages": parts}).json()["choices"] == whole["choices"]


def test_usage_in_every_event(toy):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = events(toy, "/v1/completions", dict(model="toy", prompt="ab", max_tokens=9, stream_options=options))
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == 9


def test_prompts_of_all_kinds_and_several_answers(toy):
    forms = ["abc", [0, 1, 2], ["abc", "b"], [[0, 1, 2], [1]]]
    answers = [complete(toy, prompt=form, n=2, seed=1, max_tokens=5)["choices"] for form in forms]
    assert answers[0] == answers[1]
    assert answers[2] == answers[3]
    assert [choice["index"] for choice in answers[2]] == [0, 1, 2, 3]
    assert answers[2][:2] == answers[0]
    assert len({choice["text"] for choice in answers[2]}) > 1


@pytest.mark.parametrize("tokens", ["abcdef", "abcdÃ©"])
def test_stop_strings_end_the_text_before_them_wherever_steps_end(tokens):
    """In the second case a character comes in two tokens, between which a step may end."""
    with served(toy_service(tokens)) as client:
        free = text(complete(client, max_tokens=60, seed=2))
        place = free.index(tokens.encode("latin-1").decode()[4], 8)
        for stop in free[place], free[place : place + 3], free[place - 2 : place + 1], ["nowhere", free[20:24]]:
            first = (
                min(place for one in stop if (place := free.find(one)) >= 0)
                if isinstance(stop, list)
                else free.index(stop)
            )
            body = dict(max_tokens=60, seed=2, stop=stop)
            answer = complete(client, **body)
            assert text(answer) == free[:first]
            assert answer["choices"][0]["finish_reason"] == "stop"
            assert "".join(part["text"] for part in streamed(client, **body)[0]) == free[:first]


def test_log_probabilities_are_those_of_the_law_that_was_sampled(toy):
    answer = complete(toy, prompt="ab", max_tokens=8, temperature=0.5, logprobs=2, seed=4)
    lists, tokens = answer["choices"][0]["logprobs"], [0, 1]
    for word, logprob, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        law = (TARGET(tuple(tokens)).log() / 0.5).log_softmax(-1)
        tokens.append(ord(word) - ord("a"))
        assert logprob == pytest.approx(float(law[tokens[-1]]))
        assert max(top.values()) == pytest.approx(float(law.max()))
        assert top[word] == logprob
    assert lists["text_offset"] == list(range(8))
    assert "".join(lists["tokens"]) == text(answer)


def test_chats_have_them_in_their_own_form(toy):
    body = dict(model="toy", messages=MESSAGES, max_tokens=4, logprobs=True, top_logprobs=3, seed=2)
    whole = toy.post("/v1/chat/completions", json=body).json()["choices"][0]
    content = whole["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == whole["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["bytes"] == list(entry["token"].encode()) for entry in content)
    streamed = events(toy, "/v1/chat/completions", body)
    assert [entry for chunk in streamed for entry in chunk["choices"][0]["logprobs"]["content"]] == content


def test_echoed_prompts_are_scored(toy):
    """As loglikelihood tasks do; a greedy token's own number is the very number of the best."""
    prompts = [[0, 1, 2, 3, 1], [4, 4], [2]]
    answer = complete(toy, prompt=prompts, echo=True, logprobs=1, max_tokens=1, temperature=0)
    for choice, prompt in zip(answer["choices"], prompts, strict=True):
        lists = choice["logprobs"]
        assert lists["token_logprobs"][0] is lists["top_logprobs"][0] is None
        for place in range(1, len(prompt)):
            law = TARGET(tuple(prompt[:place])).log()
            assert lists["token_logprobs"][place] == pytest.approx(float(law[prompt[place]]), abs=1e-6)
            greedy = lists["token_logprobs"][place] == max(lists["top_logprobs"][place].values())
            assert greedy == (int(law.argmax()) == prompt[place])
        assert lists["token_logprobs"][-1] == max(lists["top_logprobs"][-1].values())
        assert len(lists["tokens"]) == len(prompt) + 1
    assert text(complete(toy, prompt="abcd", echo=True, max_tokens=0)) == "abcd"


def test_penalties_and_biases_shape_the_law(toy):
    assert text(complete(toy, prompt="ab", max_tokens=9, logit_bias={"3": 100})) == "d" * 9
    greedy = dict(prompt="ab", max_tokens=6, temperature=0)
    plain = text(complete(toy, **greedy))
    free = {text(complete(toy, **greedy, **{name: 2})) for name in ("presence_penalty", "frequency_penalty")}
    assert plain not in free
    assert text(complete(toy, **greedy, repetition_penalty=1.0, min_p=0.1)) == plain
    assert text(complete(toy, prompt="ab", max_tokens=6, min_p=1)) == plain


def test_how_tokens_came_to_be_is_told_where_it_is_asked_for(toy):
    chunks = events(toy, "/v1/completions", dict(model="toy", prompt="ab", max_tokens=12, multidraft=True))
    kinds = {piece["kind"] for chunk in chunks for piece in chunk["choices"][0]["multidraft"]["pieces"]}
    assert kinds <= {"accepted", "corrected", "bonus"}
    tree = chunks[0]["choices"][0]["multidraft"]["tree"]
    assert tree[0]["parent"] is None
    assert tree[0]["text"] == "b"
    assert all(0 <= node["parent"] < place for place, node in enumerate(tree) if place)


def test_the_tokenizer_is_there(toy):
    tokens = toy.post("/tokenize", json={"prompt": "abc", "return_token_strs": True}).json()
    assert tokens == {"count": 3, "max_model_len": None, "tokens": [0, 1, 2], "token_strs": ["a", "b", "c"]}
    assert toy.post("/detokenize", json={"tokens": [2, 1]}).json() == {"prompt": "cb"}
    assert toy.post("/tokenize", json={"messages": MESSAGES}).json()["count"] > 0
    assert toy.get("/tokenizer_info").json()["tokenizer_class"]


def test_models_health_and_names_of_requests(toy):
    assert [card["id"] for card in toy.get("/v1/models").json()["data"]] == ["toy"]
    assert toy.get("/v1/models/toy").json()["root"] == "toy"
    assert toy.get("/health").status_code == 200
    assert toy.get("/health", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert toy.get("/health").headers["x-request-id"] != toy.get("/health").headers["x-request-id"]
    assert toy.get("/").headers["content-type"].startswith("text/html")


def streamed(client: httpx2.Client, **body) -> dict[int, list[dict]]:
    """The choices of a stream's events, by their index."""
    chunks = events(client, "/v1/completions", {"model": "toy", "prompt": "ab"} | body)
    choices = sorted((choice for chunk in chunks for choice in chunk["choices"]), key=lambda choice: choice["index"])
    return {index: list(own) for index, own in itertools.groupby(choices, lambda choice: choice["index"])}


def test_answers_of_one_stream_are_told_apart(toy):
    body = dict(n=3, max_tokens=9, seed=1)
    whole = {choice["index"]: choice for choice in complete(toy, **body)["choices"]}
    parts = streamed(toy, **body)
    assert {index: "".join(part["text"] for part in own) for index, own in parts.items()} == {
        index: choice["text"] for index, choice in whole.items()
    }
    assert [own[-1]["finish_reason"] for own in parts.values()] == ["length"] * 3


def test_log_probabilities_are_streamed_as_they_are_told_whole(toy):
    """Those of the echoed prompt, too; places in the text go on from event to event."""
    body = dict(prompt="abcd", echo=True, logprobs=2, max_tokens=7, seed=3)
    (whole,) = complete(toy, **body)["choices"]
    (parts,) = streamed(toy, **body).values()
    assert "".join(part["text"] for part in parts) == whole["text"]
    for name, values in whole["logprobs"].items():
        assert [value for part in parts for value in part["logprobs"][name]] == values
    assert len(parts) > 2


def test_tools_are_shown_to_the_model_unless_none_may_be_called():
    made, tools = toy_service(), [{"type": "function", "function": {"name": "dab"}}]
    made.tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool['function']['name'] }}{% endfor %}ab"
    with served(made) as client:
        for choice, count in ("auto", 5), (None, 5), ("none", 2):
            answer = client.post("/v1/chat/completions", json=CHAT | {"tools": tools, "tool_choice": choice}).json()
            assert answer["usage"]["prompt_tokens"] == count


FORMS = {"response_format": {"type": "json_schema"}, "tool_choice": "required", "best_of": 2}


@pytest.mark.parametrize(("name", "value"), [*FORMS.items(), *((name, ["x"]) for name in REFUSED)])
def test_what_is_refused_is_named(toy, name, value):
    response = toy.post("/v1/chat/completions", json=CHAT | {name: value})
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


def test_numbers_have_vllms_names_and_labels(toy):
    complete(toy, max_tokens=20)
    found = toy.get("/metrics").text.splitlines()
    for name in NUMBERS:
        lines = [line for line in found if line.startswith(name + "{")]
        assert lines, name
        assert all('model_name="toy"' in line and 'engine="0"' in line for line in lines)
        assert ("position=" in lines[0]) == name.endswith("per_pos_total")
        assert ("finished_reason=" in lines[0]) == name.endswith("success_total")


def test_an_answer_ends_at_an_end_of_text_unless_that_is_ignored_or_too_early():
    """Any token may be one; before `min_tokens` no stop string is looked for, either."""
    made = toy_service()
    made.ends = {3}
    with served(made) as client:
        whole = complete(client, max_tokens=60, seed=5, ignore_eos=True)
        for letter, body in ("d", {}), ("c", {"ignore_eos": True, "stop_token_ids": [2]}):
            ended = complete(client, max_tokens=60, seed=5, **body)
            assert text(ended) == text(whole)[: text(whole).index(letter) + 1]
            assert [one["choices"][0]["finish_reason"] for one in (whole, ended)] == ["length", "stop"]
        for settings in {}, {"stop_token_ids": [2]}, {"stop": ["a"]}:
            answers = complete(client, max_tokens=60, min_tokens=30, n=8, seed=1, **settings)
            assert answers["usage"]["completion_tokens"] >= 8 * 30
            assert "stop" in {choice["finish_reason"] for choice in answers["choices"]}


def test_nobody_gets_more_than_fits():
    """With a number of tokens that fits nowhere it is refused; without one the answer ends where there is no room."""
    with served(toy_service(context=12)) as small:
        assert small.get("/v1/models").json()["data"][0]["max_model_len"] == 12
        assert complete(small)["usage"]["completion_tokens"] == 10
        for number, status in (10, 200), (11, 400), (100_000, 400):
            body = {"model": "toy", "prompt": "ab", "max_tokens": number}
            assert small.post("/v1/completions", json=body).status_code == status
        for prompt in "ab" * 6, "ab" * 10_000:
            assert small.post("/v1/completions", json={"model": "toy", "prompt": prompt}).status_code == 400


def test_metrics_count_what_was_done(toy):
    before = numbers(toy)
    complete(toy, prompt="abcde", max_tokens=12, n=2)
    after = numbers(toy)
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 10
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 24
    drafted, accepted = (f"vllm:spec_decode_num_{what}_tokens_total" for what in ("draft", "accepted"))
    assert after[drafted] > before[drafted]
    assert after[accepted] > before[accepted]
    assert after["vllm:time_to_first_token_seconds_count"] - before["vllm:time_to_first_token_seconds_count"] == 2
    assert after["vllm:num_requests_running"] == after["vllm:num_requests_waiting"] == 0
    assert 0 < after["multidraft:acceptance_rate"] <= 1
    assert 0 < after["multidraft:optimal_acceptance_rate"] <= 1


def numbers(client: httpx2.Client) -> dict[str, float]:
    """Metrics by name, those of equal names summed."""
    found: dict[str, float] = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.split("{")[0], float(line.rsplit(" ", 1)[1])
            found[name] = found.get(name, 0) + value
    return found
