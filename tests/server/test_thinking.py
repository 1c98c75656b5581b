"""The form of an answer leaves thinking before it free, whole and streamed, on the command line and from Python."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import job_of
from serving import events, served, service
from templates import CHATML, FAMILIES, writer

import multidraft as md
from multidraft.cli.generate import Output, decode_prompts
from multidraft.generation.text import encode_messages, text_ends
from multidraft.sampling.grammar import PathMasks

pytestmark = pytest.mark.usefixtures("unchecked")
MESSAGES = [{"role": "user", "content": "Hi"}]
CHAT: dict[str, Any] = {"model": "toy", "messages": MESSAGES, "max_tokens": 40, "temperature": 0}
OPEN = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}{# </think> #}")
CASES = {  # a family, another template, settings of the template, what the model would write, the thought, the answer
    "Qwen 3": ("Qwen 3", None, {}, "<think>a{1}b</think>yes", "a{1}b", "yes"),
    "Qwen 3, not thinking": ("Qwen 3", None, {"enable_thinking": False}, "<think>a</think>yes", "", None),
    "Qwen 3 that does not": ("Qwen 3", None, {}, "yes", "", "yes"),
    "begun by the prompt": ("Qwen 3", OPEN, {}, "a{1}b</think>yes", "a{1}b", "yes"),
    "tags of several tokens": ("Qwen 2.5", CHATML + "{# </think> #}", {}, "<think>a{1}b</think>yes", "a{1}b", "yes"),
    "several tokens, begun by the prompt": ("Qwen 2.5", OPEN, {}, "a{1}b</think>yes", "a{1}b", "yes"),
    "a template that knows none": ("Qwen 2.5", None, {}, "<think>a</think>yes", "", None),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_form_begins_where_thinking_ends(kind, capsys):
    name, template, settings, written, thought, answer = CASES[kind]
    tokenizer = FAMILIES[name].tokenizer
    tokenizer.chat_template = template or tokenizer.chat_template
    tokens = tokenizer(f"{written}<|im_end|>", add_special_tokens=False)["input_ids"]
    model, body = writer(tokenizer, tokens, noise=0.01), CHAT | {"chat_template_kwargs": settings}
    with served(service(model, None, tokenizer, tree="1", context=400)) as client:
        for form in {"guided_choice": ["yes", "no"]}, {"guided_regex": "yes|no"}:
            choice = client.post("/v1/chat/completions", json=body | form).json()["choices"][0]
            assert choice["finish_reason"] == "stop"
            assert choice["message"].get("reasoning_content", "") == thought
            assert choice["message"]["content"] in ([answer] if answer else ["yes", "no"])
            deltas = [event["choices"][0]["delta"] for event in events(client, "/v1/chat/completions", body | form)]
            for part in "content", "reasoning_content":
                assert "".join(delta.get(part, "") for delta in deltas) == choice["message"].get(part, "")
        if not settings:
            form = {"text": {"format": {"type": "json_schema", "name": "a", "schema": {"enum": [1, 2]}}}}
            asked = {"model": "toy", "input": "Hi", "max_output_tokens": 40, "temperature": 0}
            (item,) = client.post("/v1/responses", json=asked | form).json()["output"]
            assert item["content"][0]["text"] in ("1", "2")
    if not settings:
        job = job_of(model, tokenizer, "Hi", chat=True, temperature=0, schema='{"enum": [1, 2]}')
        capsys.readouterr()
        decode_prompts(job, False, Output(as_json=True), None)
        assert f"{thought}</think>" * bool(thought) in capsys.readouterr().out


def test_thinking_may_end_within_a_token_and_its_rest_counts():
    tokenizer = FAMILIES["Qwen 2.5"].tokenizer
    tokenizer.add_tokens(["ink>n", "ink>\n"])
    grammar = md.Grammar(tokenizer, regex="yes|no", thinking=False)
    ends = [tokenizer.eos_token_id]
    masks = PathMasks(grammar, ends, len(tokenizer))

    def allowed(*pieces: str) -> str:
        path = tuple(token for piece in pieces for token in tokenizer(piece, add_special_tokens=False)["input_ids"])
        places = np.flatnonzero(~masks.forbidden(path))
        return "any" if len(places) == len(tokenizer) else "".join(sorted(tokenizer.decode([int(t)]) for t in places))

    assert allowed() == "<ny"
    assert allowed("<th") == "i"
    assert allowed("<think>") == allowed("<think>a</th") == "any"
    assert allowed("<think>a</think>") == allowed("<think>a</th", "ink>\n") == "ny"
    assert allowed("<think>a</th", "ink>n") == allowed("<think>b</think>n") == allowed("n") == "o"
    assert allowed("<think>a</th", "ink>n", "o") == tokenizer.eos_token
    assert md.Grammar(tokenizer, regex="yes|no").thinking is None


def test_python_takes_the_same(tmp_path: Path):
    tokenizer = FAMILIES["Qwen 3"].tokenizer
    tokens = tokenizer("<think>a</think>maybe", add_special_tokens=False)["input_ids"]
    model, prompt = writer(tokenizer, tokens, noise=0.01), encode_messages(tokenizer, MESSAGES)
    grammar = md.Grammar(tokenizer, regex="yes|no", thinking=False)
    ends = sorted(text_ends(model, tokenizer, chat=True))
    new, _ = md.generate(model, None, [prompt], grammar=grammar, temperature=0, eos_token_id=ends)
    assert tokenizer.decode(new[0], skip_special_tokens=True) in ("<think>a</think>yes", "<think>a</think>no")
