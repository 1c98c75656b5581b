"""Conversations: the template, the history, commands, stopping, and what has no template."""

import json
import re
from pathlib import Path

import pytest
import torch
from commands import ends_with_advice, run, save_pair, stop_at
from transformers import AutoTokenizer, LlamaForCausalLM

import multidraft as md

pytestmark = pytest.mark.usefixtures("unchecked")
TEMPLATE = (
    "{% for m in messages %}{% if m['content'] == 'forbidden' %}{{ raise_exception('not that') }}{% endif %}"
    "<{{ m['role'] }}>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    """A folder with a target and a draft model whose tokenizer has a chat template."""
    return save_pair(tmp_path_factory.mktemp("chat"), TEMPLATE)


@pytest.fixture
def heard(monkeypatch) -> list[list[int]]:
    """The prompts that were decoded; the third one is interrupted."""
    return stop_at(monkeypatch, call=3, tokens=3)


def chat(pair: Path, *arguments: object, stdin: str = ""):
    """The result of `multidraft generate --chat`, with lines typed in."""
    names = ["--target", pair / "target", "--draft", pair / "draft", "--max-new-tokens", 6, "--tree", "4x2x2x1"]
    return run("generate", *names, "--chat", *arguments, input=stdin)


def answers(shown: str) -> list[str]:
    """What was answered, between the marks for a line to type and the summaries."""
    return re.findall(r"^> (?!\n> )(.*?)\n\[(?:[^\[]* a pass, [^\[]*|stopped)\]$", shown, re.DOTALL | re.MULTILINE)


def test_a_conversation_has_a_history(pair, heard):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    result = chat(pair, "--max-new-tokens", 4, stdin="the\n\na\nin\nof\n/reset\na storm\n/exit\nnever\n")
    assert result.exit_code == 0, result.output
    messages, texts = ["the", "a", "in", "of"], answers(result.stdout)
    assert len(texts) == len(heard) == 5
    history = ""
    for line, answer, tokens in zip(messages, texts, heard, strict=False):
        history += f"<user>{line}\n<assistant>"
        assert tokenizer.decode(tokens) == history
        history += answer + "\n"
    assert tokenizer.decode(heard[4]) == "<user>a storm\n<assistant>"
    assert re.search(r"\[\d+ tokens, [\d.]+ a pass, [\d.]+ per second, stopped\]", result.stdout)
    assert 0 < len(texts[2]) < len("".join(texts))


def test_an_answer_is_that_of_the_same_prompt_and_seed(pair, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    models = [LlamaForCausalLM.from_pretrained(pair / role).eval() for role in ("target", "draft")]
    prompt = tokenizer("<user>the\n<assistant>", add_special_tokens=False)["input_ids"]
    generator = torch.Generator().manual_seed(4 * 1_000_003)
    tokens, info = md.generate(*models, [prompt], tree="4x2x2x1", max_new_tokens=6, generator=[generator])
    text = tokenizer.decode(tokens[0], skip_special_tokens=True)
    result = chat(pair, "--seed", 4, "--trace", tmp_path / "trace.jsonl", stdin="the\n")
    assert answers(result.stdout) == [text]
    assert run("replay", tmp_path / "trace.jsonl", "--check").exit_code == 0
    assert f"[6 tokens, {info.block_efficiency:.2f} a pass, " in result.stdout
    once = chat(pair, "--seed", 4, "--prompt", "the", "--json")
    assert json.loads(once.stdout)["records"][0]["text"] == text
    shown = chat(pair, "--seed", 4, "--prompt", "the").stdout
    assert f"── prompt ──\nthe\n{text}" in shown


def test_control_c_at_the_prompt_begins_another_line(pair, monkeypatch):
    lines = iter([KeyboardInterrupt, EOFError])

    def typed(_: str) -> str:
        raise next(lines)

    monkeypatch.setattr("builtins.input", typed)
    assert chat(pair).exit_code == 0
    assert next(lines, None) is None


def test_what_cannot_be_answered_is_forgotten_and_the_session_goes_on(pair, heard):
    tokenizer = AutoTokenizer.from_pretrained(pair / "target")
    result = chat(pair, stdin="/fly\n" + "storm " * 99 + "\nforbidden\nthe\n")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("/reset forgets the conversation") == 2
    assert "the target's context is 96" in result.stdout
    assert "the chat template refuses the conversation: not that" in result.stdout
    assert [tokenizer.decode(tokens) for tokens in heard] == ["<user>the\n<assistant>"]


def test_advice(pair, tmp_path):
    ends_with_advice(run("generate", "--chat"), "--prompt TEXT")
    ends_with_advice(run("generate", "--chat", "--prompt", "hello"), "was never taught to chat")
    ends_with_advice(chat(pair, "--json"), "a conversation has no --json")
    ends_with_advice(chat(pair, "--compare"), "a conversation has no --compare")
    ends_with_advice(chat(pair, "--prompt", "storm " * 99), "context")
    ends_with_advice(chat(save_pair(tmp_path), "--prompt", "the"), "has no chat template")
