"""What a text is: the same in Python, on the command line and in the server, for the templates of seven families."""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx2
import pytest
from commands import job_of
from serving import events, served, service
from templates import CHATML, FAMILIES, Family, writer
from transformers import GenerationConfig

import multidraft as md
from multidraft.cli.generate import Output, decode_prompts
from multidraft.cli.serve import template_of
from multidraft.cli.serving import Serving
from multidraft.generation.text import closing_token, encode_messages, encode_text, text_ends
from multidraft.models.prefix_models import TableModel
from multidraft.sampling.settings import Sampling
from multidraft.server.request_bodies import CompletionBody

pytestmark = pytest.mark.usefixtures("unchecked")
MESSAGES = [{"role": "user", "content": "Hi"}]
ANSWER, TURN = "Hi é", " user\n\nabc"
COUNT = 30
PARTS = "{% for part in m.content %}{{ part.text }}{% endfor %}"


class World(NamedTuple):
    """A family, a model that answers and then makes up a turn of the user's, and a server."""

    family: Family
    tokenizer: Any
    model: TableModel
    tokens: list[int]  # that the model writes
    client: httpx2.Client


@pytest.fixture(scope="module", params=FAMILIES)
def world(request) -> Iterator[World]:
    """Everything of one family."""
    family = FAMILIES[request.param]
    tokenizer = family.tokenizer
    tokens = tokenizer(f"{ANSWER}{family.closing}{TURN}", add_special_tokens=False)["input_ids"]
    model = writer(tokenizer, tokens)
    with served(service(model, None, tokenizer, tree="1", context=400)) as client:
        yield World(family, tokenizer, model, tokens, client)


def python(world: World, prompt: list[int], chat: bool = False, **settings: Any) -> list[int]:
    """The new tokens from Python."""
    ends = sorted(text_ends(world.model, world.tokenizer, chat))
    settings |= {"eos_token_id": ends, "max_new_tokens": COUNT, "stop_tokenizer": world.tokenizer}
    return md.generate(world.model, None, [prompt], **settings)[0][0].tolist()


def command(world: World, capsys, prompt: str, **settings: Any) -> str:
    """The text from the command line."""
    capsys.readouterr()
    decode_prompts(job_of(world.model, world.tokenizer, prompt, **settings), False, Output(as_json=True), None)
    return json.loads(capsys.readouterr().out)["records"][0]["text"]


def post(world: World, path: str, **body: Any) -> Any:
    """A server's answer."""
    response = world.client.post(path, json={"model": "toy"} | body)
    assert response.status_code == 200, response.text
    return response.json()


def completion(world: World, prompt: str, **body: Any) -> tuple[str, str, int]:
    """The text of a completion, why it ended, and its number of tokens; whole and streamed alike."""
    body = {"prompt": prompt, "max_tokens": COUNT} | body
    answer = post(world, "/v1/completions", **body)
    parts = [event["choices"][0] for event in events(world.client, "/v1/completions", {"model": "toy"} | body)]
    choice = answer["choices"][0]
    assert "".join(part["text"] for part in parts) == choice["text"]
    return choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]


def test_a_chat_ends_with_its_turn_wherever_it_is_held(world, capsys):
    """Where the generation config names another end, and at most the template knows the right one."""
    tokenizer = world.tokenizer
    prompt = encode_messages(tokenizer, MESSAGES)
    assert tokenizer.convert_ids_to_tokens(closing_token(tokenizer)) == world.family.closing
    tokens = python(world, prompt, chat=True)
    assert tokens == world.tokens[: len(tokens)]
    assert tokens[-1] == closing_token(tokenizer)
    assert command(world, capsys, "Hi", chat=True).lstrip() == ANSWER
    answer = post(world, "/v1/chat/completions", messages=MESSAGES, max_tokens=COUNT)
    assert (answer["choices"][0]["message"]["content"].lstrip(), answer["choices"][0]["finish_reason"]) == (
        ANSWER,
        "stop",
    )
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert answer["usage"]["completion_tokens"] == len(tokens)
    (item,) = post(world, "/v1/responses", input="Hi", max_output_tokens=COUNT)["output"]
    assert item["content"][0]["text"].lstrip() == ANSWER
    assert post(world, "/tokenize", messages=MESSAGES)["tokens"] == prompt
    free = post(world, "/v1/chat/completions", messages=MESSAGES, max_tokens=COUNT, ignore_eos=True)
    assert free["choices"][0]["finish_reason"] == "length"


