"""Thinking before an answer, `<think> ... </think>`: the form of an answer leaves it free. Without torch."""

from bisect import bisect_left
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BEGIN, END = "<think>", "</think>"
TokenPath = tuple[int, ...]  # new tokens


class Thinking:
    """Where an answer begins in a path of new tokens. `is_open` if the prompt has begun to think, else the path may."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", is_open: bool):
        self.tokenizer = tokenizer
        self.begin: TokenPath = () if is_open else self.encode(BEGIN)
        self.end = self.encode(END)
        self.thought: TokenPath = ()  # the last one that had an end
        self.left_over: TokenPath = ()  # the beginning of the answer in the token that ended it

    def encode(self, text: str) -> TokenPath:
        """The tokens of a text."""
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def decode(self, path: TokenPath) -> str:
        """The text of tokens, with tags that are special tokens."""
        return str(self.tokenizer.decode(list(path), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def answer_in(self, path: TokenPath) -> TokenPath | None:
        """The answer's tokens in a path; None while the model thinks."""
        count = len(self.begin)
        if path[:count] != self.begin:
            return path
        if not self.thought or path[: len(self.thought)] != self.thought:
            if (size := self.thought_size(path[count:])) is None:
                return None
            self.thought = path[: count + size]
            self.left_over = self.encode(self.decode(self.thought[count:]).partition(END)[2].strip())
        return self.left_over + path[len(self.thought) :]

    def thought_size(self, path: TokenPath) -> int | None:
        """The number of tokens up to the end of thinking, the token with its last letter among them."""
        if len(self.end) == 1:
            return path.index(self.end[0]) + 1 if self.end[0] in path else None
        if END not in self.decode(path):
            return None
        return bisect_left(range(len(path)), True, key=lambda size: END in self.decode(path[:size]))

    def next_of_tag(self, path: TokenPath) -> int | None:
        """The token that goes on with the opening tag, at the beginning or within it."""
        count = len(path)
        return self.begin[count] if count < len(self.begin) and path == self.begin[:count] else None
