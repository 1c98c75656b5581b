"""What a GGUF file holds, as a library reads it: the weights, loaded once, what it says of its model, the tokenizer."""

import ctypes
import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

import torch
from transformers import BatchEncoding, PreTrainedTokenizerBase

from multidraft.errors import AdviceError
from multidraft.machine import available, format_bytes
from multidraft.models.gguf import header
from multidraft.models.gguf.binding import INT
from multidraft.models.gguf.library import ADDED_ATTRIBUTE, CONTROL_ATTRIBUTE, UNUSED_ATTRIBUTE, GGUFLibrary
from multidraft.models.vocabularies import Vocabulary

NO_TOKENIZER = 0  # the library's type for it
TARGET_IDS = b"multidraft.target_ids"
MAX_METADATA_BYTES = 1 << 20  # bytes of a piece of metadata; chat templates are the longest that are asked for
FIRST_BYTES = 128  # room for a token's bytes
SAMPLED_BYTES = 1 << 20  # bytes at both ends of a file, of which its digest is made
STATE = "recurrent state, which cannot be rolled back to a path of a tree"


class LoadedModel:
    """A model in memory; raises AdviceError where its file is none, or its memory cannot be rolled back."""

    def __init__(self, path: Path, library: GGUFLibrary, gpu_layers: int | None):
        self.library, self.path = library, path
        self.is_on_gpu = gpu_layers != 0 and bool(library.llama_supports_gpu_offload())
        target_ids = header.whole_numbers(path, TARGET_IDS)
        check_room(header.parts(path))
        self.pointer = library.llama_model_load_from_file(os.fsencode(path), library.model_settings(gpu_layers))
        if not self.pointer:
            raise AdviceError(
                f"{library.name} cannot load {str(path)!r}: {library.last_error()}; get the file again, or another one"
            )
        finalize(self, self.library.llama_model_free, self.pointer)
        self.vocab = self.library.llama_model_get_vocab(self.pointer)
        self.vocabulary: int = self.library.llama_vocab_n_tokens(self.vocab)
        self.context: int = self.library.llama_model_n_ctx_train(self.pointer)
        self.tokens = Vocabulary(self.vocabulary, target_ids)
        self.check_rolls_back()

    def check_rolls_back(self) -> None:
        """Raise unless a tree can be read, and all but a path of it forgotten."""
        causal = self.metadata(f"{self.family}.attention.causal") != "false"
        for is_so, reason in (
            (self.library.llama_model_is_recurrent(self.pointer), f"has a {STATE}"),
            (self.library.llama_model_is_hybrid(self.pointer), f"has layers with a {STATE}"),
            (self.library.llama_model_is_diffusion(self.pointer), "is a diffusion model, which reads text in no order"),
            (self.library.llama_model_has_encoder(self.pointer) or not causal, "is an encoder, or has one"),
        ):
            if is_so:
                raise AdviceError(f"{self.family} {reason}; use a decoder-only model with attention only")

    @cached_property
    def family(self) -> str:
        """The architecture's name in llama.cpp."""
        return self.metadata("general.architecture") or "this model"

    def metadata(self, key: str) -> str | None:
        """A piece of the file's metadata."""
        text = ctypes.create_string_buffer(MAX_METADATA_BYTES)
        length = self.library.llama_model_meta_val_str(self.pointer, key.encode(), text, MAX_METADATA_BYTES)
        return None if length < 0 else text.raw[:length].decode(errors="replace")

    @cached_property
    def numbers_of_token(self) -> int:
        """How many numbers the keys and values of a token are, in all layers."""
        layers, heads, width = map(self.size, ("block_count", "attention.head_count", "embedding_length"))
        groups, size = self.size("attention.head_count_kv") or heads, width // max(heads, 1)
        sizes = [self.size(f"attention.{name}_length") or size for name in ("key", "value")]
        return layers * groups * sum(sizes)

    def size(self, name: str) -> int:
        """A whole number among the metadata of this family; 0 where there is none, or one for each layer."""
        text = self.metadata(f"{self.family}.{name}") or ""
        return int(text) if text.isdecimal() else 0

    @cached_property
    def digest(self) -> str:
        """What tells this file, with all of its parts, from others: their sizes, and both their ends."""
        content = hashlib.sha256()
        for part in header.parts(self.path):
            with part.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                content.update(b"%d" % size + file.read(SAMPLED_BYTES))
                file.seek(max(size - SAMPLED_BYTES, 0))
                content.update(file.read())
        return content.hexdigest()[:16]

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The name of every token; what only fills the vocabulary up has none. Empty where there is no tokenizer."""
        ask, vocab = self.library, self.vocab
        if ask.llama_vocab_type(vocab) == NO_TOKENIZER:
            return ()
        names = [ask.llama_vocab_get_text(vocab, token) or b"" for token in range(self.vocabulary)]
        unused = [ask.attributes(self, token) & UNUSED_ATTRIBUTE for token in range(len(names))]
        return tuple("" if no else name.decode(errors="replace") for name, no in zip(names, unused, strict=True))

    @cached_property
    def ends(self) -> list[int]:
        """The tokens with which a text or an answer ends."""
        return [token for token in range(self.vocabulary) if self.library.llama_vocab_is_eog(self.vocab, token)]


def check_room(parts: list[Path]) -> None:
    """Raise unless the parts of a model are whole, and there is memory for all weights in them."""
    for part in parts:
        header.header_of(part)
    path, needed = parts[0], sum(part.stat().st_size for part in parts)
    free = available(torch.device("cpu"))
    if free is not None and needed > free:
        raise AdviceError(
            f"the weights of {str(path)!r} take {format_bytes(needed)} of memory and {format_bytes(free)} are free; "
            "use a file with fewer bits a weight, or a smaller model"
        )


class LlamaTokenizer(PreTrainedTokenizerBase):
    """Text to tokens and back as its library does it, in the form that transformers gives to tokenizers.

    Raises AdviceError where a file has no pieces.
    """

    is_fast = False

    def __init__(self, weights: LoadedModel):
        if not weights.pieces:
            raise AdviceError(f"{str(weights.path)!r} has no tokenizer; get a file that was converted with its own")
        self.weights, self.library = weights, weights.library
        self.tokens = {piece: token for token, piece in enumerate(weights.pieces) if piece}
        special = self.library.special_tokens(weights)
        named = {f"{name}_token": weights.pieces[token] for name, token in special.items() if token >= 0}
        super().__init__(**named, chat_template=weights.metadata("tokenizer.chat_template"))

    def __call__(self, text: Any, *_: Any, add_special_tokens: bool = True, **__: Any) -> BatchEncoding:
        """The tokens of a text, or of several."""
        texts = [text] if isinstance(text, str) else text
        ids = [self.tokens_of(piece, add_special_tokens) for piece in texts]
        return BatchEncoding({"input_ids": ids[0] if isinstance(text, str) else ids})

    def tokens_of(self, text: str, special: bool) -> list[int]:
        """The tokens of a text, with those that begin and end it if asked for."""
        raw = text.encode(errors="replace")
        tokens = (INT * (len(raw) + 2))()  # a token has a byte at least
        count = self.library.llama_tokenize(self.weights.vocab, raw, len(raw), tokens, len(tokens), special, True)
        return tokens[:count]

    def as_llguidance(self) -> Any:
        """The same in llguidance's form, which asks the library itself for the tokens of a text."""
        from llguidance import LLTokenizer

        texts = [self.bytes_of(token) for token in range(len(self))]
        address = ctypes.cast(self.library.llama_tokenize, ctypes.c_void_p).value
        ends = self.library.special_tokens(self.weights)["eos"], *self.weights.ends
        end = next(token for token in ends if token >= 0)
        parts = dict(tokens=texts, vocab_ptr=self.weights.vocab, tokenize_fptr=address, eos_token=end, slices=None)
        return LLTokenizer.from_llamacpp(**parts)  # type: ignore[attr-defined]  # its stubs lack it

    def bytes_of(self, token: int) -> bytes:
        """The bytes of a token in a text; llguidance knows those that are no text by a byte that no text has."""
        attributes, written = self.library.attributes(self.weights, token), -FIRST_BYTES
        while written < 0:  # where there is no room for so many bytes
            text, size = ctypes.create_string_buffer(-written), -written
            written = self.library.llama_token_to_piece(self.weights.vocab, token, text, size, 0, True)
        raw = text.raw[:written]
        is_tag = attributes & ADDED_ATTRIBUTE and raw.startswith(b"<") and raw.endswith(b">")
        return b"\xff" + raw if attributes & CONTROL_ATTRIBUTE or is_tag else raw

    def _decode(self, token_ids: int | list[int], skip_special_tokens: bool = False, *_: Any, **__: Any) -> str:
        tokens = [token_ids] if isinstance(token_ids, int) else list(token_ids)
        array, size = (INT * len(tokens))(*tokens), 16 * len(tokens) + 1
        while True:
            text = ctypes.create_string_buffer(size)
            written = self.library.llama_detokenize(
                self.weights.vocab, array, len(tokens), text, size, False, not skip_special_tokens
            )
            if written >= 0:
                return text.raw[:written].decode(errors="replace")
            size = -written  # where there is no room for so many bytes

    def __len__(self) -> int:
        return self.weights.vocabulary

    @property
    def added_tokens_decoder(self) -> dict[int, Any]:
        """None: the library knows which tokens are no text, and leaves them out of it where that is asked for."""
        return {}

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