def test_a_text_that_is_continued_ends_as_model_and_tokenizer_say(world, capsys):
    has_end = world.family.closing == world.family.eos
    text, reason, count = completion(world, "abc")
    assert reason == ("stop" if has_end else "length")
    assert text.lstrip().startswith(ANSWER)
    assert (text.lstrip() == ANSWER) == has_end
    assert command(world, capsys, "abc") == text
    assert len(python(world, encode_text(world.tokenizer, "abc"))) == count


STOPS: dict[str, list[str]] = {
    "a special token": ["CLOSING"],
    "text with a special token in it": ["nowhere", "éCLOSING "],
    "an end that begins in text": ["ser", " éCLOSING"],
    "a character of two tokens": ["é"],
    "two at once": ["user\n\nab", "ser"],
    "line breaks": ["\n\n"],
}


@pytest.mark.parametrize("kind", STOPS)
def test_stop_strings_match_new_text_with_special_tokens_and_show_it_without(world, capsys, kind):
    """The prompt ends in a line break, which is no part of the stop string behind it."""
    closing, tokenizer = world.family.closing, world.tokenizer
    stops = [stop.replace("CLOSING", closing) for stop in STOPS[kind]]
    before = encode_text(tokenizer, "abc\n")
    raw = tokenizer.decode([*before, *world.tokens])[len(tokenizer.decode(before)) :].partition(world.family.eos)[0]
    raw += world.family.eos if closing == world.family.eos else ""
    ends = [(place + len(stop), place) for stop in stops if (place := raw.find(stop)) >= 0]
    expected = raw[: min(ends)[1] if ends else len(raw)].replace(closing, "")
    text, reason, count = completion(world, "abc\n", stop=stops)
    assert (text, reason) == (expected, "stop")
    assert command(world, capsys, "abc\n", stop=stops) == expected
    assert python(world, before, stop=stops) == world.tokens[:count]


def test_a_text_has_one_bos(world):
    """Where the tokenizer adds one, and where the text has its own, because a template has rendered it."""
    tokenizer, bos = world.tokenizer, world.family.bos
    rendered = str(tokenizer.apply_chat_template(MESSAGES, tokenize=False, add_generation_prompt=True))
    prompt = encode_messages(tokenizer, MESSAGES)
    assert post(world, "/tokenize", prompt=rendered)["tokens"] == prompt
    assert post(world, "/v1/completions", prompt=rendered, max_tokens=1)["usage"]["prompt_tokens"] == len(prompt)
    assert prompt.count(tokenizer.bos_token_id) == (bos is not None)
    plain = tokenizer("abc", add_special_tokens=False)["input_ids"]
    for special, before in (True, [tokenizer.bos_token_id] if bos else []), (False, []):
        assert post(world, "/tokenize", prompt="abc", add_special_tokens=special)["tokens"] == [*before, *plain]
    with_special = post(world, "/tokenize", messages=MESSAGES, add_special_tokens=True)["tokens"]
    assert with_special == prompt  # each template here writes the BOS that its tokenizer adds
    tokenizer.chat_template = world.family.template.replace("{{ bos_token }}", "")
    for special in True, False:
        body = {"messages": MESSAGES, "max_tokens": 1, "add_special_tokens": special}
        count = post(world, "/v1/chat/completions", **body)["usage"]["prompt_tokens"]
        assert count == len(prompt) - (bos is not None and not special)
    tokenizer.chat_template = world.family.template
    job = job_of(world.model, tokenizer, rendered)
    assert job.encode_prompts(job.prompts)[0].tokens == prompt


def test_the_bytes_of_log_probabilities_are_the_answer(world):
    """Also where a character is two tokens; and every likely token is listed, whatever its text is."""
    body = {"messages": MESSAGES, "max_tokens": COUNT, "logprobs": True, "top_logprobs": 5}
    choice = post(world, "/v1/chat/completions", **body)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == choice["message"]["content"]
    assert all(len(entry["top_logprobs"]) == 5 for entry in entries)
    parts = [entry["bytes"] for entry in entries if "\ufffd" in entry["token"]]
    assert parts == [[0xC3], [0xA9]]
    answer = post(world, "/v1/completions", prompt="abc\n", max_tokens=COUNT, logprobs=5)["choices"][0]
    lists = answer["logprobs"]
    shown = [text for text in lists["tokens"] if text != world.family.closing and not text.startswith("token_id:")]
    assert {f"token_id:{token}" for token in world.tokens if token in (196, 170)} <= {*lists["tokens"]}  # of é
    assert "".join(shown) == answer["text"].replace("é", "")
    assert all(
        len(top) in (5, 6) and text in top for text, top in zip(lists["tokens"], lists["top_logprobs"], strict=True)
    )


