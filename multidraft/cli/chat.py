"""`multidraft generate --chat`: a conversation, or single prompts, in the form that the model's chat template gives."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import typer

from multidraft.cli import terminal
from multidraft.cli.prompts import Prompt, check_length
from multidraft.cli.terminal import Screen, Spoken
from multidraft.errors import AdviceError
from multidraft.generation.text import Message, written

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.cli.decode import Decoded

Answer = Callable[[Prompt, Screen], "Decoded"]
COMMANDS = "/reset forgets the conversation, /exit or Ctrl-D leaves, Ctrl-C stops an answer"


def check_session(options: dict[str, object]) -> None:
    """Raise on what a conversation cannot do."""
    for name, given in options.items():
        if given:
            raise AdviceError(f"a conversation has no {name}; leave it out, or give --prompt or --prompts")


class Session:
    """A conversation; the number of an answer is what its random numbers depend on."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", context: int | None, answer: Answer):
        self.tokenizer, self.context, self.answer = tokenizer, context, answer
        self.messages: list[Message] = []
        self.answers = 0

    def run(self) -> None:
        """Answer until /exit or the end of the input."""
        with suppress(ImportError):
            import readline  # noqa: F401  # with it, input() edits lines and remembers them
        terminal.legend()
        typer.echo(COMMANDS)
        while (line := ask()) not in (None, "/exit"):
            self.hear(line or "")

    def hear(self, line: str) -> None:
        """A command, or a message to answer; one that cannot be answered is forgotten."""
        if line == "/reset":
            self.messages = []
        elif line.startswith("/"):
            typer.echo(COMMANDS)
        elif line:
            before = list(self.messages)
            try:
                self.reply(line)
            except AdviceError as error:
                self.messages = before
                typer.echo(f"{error}; /reset makes room")

    def reply(self, line: str) -> None:
        """Answer a message. What there was of an answer that is stopped belongs to the conversation."""
        self.messages.append({"role": "user", "content": line})
        prompt = Prompt(self.answers, "the conversation", "", line, written(self.tokenizer, self.messages))
        check_length(prompt, self.context)
        self.answers += 1
        spoken = Spoken()
        try:
            info = self.answer(prompt, spoken)[1]
            pace = f"{info.block_efficiency:.2f} a pass, {info.tokens_per_second:.1f} per second"
            summary = f"{info.tokens} tokens, {pace}"
        except KeyboardInterrupt:
            summary = "stopped"
        self.messages.append({"role": "assistant", "content": "".join(spoken.texts[0])})
        terminal.show(f"\n[{summary}]\n")


def ask() -> str | None:
    """The next line, None at the end of the input; Ctrl-C begins another."""
    try:
        return input("\n> ").strip()
    except EOFError:
        typer.echo()
        return None
    except KeyboardInterrupt:
        return ""
