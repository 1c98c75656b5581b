"""Prompts from the command line, a file or a conversation; they are checked before decoding starts."""

import json
import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from multidraft.cli import terminal
from multidraft.cli.engines import EMBEDDED
from multidraft.cli.options import LONE_SURROGATE
from multidraft.errors import AdviceError
from multidraft.generation.templates import Message, template_of
from multidraft.generation.text import encode_messages, encode_text, has_no_closing
from multidraft.io import files, journal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.cli.pair import Models
    from multidraft.zoo import Pair

DEMO = Path(__file__).parent.parent / "zoo" / "prompts" / "demo_prompts.jsonl"
CHAT_COMMANDS = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"
LINE_KEYS, MAX_SHOWN_KEYS = ("id", "task", "prompt"), 8
LINE_FORMAT = 'write one object a line, such as {"id": "1", "task": "story", "prompt": "Once upon a time"}'


@dataclass
class Prompt:
    """One prompt; its random numbers depend on `index`, its position in the input."""

    index: int
    id: str
    task: str
    text: str
    tokens: list[int] = field(default_factory=list)


def read_prompts(prompt: str | None, file: Path | None, limit: int | None) -> list[Prompt]:
    """The prompt of --prompt, or the first `limit` prompts of the file."""
    if (prompt is None) == (file is None):
        raise AdviceError("give either --prompt TEXT or --prompts FILE.jsonl")
    if file is None:
        if limit is not None:
            raise AdviceError("--limit is for --prompts FILE, and there is one --prompt; leave it out")
        return [Prompt(0, "prompt", "", prompt or "")]
    try:
        text = files.content(file, "the prompts file").decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise AdviceError(f"prompts file {file} is not UTF-8 text ({error.reason}); {LINE_FORMAT}") from None
    numbered = islice(((number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()), limit)
    prompts = parse_lines(file, numbered)
    if not prompts:
        raise AdviceError(f"prompts file {file} has no prompts; {LINE_FORMAT}")
    return prompts


def parse_lines(file: Path, numbered: Iterable[tuple[int, str]]) -> list[Prompt]:
    """Parse lines with their numbers; raises AdviceError if two have one id, and notes which keys nobody reads."""
    unread, lines_by_id, prompts = dict[str, None](), dict[str, int](), list[Prompt]()
    for index, (number, line) in enumerate(numbered):
        prompt = parse_line(index, line, f"{file} line {number}", unread)
        if (first := lines_by_id.setdefault(prompt.id, number)) != number:
            raise AdviceError(f"{file} lines {first} and {number} have the id {prompt.id!r}; give each its own")
        prompts.append(prompt)
    if unread:
        names = ", ".join(islice(unread, MAX_SHOWN_KEYS)) + ", ..." * (len(unread) > MAX_SHOWN_KEYS)
        terminal.note(f"{file}: of a line {', '.join(LINE_KEYS)} are read, and nothing else: not {names}")
    return prompts


def parse_line(index: int, line: str, where: str, unread: dict[str, None]) -> Prompt:
    """Parse a line of a prompts file; the names of keys without effect are added to `unread`."""
    item = journal.parse(line, where, LINE_FORMAT)
    if not isinstance(item, dict) or not isinstance(item.get("prompt"), str):
        raise AdviceError(f'{where} has no "prompt" string; {LINE_FORMAT}')
    unread.update(dict.fromkeys(key for key in item if key not in LINE_KEYS))
    name = index if item.get("id") is None else item["id"]
    prompt = Prompt(index, str(name), str(item.get("task", "")), item["prompt"])
    if LONE_SURROGATE.search(prompt.id + prompt.task + prompt.text):
        raise AdviceError(f"{where} has half a character (a lone surrogate such as \\ud800); fix or remove it")
    return prompt


def digest(prompts: list[Prompt]) -> str:
    """A short hash of the prompts."""
    content = json.dumps([(prompt.id, prompt.task, prompt.text) for prompt in prompts])
    return sha256(content.encode()).hexdigest()[:16]


def encode(prompts: list[Prompt], pair: "Models | Pair", chat: bool = False) -> None:
    """Fill in the prompts' tokens, with `chat` by the chat template; raise if one leaves no room for new tokens."""
    for prompt in prompts:
        if chat:
            prompt.tokens = encode_messages(pair.tokenizer, [{"role": "user", "content": prompt.text}])
            prompt.text += "\n"  # the answer begins on a line of its own
        else:
            prompt.tokens = encode_text(pair.tokenizer, prompt.text)
        if not prompt.tokens:
            raise AdviceError(f"prompt {prompt.id!r} is empty; give it some text")
        check_length(prompt, pair)


def check_length(prompt: Prompt, pair: "Models | Pair") -> None:
    """Raise if a prompt leaves no room for a new token."""
    from multidraft.models.user_models import context_of

    context = context_of(pair.target)
    if context is not None and len(prompt.tokens) >= context:
        raise AdviceError(
            f"prompt {prompt.id!r} has {len(prompt.tokens)} tokens, and the target's context is {context}; "
            "shorten it or leave it out"
        )


def note_short_context(prompts: list[Prompt], pair: "Models", max_new_tokens: int) -> None:
    """Say on stderr that some prompts leave less room in a model's context than `max_new_tokens`."""
    from multidraft.models.user_models import context_of

    context, draft_context = context_of(pair.target), None if pair.draft is None else context_of(pair.draft)
    longest = min(max((len(prompt.tokens) for prompt in prompts), default=0) + max_new_tokens, context or math.inf)
    if draft_context is not None and longest > draft_context:
        terminal.note(f"the draft's context is {draft_context}: behind it nothing is drafted, and decoding goes on")
    rooms = [context - len(prompt.tokens) for prompt in prompts] if context is not None else []
    short = [room for room in rooms if room < max_new_tokens]
    if short:
        terminal.note(
            f"the target's context is {context}: of {len(prompts)} prompt{'s' * (len(prompts) > 1)} {len(short)} "
            f"cannot get {max_new_tokens} new tokens; the longest gets at most {min(short)}"
        )


def check_template(tokenizer: "PreTrainedTokenizerBase", target: str) -> None:
    """Raise unless the tokenizer has a chat template."""
    if template_of(tokenizer) is not None:
        return
    reason = f"the tokenizer of {target!r} has no chat template"
    if target == EMBEDDED:
        reason = "the embedded pair continues text and was never taught to chat"
    raise AdviceError(f"{reason}; continue a text with --prompt TEXT instead, or name a chat model and a draft for it")


def note_open_answers(tokenizer: "PreTrainedTokenizerBase") -> None:
    """Say on stderr that a chat template shows no end of an answer."""
    if has_no_closing(tokenizer):
        terminal.note("the chat template shows no mark that ends an answer: chats end with the model's end of text")


def converse(pair: "Models", answer: Callable[[Prompt], tuple[str, str]]) -> None:
    """Run `multidraft generate --chat` until /exit or the end of the input.

    `answer` prints an answer, and returns it with a summary; its random numbers depend on the number of answers before.
    A stopped answer stays in the conversation as far as it came. A message that raises an error is removed.
    """
    with suppress(ImportError):
        import readline  # noqa: F401  # with it, input() edits lines and remembers them
    if pair.draft is not None:
        terminal.legend()
    typer.echo(CHAT_COMMANDS)
    messages, answers = list[Message](), 0
    while (line := read_line()) not in (None, "/exit"):
        if line == "/reset":
            messages = []
        elif line and line.startswith("/"):
            typer.echo(CHAT_COMMANDS)
        elif line:
            messages.append({"role": "user", "content": line})
            prompt = Prompt(answers, "the conversation", "", line)
            try:
                prompt.tokens = encode_messages(pair.tokenizer, messages)
                check_length(prompt, pair)
                answers += 1
                text, summary = answer(prompt)
                messages.append({"role": "assistant", "content": text})
                terminal.show(f"\n[{summary}]\n")
            except AdviceError as error:
                del messages[-1]
                typer.echo(f"{error}; /reset makes room")


def read_line() -> str | None:
    """Read a line; None at the end of the input, "" on Ctrl-C."""
    try:
        return input("\n> ").strip()
    except EOFError:
        typer.echo()
        return None
    except KeyboardInterrupt:
        return ""