def test_a_developer_is_the_system_where_the_template_knows_none(world):
    told = [{"role": "developer", "content": "abc"}, *MESSAGES]
    if world.family.template.count("alternate"):
        return
    tokens = post(world, "/tokenize", messages=told)["tokens"]
    assert tokens == post(world, "/tokenize", messages=[told[0] | {"role": "system"}, *MESSAGES])["tokens"]
    assert "developer" not in world.tokenizer.decode(tokens)
    world.tokenizer.chat_template = world.family.template + "{# developer #}"
    assert "developer" in world.tokenizer.decode(post(world, "/tokenize", messages=told)["tokens"])
    world.tokenizer.chat_template = world.family.template
    answer = post(world, "/v1/responses", input=told, max_output_tokens=3)
    assert answer["usage"]["input_tokens"] == len(tokens)


def test_a_request_that_says_nothing_is_sampled_as_the_model_recommends(capsys):
    """As in vLLM; what a request says counts, also where it switches a setting off. So does the command line."""
    tokenizer = FAMILIES["Qwen 2.5"].tokenizer
    model = writer(tokenizer, tokenizer("Hi")["input_ids"], noise=0.9)
    recommended = dict(temperature=0.5, top_k=4, top_p=1.0, min_p=0.1, repetition_penalty=1.2)
    model.generation_config = GenerationConfig(do_sample=True, **recommended)
    toy = service(model, None, tokenizer, tree="1")

    def sampled(**fields: Any) -> Sampling:
        [request] = toy.make_requests(CompletionBody(model="toy", prompt="Hi", **fields))
        return request.sampling

    def number(sampling: Sampling) -> int:
        return sum(len(part.listed) for part in (sampling.before, sampling.after) if part is not None)

    assert [(*s.numbers, number(s)) for s in (sampled(), sampled(top_k=7, temperature=None))] == [
        (0.5, 4, None, 0.1, 1), (0.5, 7, None, 0.1, 1)
    ]  # fmt: skip
    off = sampled(temperature=1, top_k=0, min_p=0, repetition_penalty=1.0)
    assert (*off.numbers, number(off)) == (1.0, None, None, None, 0)
    for given, number_of_settings in ({"top_k": 9}, (0.5, 9, 0.1)), ({}, (0.5, 4, 0.1)):
        told = job_of(model, tokenizer, "Hi", **given).settings_for(model)
        assert (told["temperature"], told["top_k"], told["min_p"]) == number_of_settings
    job = job_of(model, tokenizer, "Hi", top_k=9, max_new_tokens=3)
    decode_prompts(job, False, Output(), None)
    assert (
        "generation_config says, unless told otherwise: temperature 0.5, min_p 0.1, repetition_penalty 1.2"
        in capsys.readouterr().err
    )
    model.generation_config = GenerationConfig(do_sample=True)
    job = job_of(model, tokenizer, "Hi", max_new_tokens=3)
    decode_prompts(job, False, Output(), None)
    assert "generation_config" not in capsys.readouterr().err
    assert (job.settings_for(model)["temperature"], job.settings_for(model)["top_k"]) == (1.0, None)
    model.generation_config = GenerationConfig()
    model.generation_config.top_p = 7
    with pytest.raises(md.AdviceError, match="top_p in the model's generation_config is 7"):
        decode_prompts(job, False, Output(), None)


def test_a_template_may_have_the_tags_of_transformers(tmp_path):
    """`{% generation %}` marks what is trained on; jinja alone does not know it."""
    file = tmp_path / "template.jinja"
    file.write_text("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% break %}{% endfor %}")
    tokenizer = FAMILIES["Qwen 2.5"].tokenizer
    tokenizer.chat_template = template_of(file)
    assert tokenizer.decode(encode_messages(tokenizer, MESSAGES * 2)) == "Hi"
    file.write_text("{% generation %}")
    with pytest.raises(md.AdviceError, match=r"cannot read the chat template .*; check the file"):
        template_of(file)


DEMANDING = "{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}" + CHATML
ENDINGS = {  # a template, and the markers that the tokenizer knows
    "a system message is demanded": (DEMANDING, "<|im_start|> <|im_end|>"),
    "the marker is plain text": (CHATML, ""),
    "another marker before it": (CHATML.replace("<|im_end|>", "<n><|im_end|>"), "<|im_start|> <|im_end|> <n>"),
    "content in parts": (CHATML.replace("{{ m.content }}", PARTS), "<|im_start|> <|im_end|>"),
}


