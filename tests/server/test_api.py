"""The API over HTTP: what clients send and read, in both forms, whole and streamed; and what each field changes."""

from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import torch
from serving import NUM_LETTERS, complete, events, served, service
from serving import toy as toy_service

import multidraft as md
from multidraft.models.prefix_models import random_table
from multidraft.zoo import load_pair

TARGET = random_table(NUM_LETTERS, 2, 1)
COMPLETIONS, CHATS = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "The old house"}]
CHAT: dict[str, Any] = {"model": "toy", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 3}


@pytest.fixture(scope="module")
def toy() -> Iterator[httpx2.Client]:
    """A table model of known conditionals, whose tokens are letters."""
    with served(toy_service()) as client:
        yield client


def text(answer: dict, index: int = 0) -> str:
    return answer["choices"][index]["text"]


def test_a_seed_gives_the_text_that_generate_gives():
    """Greedy too, of the embedded pair, in float32: narrower numbers depend on what is read beside them."""
    pair = load_pair()
    target, draft, tokenizer = pair.target.float(), pair.draft.float(), pair.tokenizer
    inputs = tokenizer(["The old house"])["input_ids"]
    with served(service(target, draft, tokenizer, tree="2x1x1")) as client:
        for settings in {"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "top_k": 40}:
            answer = complete(client, prompt="The old house", max_tokens=12, seed=5, **settings)
            decoding = dict(tree="2x1x1", max_new_tokens=12, generator=[torch.Generator().manual_seed(5 * 1_000_003)])
            rows, _ = md.generate(target, draft, inputs, **decoding, **settings)
            assert text(answer) == tokenizer.decode(rows[0])
            read = len(inputs[0])
            counts = {"prompt_tokens": read, "completion_tokens": 12, "total_tokens": 12 + read}
            assert answer["usage"] == counts | {"prompt_tokens_details": {"cached_tokens": 0}}


def put_together(answers: list[dict]) -> list[dict]:
    """The choices of answers, or of a stream's events: texts, and lists of log-probabilities, joined."""
    by_index: dict[int, dict] = {}
    for choice in (choice for answer in answers for choice in answer["choices"]):
        message = choice.get("delta") or choice.get("message") or {"content": choice.get("text")}
        answer = by_index.setdefault(choice["index"], {"text": "", "logprobs": {}, "role": message.get("role")})
        answer["text"] += message["content"]
        answer["finish_reason"] = choice["finish_reason"]
        for name, values in (choice["logprobs"] or {}).items():
            answer["logprobs"].setdefault(name, []).extend(values)
    return [by_index[index] for index in sorted(by_index)]


@pytest.mark.parametrize(
    ("address", "body"),
    [
        (COMPLETIONS, dict(prompt="ab", max_tokens=16, seed=3)),
        (COMPLETIONS, dict(prompt="ab", n=3, max_tokens=9, seed=1)),
        (COMPLETIONS, dict(prompt="abcd", echo=True, logprobs=2, max_tokens=7, seed=3)),
        (CHATS, dict(messages=MESSAGES, max_completion_tokens=9, seed=1)),
        (CHATS, dict(messages=MESSAGES, max_tokens=9, logprobs=True, top_logprobs=3, seed=2)),
    ],
)
def test_streams_say_what_is_said_whole_one_event_a_step(toy, address, body):
    body = {"model": "toy"} | body
    whole, chunks = toy.post(address, json=body).json(), events(toy, address, body)
    assert put_together(chunks) == put_together([whole])
    assert len(chunks) > len(whole["choices"])
    assert all("usage" not in chunk for chunk in chunks)
    assert whole["object"] in ("text_completion", "chat.completion")
    assert whole["metrics"]["speculative_decoding"]["num_drafts"] >= len(chunks) - 2 * len(whole["choices"])


def test_tokens_that_were_read_before_are_counted(toy):
    """Not those of a request with a seed, which is read anew."""
    body = CHAT | {"messages": [{"role": "user", "content": "fedcbafedcba"}], "max_tokens": 1}
    answers = [toy.post(CHATS, json=body | changes).json() for changes in ({}, {}, {"seed": 1})]
    read = answers[0]["usage"]["prompt_tokens"]
    cached = [answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers]
    assert cached == [0, read - 1, 0]


def test_usage_at_the_end_or_in_every_event(toy):
    body, options = CHAT | {"max_tokens": 9, "seed": 1}, {"include_usage": True}
    whole = toy.post(CHATS, json=body).json()
    *parts, last = events(toy, CHATS, body | {"stream_options": options})
    assert [part["usage"] for part in parts] == [None] * len(parts)
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert last["metrics"]["speculative_decoding"]["num_accepted_tokens"] >= 0
    chunks = events(toy, CHATS, body | {"stream_options": options | {"continuous_usage_stats": True}})
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
    parts = [{"role": "user", "content": [{"type": "text", "text": "The old"}, {"type": "text", "text": " house"}]}]
    chats = [toy.post(CHATS, json=CHAT | {"messages": form, "seed": 1}).json() for form in (MESSAGES, parts)]
    assert chats[0]["choices"] == chats[1]["choices"]


@pytest.mark.parametrize("tokens", ["abcdef", "abcdÃ©"])
def test_stop_strings_end_the_text_before_them_wherever_steps_end(tokens):
    """In the second case a character comes in two tokens, between which a step may end."""
    with served(toy_service(tokens)) as client:
        free = text(complete(client, max_tokens=28, seed=2))
        place = free.index(tokens.encode("latin-1").decode()[4], 8)
        for stop in free[place], free[place : place + 3], free[place - 2 : place + 1], ["nowhere", free[20:24]]:
            first = min(at for string in ([stop] if isinstance(stop, str) else stop) if (at := free.find(string)) >= 0)
            body = dict(model="toy", prompt="ab", max_tokens=28, seed=2, stop=stop)
            whole = complete(client, **body)
            assert (text(whole), whole["choices"][0]["finish_reason"]) == (free[:first], "stop")
            assert put_together(events(client, COMPLETIONS, body)) == put_together([whole])


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
    chat = toy.post(CHATS, json=CHAT | {"logprobs": True, "top_logprobs": 3}).json()["choices"][0]
    content = chat["logprobs"]["content"]
    assert "".join(entry["token"] for entry in content) == chat["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 3 and entry["bytes"] == list(entry["token"].encode()) for entry in content)


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
    assert text(complete(toy, max_tokens=9, logit_bias={"3": 100})) == "d" * 9
    greedy = dict(max_tokens=6, temperature=0)
    plain = text(complete(toy, **greedy))
    assert plain not in {text(complete(toy, **greedy, **{f"{name}_penalty": 2})) for name in ("presence", "frequency")}
    assert text(complete(toy, **greedy, repetition_penalty=1.0, min_p=0.1)) == plain
    assert text(complete(toy, max_tokens=6, min_p=1)) == plain
    assert text(complete(toy, max_tokens=6, top_n_sigma=1e-9)) == plain


def test_how_tokens_came_to_be_is_told_where_it_is_asked_for(toy):
    trees = [
        chunk["choices"][0]["multidraft"]
        for chunk in events(toy, COMPLETIONS, dict(model="toy", prompt="ab", max_tokens=12, multidraft=True))
    ]
    assert {piece["kind"] for tree in trees for piece in tree["pieces"]} <= {"accepted", "recovered", "bonus"}
    assert (trees[0]["tree"], trees[0]["prompt_tokens_read"]) == ([], 0)  # comes at once: the prompt is being read
    tree = next(tree["tree"] for tree in trees if tree["tree"])
    assert (tree[0]["parent"], tree[0]["text"]) == (None, "b")
    assert all(0 <= node["parent"] < place for place, node in enumerate(tree) if place)


def test_how_much_of_a_prompt_is_read_is_told_where_it_is_asked_for(toy):
    """In pieces of four tokens; other clients get no event without text."""
    body = dict(model="toy", prompt="abcdefabcdefabcdef", max_tokens=2)
    choices = [chunk["choices"][0] for chunk in events(toy, COMPLETIONS, body | {"multidraft": True})]
    start, *read = [choice["multidraft"]["prompt_tokens_read"] for choice in choices if not choice["text"]]
    assert (start, read) == (0, list(range(read[0], 18, 4)))  # the first piece goes on from what the cache has of it
    assert read[-1] == 17
    assert {choice["multidraft"]["plain_seconds"] for choice in choices} == {None}  # of a fixed tree no step is plain
    assert {type(choice["multidraft"]["busy"]) for choice in choices} == {bool}
    assert all(chunk["choices"][0]["text"] for chunk in events(toy, COMPLETIONS, body))


def test_the_tokenizer_the_model_its_state_and_a_page(toy):
    tokens = toy.post("/tokenize", json={"prompt": "abc", "return_token_strs": True}).json()
    longest = tokens.pop("max_model_len")
    refused = toy.post(COMPLETIONS, json={"model": "toy", "prompt": "abc", "max_tokens": longest - 2})
    assert f"room for, {longest} in all" in refused.json()["error"]["message"]
    assert tokens == {"count": 3, "tokens": [0, 1, 2], "token_strs": ["a", "b", "c"]}
    assert toy.post("/detokenize", json={"tokens": [2, 1]}).json() == {"prompt": "cb"}
    assert toy.post("/tokenize", json={"messages": MESSAGES}).json()["count"] > 0
    assert toy.get("/tokenizer_info").json()["tokenizer_class"]
    assert [card["id"] for card in toy.get("/v1/models").json()["data"]] == ["toy"]
    assert toy.get("/v1/models/toy").json()["root"] == "toy"
    assert toy.get("/version").json() == {"version": md.__version__}
    assert toy.get("/health").status_code == 200
    assert toy.get("/health", headers={"x-request-id": "mine"}).headers["x-request-id"] == "mine"
    assert toy.get("/health").headers["x-request-id"] != toy.get("/health").headers["x-request-id"]
    assert toy.get("/").headers["content-type"].startswith("text/html")


FORMS = {"response_format": {"type": "json_schema"}, "tool_choice": "required", "best_of": 2}


@pytest.mark.parametrize(("name", "value"), FORMS.items())
@pytest.mark.parametrize(("address", "body"), [(CHATS, CHAT), (COMPLETIONS, {"model": "toy", "prompt": "ab"})])
def test_what_is_refused_is_named(toy, address, body, name, value):
    response = toy.post(address, json=body | {name: value})
    assert response.status_code == 400
    assert response.json()["error"]["message"].startswith(name)


NUMBERS = {  # of ten prompt tokens and 24 new ones, what a number has grown by; None for anything above zero
    "num_requests_running num_requests_waiting kv_cache_usage_perc prefix_cache_hits_total": 0,
    "prompt_tokens_total prefix_cache_queries_total": 10,
    "generation_tokens_total": 24,
    "time_to_first_token_seconds_count e2e_request_latency_seconds_count request_success_total": 2,
    "inter_token_latency_seconds_count spec_decode_num_drafts_total spec_decode_num_draft_tokens_total": None,
    "spec_decode_num_accepted_tokens_total spec_decode_num_accepted_tokens_per_pos_total": None,
}
OURS = "acceptance_rate", "optimal_acceptance_rate", "nodes_per_step"


def numbers(client: httpx2.Client) -> dict[str, float]:
    """Metrics by name, those of equal names summed."""
    by_name: dict[str, float] = {}
    for line in client.get("/metrics").text.splitlines():
        if not line.startswith("#"):
            name, value = line.split("{")[0], float(line.rsplit(" ", 1)[1])
            assert 'model_name="toy"' in line
            assert 'engine="0"' in line
            assert ("position=" in line) == name.endswith("per_pos_total")
            assert ("finished_reason=" in line) == name.startswith("vllm:request_success")
            by_name[name] = by_name.get(name, 0) + value
    return by_name


def test_metrics_have_vllms_names_and_count_what_was_done():
    """With a scheme whose acceptance is summed over all tuples: of those drawn it may exceed the optimum."""
    with served(toy_service(scheme="iid:lorenz")) as client:
        before = numbers(client)
        complete(client, prompt="abcde", max_tokens=12, n=2, seed=1)
        after = numbers(client)
    for names, count in NUMBERS.items():
        for name in names.split():
            grown = after[f"vllm:{name}"] - before.get(f"vllm:{name}", 0)
            assert grown > 0 if count is None else grown == count, name
    rate, best, nodes = (after[f"multidraft:{name}"] for name in OURS)
    assert 0 < rate <= best + 1e-9 <= 1 + 1e-9
    assert nodes > 0


def test_an_answer_ends_at_an_end_of_text_unless_that_is_ignored_or_too_early():
    """Any token may be one; before `min_tokens` no stop string is looked for, either. Tools are shown to the model."""
    made_service, tools = toy_service(), [{"type": "function", "function": {"name": "dab"}}]
    made_service.ends = {chat: {3} for chat in (False, True)}
    made_service.tokenizer.chat_template = "{% for tool in tools or [] %}{{ tool['function']['name'] }}{% endfor %}ab"
    with served(made_service) as client:
        whole = complete(client, max_tokens=30, seed=5, ignore_eos=True)
        for letter, body in ("d", {}), ("c", {"ignore_eos": True, "stop_token_ids": [2]}):
            ended = complete(client, max_tokens=30, seed=5, **body)
            assert text(ended) == text(whole)[: text(whole).index(letter) + 1]
            assert [answer["choices"][0]["finish_reason"] for answer in (whole, ended)] == ["length", "stop"]
        for settings in {}, {"stop_token_ids": [2]}, {"stop": ["a"]}:
            answers = complete(client, max_tokens=20, min_tokens=8, n=4, seed=1, **settings)
            assert answers["usage"]["completion_tokens"] >= 4 * 8
            assert "stop" in {choice["finish_reason"] for choice in answers["choices"]}
        for choice, count in ("auto", 5), (None, 5), ("none", 2):
            answer = client.post(CHATS, json=CHAT | {"tools": tools, "tool_choice": choice}).json()
            assert answer["usage"]["prompt_tokens"] == count


def test_nobody_gets_more_than_fits():
    """With a number of tokens that fits nowhere it is refused; without one the answer ends where there is no room."""
    with served(toy_service(context=12)) as small:
        assert small.get("/v1/models").json()["data"][0]["max_model_len"] == 12
        assert complete(small)["usage"]["completion_tokens"] == 10
        sizes = [("ab", 10, 200), ("ab", 11, 400), ("ab", 100_000, 400), ("ab" * 6, 1, 400), ("ab" * 10_000, 1, 400)]
        for prompt, number, status in sizes:
            body = {"model": "toy", "prompt": prompt, "max_tokens": number}
            assert small.post(COMPLETIONS, json=body).status_code == status
