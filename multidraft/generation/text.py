"""Conversations as tokens, rendered by a model's chat template, and the text of tokens as they are generated."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Message = dict[str, Any]
MAX_TEMPLATE_CHARACTERS = 1 << 22  # of a conversation that a template has rendered
REPLACEMENT = "\ufffd"  # decoded from an incomplete character; a character may span several tokens


def encode_messages(tokenizer: "PreTrainedTokenizerBase", messages: list[Message], **settings: Any) -> list[int]:
    """A conversation as tokens, up to where the model's next answer begins; `settings` go to the template.

    transformers renders in jinja's sandbox, which protects the machine, but does not limit the time.
    """
    settings = {"add_generation_prompt": True} | settings
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False, **settings))
    except Exception as error:  # a template is a program and may raise anything
        reason = str(error) or type(error).__name__
        raise AdviceError(f"the chat template refuses the conversation: {reason}; change its messages") from None
    if len(text) > MAX_TEMPLATE_CHARACTERS:
        raise AdviceError(
            f"the chat template makes {len(text):,} characters of the conversation; at most "
            f"{MAX_TEMPLATE_CHARACTERS:,} are read: shorten its messages"
        )
    return list(tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])


class IncrementalDetokenizer:
    """The text of a growing list of tokens, piece by piece; a character is held back until all its bytes are known.

    The pieces together equal the decoding of all tokens at once. `context` are the tokens before these: some tokenizers
    drop a space at the beginning of a text, which is part of the text here.

    `DecodeStream` of tokenizers cannot replace this: it raises at bytes that make no character, which a model may
    generate, repeats a context that ends within a character, has no end, and takes no tokenizer written in Python.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", context: Sequence[int]):
        self.tokenizer, self.tokens = tokenizer, list(context[-8:])
        self.text = self.decode()
        self.num_shown = len(self.text)

    def decode(self) -> str:
        """The text of the tokens that are kept."""
        return str(self.tokenizer.decode(self.tokens, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def add(self, token: int) -> str:
        """Add a token; returns the text that it completes."""
        num_known, nothing_held = len(self.tokens), self.num_shown == len(self.text)
        self.tokens.append(token)
        self.text = self.decode()
        num_complete = len(self.text.rstrip(REPLACEMENT))  # sentencepiece has one for each byte
        piece, self.num_shown = self.text[self.num_shown : num_complete], max(self.num_shown, num_complete)
        if nothing_held and self.num_shown == len(self.text) and num_known > 8:  # drop tokens whose text is final
            self.tokens = self.tokens[num_known:]
            self.text = self.decode()
            self.num_shown = len(self.text)
        return piece

    def close(self) -> str:
        """The text that is held back, in which an incomplete character is U+FFFD."""
        return self.text[self.num_shown :]
