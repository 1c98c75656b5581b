"""Text of tokens that come one by one."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

INCOMPLETE = "\ufffd"  # what an unfinished character decodes to; a character may span several tokens


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
