"""Conversations in the form that a model's chat template gives them."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
SECONDS, CHARACTERS = 5.0, 1 << 22  # what a template may take and write


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
