"""The tokenizer and the chat template of a GGUF file, in the form that transformers gives to tokenizers."""

import ctypes
from typing import Any

from transformers import BatchEncoding, PreTrainedTokenizerBase

from multidraft.errors import AdviceError
from multidraft.models.gguf.weights import Weights

NAMED = ("bos", "eos", "sep", "pad")
TEMPLATE = "tokenizer.chat_template"


class LlamaTokenizer(PreTrainedTokenizerBase):
    """Text to tokens and back as llama.cpp does it; raises AdviceError where a file has no pieces."""

    is_fast = False

    def __init__(self, weights: Weights):
        if not weights.pieces:
            raise AdviceError(f"{str(weights.path)!r} has no tokenizer; get a file that was converted with its own")
        self.weights, self.library = weights, weights.library
        self.tokens = {piece: token for token, piece in enumerate(weights.pieces) if piece}
        special = {name: getattr(self.library, f"llama_vocab_{name}")(weights.vocab) for name in NAMED}
        named = {f"{name}_token": weights.pieces[token] for name, token in special.items() if token >= 0}
        super().__init__(**named, chat_template=weights.said(TEMPLATE))

    def __call__(self, text: Any, *_: Any, add_special_tokens: bool = True, **__: Any) -> BatchEncoding:
        """The tokens of a text, or of several."""
        if isinstance(text, str):
            return BatchEncoding({"input_ids": self.tokens_of(text, add_special_tokens)})
        return BatchEncoding({"input_ids": [self.tokens_of(one, add_special_tokens) for one in text]})

    def tokens_of(self, text: str, special: bool) -> list[int]:
        """The tokens of a text, with those that begin and end it if asked for."""
        raw = text.encode(errors="replace")
        tokens = (self.library.llama_token * (len(raw) + 2))()  # a token has a byte at least
        count = self.library.llama_tokenize(self.weights.vocab, raw, len(raw), tokens, len(tokens), special, True)
        return tokens[:count]

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False, *_: Any, **__: Any) -> str:
        tokens = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        given = (self.library.llama_token * len(tokens))(*tokens)
        text = ctypes.create_string_buffer(16 * len(tokens) + 1)
        while (size := self.written(given, text, not skip_special_tokens)) < 0:
            text = ctypes.create_string_buffer(-size)
        return text.raw[:size].decode(errors="replace")

    def written(self, tokens: Any, text: Any, special: bool) -> int:
        """How many bytes the text of tokens has; below zero where there is no room for so many."""
        return self.library.llama_detokenize(self.weights.vocab, tokens, len(tokens), text, len(text), False, special)

    def __len__(self) -> int:
        return self.weights.vocabulary

    @property
    def vocab_size(self) -> int:
        """All tokens."""
        return self.weights.vocabulary

    def get_vocab(self) -> dict[str, int]:
        """Tokens by their names, but for those that only fill the vocabulary up."""
        return dict(self.tokens)

    def convert_tokens_to_ids(self, tokens: Any) -> Any:
        """Names made into tokens."""
        return self.tokens.get(tokens) if isinstance(tokens, str) else [self.tokens.get(name) for name in tokens]

    def convert_ids_to_tokens(self, ids: Any, skip_special_tokens: bool = False) -> Any:
        """Tokens made into names."""
        return self.weights.pieces[ids] if isinstance(ids, int) else [self.weights.pieces[token] for token in ids]

    def _convert_id_to_token(self, token: int) -> str:  # what stop strings of transformers look for
        return self.weights.pieces[token]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        """The text of named tokens."""
        return self._decode([self.tokens[name] for name in tokens], True)