@pytest.mark.parametrize("kind", ENDINGS)
def test_a_chat_ends_where_the_template_writes_it(kind, capsys):
    template, markers = ENDINGS[kind]
    tokenizer = Family(template, markers, "<|endoftext|>", "<|im_end|>").tokenizer
    messages = [{"role": "system", "content": "abc"}, *MESSAGES]
    tokens = tokenizer(f"{ANSWER}{'<n>' * ('<n>' in markers)}<|im_end|>{TURN}", add_special_tokens=False)["input_ids"]
    model = writer(tokenizer, tokens)
    with served(service(model, None, tokenizer, tree="1", context=400)) as client:
        path, body = "/v1/chat/completions", {"model": "toy", "messages": messages, "max_tokens": COUNT}
        choice = client.post(path, json=body).json()["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
        parts = [
            event["choices"][0]["delta"].get("content", "") for event in events(client, "/v1/chat/completions", body)
        ]
        assert "".join(parts) == ANSWER
        free = client.post("/v1/chat/completions", json=body | {"ignore_eos": True}).json()["choices"][0]
        assert (free["finish_reason"], TURN.strip() in free["message"]["content"]) == ("length", True)
    if template != DEMANDING:
        world = World(FAMILIES["Qwen 2.5"], tokenizer, model, tokens, client)
        assert command(world, capsys, "Hi", chat=True) == ANSWER


@pytest.mark.parametrize(
    ("template", "says"), [(CHATML, False), ("{% for m in messages %}{{ m.content }}\n{% endfor %}", True)]
)
def test_a_template_that_ends_no_answer_is_named(template, says, capsys):
    tokenizer = Family(template, "", "<|endoftext|>", "").tokenizer
    model = writer(tokenizer, tokenizer(f"{ANSWER}<|endoftext|>")["input_ids"])
    decode_prompts(job_of(model, tokenizer, "Hi", chat=True), False, Output(), None)
    assert ("shows no mark that ends an answer" in capsys.readouterr().err) == says
    Serving("embedded", "none", template=template).service()
    assert ("shows no mark that ends an answer" in capsys.readouterr().err) == says


def test_named_templates_are_chosen_as_in_transformers():
    """`tool_use` where there are tools; without one for the others, a line says so."""
    tokenizer = FAMILIES["Qwen 2.5"].tokenizer
    with_tools = "{% for tool in tools %}{{ tool.function.name }}{% endfor %}" + CHATML
    tokenizer.chat_template = {"default": CHATML, "tool_use": with_tools}
    model = writer(tokenizer, tokenizer(f"{ANSWER}<|im_end|>")["input_ids"])
    tools = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
    named: list[Any] = [{}, {"tools": tools}, {"tools": tools, "tool_choice": "none"}]
    with served(service(model, None, tokenizer, tree="1", context=400)) as client:
        for body, shown in zip(named, (None, tools, None), strict=True):
            prompt = tokenizer.apply_chat_template(MESSAGES, tools=shown, tokenize=False, add_generation_prompt=True)
            answer = client.post("/tokenize", json={"messages": MESSAGES} | body)
            assert tokenizer.decode(answer.json()["tokens"]) == prompt
            chat = client.post(
                "/v1/chat/completions", json={"model": "toy", "messages": MESSAGES, "max_tokens": 9} | body
            )
            assert chat.json()["usage"]["prompt_tokens"] == len(answer.json()["tokens"])
        del tokenizer.chat_template["default"]
        for path in "/tokenize", "/v1/chat/completions":
            statuses = [client.post(path, json={"model": "toy", "messages": MESSAGES} | body) for body in named]
            assert [response.status_code for response in statuses] == [400, 200, 400]
            assert "no default chat template, only tool_use; offer tools" in statuses[0].json()["error"]["message"]
        for path in "/tokenize", "/v1/completions":
            assert client.post(path, json={"model": "toy", "prompt": "Hi"}).status_code == 200
        assert client.get("/tokenizer_info").json()["chat_template"] == {"tool_use": with_tools}
    with pytest.raises(md.AdviceError, match="no default chat template, only tool_use"):
        decode_prompts(job_of(model, tokenizer, "Hi", chat=True), False, Output(), None)


@pytest.mark.parametrize("content", ["Hi abc", [{"type": "text", "text": "Hi "}, {"type": "text", "text": "abc"}]])
def test_a_template_of_parts_gets_them(content):
    """From a server, where content may be a text, and so may an answer that the client sends back."""
    tokenizer = FAMILIES["Qwen 2.5"].tokenizer
    tokenizer.chat_template = CHATML.replace("{{ m.content }}", PARTS)
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "b"}, *MESSAGES]
    with served(service(writer(tokenizer, [1]), None, tokenizer, tree="1")) as client:
        tokens = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
        begun = {"messages": messages[:2], "continue_final_message": True}
        continued = client.post("/tokenize", json=begun).json()["tokens"]
    text = tokenizer.decode(tokens)
    start = "<|im_start|>user\nHi abc<|im_end|>\n<|im_start|>assistant\nb"
    assert text == start + "<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(continued) == start
