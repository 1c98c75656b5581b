"""What a text is: prompts and conversations as tokens, the tokens that end a text, and the text of new tokens."""

import re
from collections.abc import Sequence
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from multidraft.generation.templates import Message, render, texts_around
from multidraft.sampling import thinking

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

REPLACEMENT = "\ufffd"  # decoded from an incomplete character; a character may span several tokens
MAX_WAITS = 64  # tokens after which what is held back is no character: a model may write bytes for ever
CONTEXT_TOKENS = 8  # before a text, for its first space and character
ANCHOR = "a"  # a text before a token
BYTE_NAME = re.compile("<0x([0-9A-F]{2})>")
SHOWN_BYTES = [*range(33, 127), *range(161, 173), *range(174, 256)]  # whose letters are their own; others come behind
HIDDEN_BYTES = [byte for byte in range(256) if byte not in SHOWN_BYTES]
BYTE_OF_LETTER = {chr(byte): byte for byte in SHOWN_BYTES} | {chr(256 + n): byte for n, byte in enumerate(HIDDEN_BYTES)}
PLAIN_TAG = re.compile(r"\s*(<[^<>\s]+>|\[[^\[\]\s]+\])")


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str, special: bool = True) -> list[int]:
    """The tokens of a text; with `special` as the tokenizer begins one, but with one BOS where the text has its own.

    An empty text is the BOS token, if there is one.
    """
    tokens = tokens_of(tokenizer, text, special)
    bos = tokenizer.bos_token_id
    if not special or bos is None:
        return tokens
    if tokens[:2] == [bos, bos] and len(tokens_of(tokenizer, text, False)) < len(tokens):
        return tokens[1:]
    return tokens or [bos]


