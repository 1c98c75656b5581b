"""Conversations as tokens, in the form that a model's chat template gives them, and the text of tokens that come."""

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
SECONDS, CHARACTERS = 5.0, 1 << 22  # what a template may take and write
INCOMPLETE = "\ufffd"  # what an unfinished character decodes to; a character may span several tokens


def written(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], **settings: Any) -> list[int]:
    """A conversation as tokens, up to where the model's next answer begins; `settings` are the template's.

    transformers renders in jinja's sandbox, which keeps a template from the machine, but not from running for ever.
    """
    settings = {"add_generation_prompt": True} | settings
    try:
        with limited(SECONDS, CHARACTERS):
            text = tokenizer.apply_chat_template(messages, tokenize=False, **settings)
    except Exception as error:  # templates are programs, and may fail with anything
        reason = str(error) or type(error).__name__
        raise AdviceError(f"the chat template refuses the conversation: {reason}; change its messages") from None
    return list(tokenizer(str(text), add_special_tokens=False, verbose=False)["input_ids"])


@contextmanager
def limited(seconds: float, characters: int) -> Iterator[None]:
    """Raise in a template that runs for longer, or writes more."""
    end, before = time.monotonic() + seconds, sys.gettrace()

    def inside(_: Any, event: str, value: Any) -> Any:
        nonlocal characters
        if event == "return" and isinstance(value, str):  # a piece of the output: templates are generators
            characters -= len(value)
        if characters < 0 or time.monotonic() > end:
            raise TimeoutError(f"it runs for more than {seconds:g} seconds, or writes too much")
        return inside

    def entered(frame: Any, *_: Any) -> Any:
        return inside if frame.f_code.co_filename == "<template>" else None

    sys.settrace(entered)
    try:
        yield
    finally:
        sys.settrace(before)


class IncrementalDetokenizer:
    """The text of a growing list of tokens, piece by piece; a character is held back until its last byte is there.

    The pieces together equal the decoding of all tokens at once. `before` is what the tokens continue: some tokenizers
    drop a space at the beginning of a text, and would drop the first one of ours.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", before: Sequence[int]):
        self.tokenizer, self.tokens = tokenizer, list(before[-8:])
        self.text = self.decode()
        self.shown = len(self.text)

    def decode(self) -> str:
        """The text of the tokens that are remembered."""
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def add(self, token: int) -> str:
        """What can be shown now that this token is known."""
        old, clean = len(self.tokens), self.shown == len(self.text)
        self.tokens.append(token)
        self.text = self.decode()
        whole = len(self.text) - self.text.endswith(INCOMPLETE)
        piece, self.shown = self.text[self.shown : whole], max(self.shown, whole)
        if clean and self.shown == len(self.text) and old > 8:  # forget what no later token can change
            self.tokens = self.tokens[old:]
            self.text = self.decode()
            self.shown = len(self.text)
        return piece

    def close(self) -> str:
        """What was held back, as the character that stands for broken ones."""
        return self.text[self.shown :]
