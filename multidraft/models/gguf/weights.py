"""The weights of a GGUF file, loaded once, and what the file says of its model."""

import ctypes
import hashlib
import os
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import finalize

from multidraft.errors import AdviceError
from multidraft.models.gguf.binding import last_error, library
from multidraft.models.gguf.header import check
from multidraft.models.vocabularies import Vocabulary

LONGEST = 1 << 20  # bytes of a piece of metadata; chat templates are the longest that are asked for
SAMPLED = 1 << 20  # bytes at both ends of a file, of which its digest is made
ALL = -1  # layers on the GPU


class Weights:
    """A model in memory; raises AdviceError where its file is none, or its memory cannot be rolled back."""

    def __init__(self, path: Path, gpu_layers: int | None):
        self.library, self.path = library(), path
        header = check(path)
        settings = model_settings(self.library)
        if self.library.llama_supports_gpu_offload():
            settings.n_gpu_layers = ALL if gpu_layers is None else gpu_layers
        self.pointer = self.library.llama_model_load_from_file(os.fsencode(path), settings)
        if not self.pointer:
            raise AdviceError(f"llama.cpp cannot load {str(path)!r}: {last_error()}; get another file of the model")
        finalize(self, self.library.llama_model_free, self.pointer)
        self.vocab = self.library.llama_model_get_vocab(self.pointer)
        self.vocabulary: int = self.library.llama_vocab_n_tokens(self.vocab)
        self.context: int = self.library.llama_model_n_ctx_train(self.pointer)
        self.tokens = Vocabulary(self.vocabulary, header.target_ids)
        self.check_rolls_back()

    def check_rolls_back(self) -> None:
        """Raise unless a tree can be read, and all but a path of it forgotten."""
        for name, reason in (
            ("recurrent", "has a recurrent state, which cannot be rolled back to a path of a tree"),
            ("hybrid", "has layers with a recurrent state, which cannot be rolled back to a path of a tree"),
            ("diffusion", "is a diffusion model, which does not continue text from left to right"),
        ):
            if getattr(self.library, f"llama_model_is_{name}")(self.pointer):
                raise AdviceError(f"{self.family} {reason}; use a model with attention only")
        causal = self.said(f"{self.family}.attention.causal") != "false"
        if self.library.llama_model_has_encoder(self.pointer) or not causal:
            raise AdviceError(f"{self.family} is an encoder, or has one; use a decoder-only model")

    @cached_property
    def family(self) -> str:
        """The architecture's name in llama.cpp."""
        return self.said("general.architecture") or "this model"

    def said(self, key: str) -> str | None:
        """A piece of the file's metadata."""
        text = ctypes.create_string_buffer(LONGEST)
        length = self.library.llama_model_meta_val_str(self.pointer, key.encode(), text, LONGEST)
        return None if length < 0 else text.raw[:length].decode(errors="replace")

    def number(self, name: str) -> int:
        """One of the sizes that llama.cpp tells."""
        return getattr(self.library, f"llama_model_n_{name}")(self.pointer)

    @cached_property
    def digest(self) -> str:
        """What tells this file from others: its size, and both its ends."""
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = file.read(SAMPLED)
            file.seek(max(size - SAMPLED, 0))
            return hashlib.sha256(b"%d" % size + first + file.read()).hexdigest()[:16]

    @cached_property
    def pieces(self) -> tuple[str, ...]:
        """The name of every token; what only fills the vocabulary up has none. Empty where there is no tokenizer."""
        if self.library.llama_vocab_type(self.vocab) == self.library.LLAMA_VOCAB_TYPE_NONE:
            return ()
        attributes, unused = self.library.llama_vocab_get_attr, self.library.LLAMA_TOKEN_ATTR_UNUSED
        return tuple(
            "" if attributes(self.vocab, token) & unused else self.name(token) for token in range(self.vocabulary)
        )

    def name(self, token: int) -> str:
        """A token's name."""
        return (self.library.llama_vocab_get_text(self.vocab, token) or b"").decode(errors="replace")

    @cached_property
    def ends(self) -> list[int]:
        """The tokens with which a text or an answer ends."""
        return [token for token in range(self.vocabulary) if self.library.llama_vocab_is_eog(self.vocab, token)]


def model_settings(library: Any) -> Any:
    """llama.cpp's own; without its kernels for AMX, which fault where they read q8_0 (0.3.36, on a Xeon)."""
    settings = library.llama_model_default_params()
    settings.use_extra_bufts = b"AMX_INT8 = 1" not in library.llama_print_system_info()
    return settings