def tokens_of(tokenizer: "PreTrainedTokenizerBase", text: str, special: bool) -> list[int]:
    """The tokens of a text, without a warning of long ones, which are refused elsewhere."""
    return list(tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"])


def encode_messages(
    tokenizer: "PreTrainedTokenizerBase", messages: list[Message], special: bool = False, **settings: Any
) -> list[int]:
    """A conversation as tokens, up to where the model's next answer begins; `settings` go to the template.

    With `special` also those that the tokenizer adds to a text: most templates write them.
    """
    return encode_text(tokenizer, render(tokenizer, messages, **settings), special)


def text_ends(model: Any, tokenizer: "PreTrainedTokenizerBase | None", chat: bool = False) -> set[int]:
    """The tokens that end a text: the model's by its generation config, the tokenizer's, in a chat the template's.

    Fine-tuned models often have only one of them right.
    """
    from multidraft.models.user_models import vocabulary_size
    from multidraft.sampling.generation_config import ends_of

    ends = ends_of(getattr(model, "generation_config", None), set())
    if tokenizer is None:
        return ends
    others = [tokenizer.eos_token_id, closing_token(tokenizer) if chat else None]
    return ends | {token for token in others if token is not None and token < vocabulary_size(model)}


def closing_token(tokenizer: "PreTrainedTokenizerBase") -> int | None:
    """The token that ends an answer by the chat template; None without a template, or where it writes none.

    Of the markers behind an answer it is the last one before the next turn begins: the last that is there at the end of
    the conversation, too, unless conversations begin with it. The tokenizer's end of text goes first.
    """
    first, last, before_turn = (tokens_of(tokenizer, text, False) for text in texts_around(tokenizer))
    begins = [*takewhile(lambda token: is_marker(tokenizer, token), first)]
    shared = [token for token, _ in takewhile(lambda pair: pair[0] == pair[1], zip(last, before_turn, strict=False))]
    closings = [token for token in shared if is_marker(tokenizer, token)]
    if tokenizer.eos_token_id in closings:
        return tokenizer.eos_token_id
    closings = [token for token in closings if token not in begins] or closings
    others = (token for token in (*last, *before_turn) if is_marker(tokenizer, token))
    return closings[-1] if closings else next(others, None)


def closing_texts(tokenizer: "PreTrainedTokenizerBase") -> list[str]:
    """The tag behind an answer, if it is plain text to the tokenizer: a stop string of chats."""
    _, last, before_turn = texts_around(tokenizer)
    tag = PLAIN_TAG.match(last)
    has_marker = any(is_marker(tokenizer, token) for token in tokens_of(tokenizer, last, False))
    return [tag[1]] if tag and not has_marker and (before_turn or last).startswith(tag[0]) else []


def has_no_closing(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether there is a chat template, and nothing in it that ends an answer."""
    return bool(tokenizer.chat_template) and closing_token(tokenizer) is None and not closing_texts(tokenizer)


def thinking_of(tokenizer: "PreTrainedTokenizerBase", prompt: Sequence[int], template: str) -> bool | None:
    """Whether a chat's prompt has begun to think (True), the answer may begin with it (False), or neither (None)."""
    end = decode(tokenizer, list(prompt[-2 * CONTEXT_TOKENS :])).rstrip()
    if end.endswith(thinking.BEGIN):
        return True
    return None if thinking.END not in template or end.endswith(thinking.END) else False


def is_marker(tokenizer: "PreTrainedTokenizerBase", token: int) -> bool:
    """Whether a token is no part of the text: a special one, or one that was added, unless it is only space."""
    text = decode(tokenizer, [token])
    is_added = token in getattr(tokenizer, "added_tokens_decoder", ())
    return decode(tokenizer, [token], skip_special=True) != text or (is_added and bool(text.strip()))


def decode(tokenizer: "PreTrainedTokenizerBase", tokens: list[int], skip_special: bool = False) -> str:
    """The text of tokens as it is, with special tokens or without."""
    settings = {} if skip_special else {"spaces_between_special_tokens": False}
    return str(
        tokenizer.decode(tokens, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False, **settings)
    )


@lru_cache(1 << 16)
def token_text(tokenizer: "PreTrainedTokenizerBase", token: int) -> str:
    """The text of a token behind others, where it keeps its first space."""
    before = tokens_of(tokenizer, ANCHOR, False)
    anchor, text = decode(tokenizer, before), decode(tokenizer, [*before, token])
    return text[len(anchor) :] if text.startswith(anchor) else decode(tokenizer, [token])


def token_bytes(tokenizer: "PreTrainedTokenizerBase", token: int) -> bytes | None:
    """The bytes of a token that is a part of a character, by its name; None for a name of another kind.

    The two kinds are those of SentencePiece, one byte each, and of GPT-2, a letter for each byte.
    """
    name = str(tokenizer.convert_ids_to_tokens(token))
    if match := BYTE_NAME.fullmatch(name):
        return bytes.fromhex(match[1])
    return bytes(BYTE_OF_LETTER[letter] for letter in name) if BYTE_OF_LETTER.keys() >= set(name) else None


class IncrementalDetokenizer:
    """The text of a growing list of tokens, piece by piece; a character is held back until all its bytes are known.

    The pieces together equal the decoding of all tokens at once. `context` are the tokens before these: some tokenizers
    drop a space at the beginning of a text, which is part of the text here.

    `DecodeStream` of tokenizers cannot replace this: it raises at bytes that make no character, which a model may
    generate, repeats a context that ends within a character, has no end, and takes no tokenizer written in Python.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", context: Sequence[int], skip_special: bool = True):
        self.tokenizer, self.tokens, self.skip_special = tokenizer, list(context[-CONTEXT_TOKENS:]), skip_special
        self.text = self.decode()
        self.num_shown, self.num_waits = len(self.text), 0  # characters; tokens since something is held back

    def decode(self) -> str:
        """The text of the tokens that are kept."""
        return decode(self.tokenizer, self.tokens, self.skip_special)

    def add(self, token: int) -> str:
        """Add a token; returns the text that it completes."""
        num_known, before = len(self.tokens), self.text
        nothing_held = self.num_shown == len(before)
        self.tokens.append(token)
        self.text = self.decode()
        if nothing_held and self.text == before and (before or decode(self.tokenizer, [token])):
            del self.tokens[-1]  # a special token, which is not shown
            return ""
        num_complete = len(self.text.rstrip(REPLACEMENT))  # sentencepiece has one for each byte
        piece, self.num_shown = self.text[self.num_shown : num_complete], max(self.num_shown, num_complete)
        if piece and nothing_held and self.num_shown == len(self.text) and num_known > CONTEXT_TOKENS:
            self.keep(self.tokens[num_known:])  # the text of those before is final, and this one has some
        self.num_waits = 0 if self.num_shown == len(self.text) else self.num_waits + 1
        if self.num_waits > MAX_WAITS:
            piece += self.close()
            self.keep(self.tokens[-1:])
        return piece

    def keep(self, tokens: list[int]) -> None:
        """Go on with these tokens, whose text is shown."""
        self.tokens, self.num_waits = tokens, 0
        self.text = self.decode()
        self.num_shown = len(self.text)

    def close(self) -> str:
        """The text that is held back, in which an incomplete character is U+FFFD."""
        return self.text[self.num_shown :]
