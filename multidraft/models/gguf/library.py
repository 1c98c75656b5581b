"""The libraries that read GGUF files: llama.cpp, and ik_llama.cpp, its fork for CPUs, which is faster on many."""

import hashlib
import logging
import os
from functools import cache
from pathlib import Path
from typing import Any

from multidraft.errors import AdviceError
from multidraft.models.gguf import LLAMA_CPP
from multidraft.models.gguf.binding import (
    LOG_CALLBACK,
    SPECIAL_TOKENS,
    Functions,
    LibraryFiles,
    llama_cpp_files,
    llama_cpp_functions,
)
from multidraft.models.gguf.keeping import digest

ERROR = 4  # the level of ggml's errors
LOAD_ERROR = b"failed to load model"  # the error behind the one that says why
# Attributes of a token: that only fills the vocabulary up, that is no text, that was added and may be no text
UNUSED_ATTRIBUTE, CONTROL_ATTRIBUTE, ADDED_ATTRIBUTE = 1 << 1, 1 << 3, 1 << 4
CACHE_TYPES = {"f32": 0, "f16": 1, "bf16": 30}  # of keys and values, by ggml's numbers
NO_FLASH_ATTENTION = 0
LIBRARY_LOG = logging.getLogger("multidraft.llama_cpp")


class Cells:
    """The cells of a context, each of which holds a token; llama.cpp looks after them itself."""

    def make_room(self, count: int) -> bool:
        """Whether so many tokens fit, after what can be done for it."""
        return True


class GGUFLibrary:
    """A library by its functions, which are attributes under llama.cpp's names; what differs beyond names are methods.

    `most_tokens` is how many tokens a call of `llama_decode` may read, `most_sequences` how many a context may hold.
    """

    name: str
    most_tokens = 1 << 20
    pass_tokens = 512  # that are computed together; a longer call is several passes
    most_sequences = 256

    def __init__(self, files: LibraryFiles, functions: Functions):
        self.files, self.functions = files, functions
        self.last_line = f"{self.name} does not say why"

        @LOG_CALLBACK
        def log_line(level: int, line: bytes, _: object) -> None:
            if level == ERROR and line.strip() and not line[:1].isspace() and LOAD_ERROR not in line:
                self.last_line = " ".join(line.decode(errors="replace").split())
                LIBRARY_LOG.debug("%s", self.last_line)

        self.log_line = log_line  # must live as long as the library may call it
        functions.llama_log_set(log_line, None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.functions, name)

    @property
    def identity(self) -> dict[str, str]:
        """What tells it from others, and from other versions of itself."""
        raise NotImplementedError

    def last_error(self) -> str:
        """What the library said of its last failure, without the name of the function that said it."""
        return self.last_line.split(": ", 1)[-1].rstrip(".")

    def model_settings(self, gpu_layers: int | None) -> Any:
        """Those with which weights are loaded."""
        return self.llama_model_default_params()

    def context_settings(self, cells: int, sequences: int, kind: str) -> Any:
        """Those of a context whose sequences share all cells, and can be cut anywhere."""
        settings = self.llama_context_default_params()
        settings.n_ctx = settings.n_batch = cells
        settings.n_ubatch, settings.n_seq_max = self.pass_tokens, sequences
        settings.type_k = settings.type_v = CACHE_TYPES[kind]
        return settings

    def cells(self, context: Any) -> Cells:
        """The cells of a context."""
        return Cells()

    def attributes(self, weights: Any, token: int) -> int:
        """What kind of token it is, as bits."""
        return self.llama_vocab_get_attr(weights.vocab, token)

    def special_tokens(self, weights: Any) -> dict[str, int]:
        """The tokens that have a role, and a negative number for roles without one."""
        return {name: getattr(self, f"llama_vocab_{name}")(weights.vocab) for name in SPECIAL_TOKENS}


class LlamaCpp(GGUFLibrary):
    """A build of llama.cpp; raises AdviceError where it is not one that can be used."""

    name = LLAMA_CPP

    def __init__(self, path: Path):
        check_alone(path)
        self.path = path
        files = llama_cpp_files(path)
        super().__init__(files, llama_cpp_functions(files))
        self.load_backends()
        self.llama_backend_init()

    def load_backends(self) -> None:
        """Let it take the variant for this processor, and GPUs, where they lie in files of their own."""
        if not self.ggml_backend_reg_count():
            self.ggml_backend_load_all_from_path(os.fsencode(self.path.parent))
        if not self.ggml_backend_reg_count():
            self.ggml_backend_load_all()  # from the folder that it was built for
        if not self.ggml_backend_reg_count():
            raise AdviceError(
                f"llama.cpp in {str(self.path.parent)!r} has no file libggml-cpu-* for this processor; unpack the "
                "whole archive, or get a build for this processor"
            )

    @property
    def identity(self) -> dict[str, str]:
        return {LLAMA_CPP: build_digest(self.path)}

    def model_settings(self, gpu_layers: int | None) -> Any:
        settings = super().model_settings(gpu_layers)
        if gpu_layers is not None and self.llama_supports_gpu_offload():
            settings.n_gpu_layers = gpu_layers  # all of them unless said
        return settings

    def context_settings(self, cells: int, sequences: int, kind: str) -> Any:
        settings = super().context_settings(cells, sequences, kind)
        settings.kv_unified = settings.swa_full = settings.no_perf = True
        if kind == "f32":  # flash attention rounds to f16, whatever it is given
            settings.flash_attn_type = NO_FLASH_ATTENTION
        return settings


def build_digest(path: Path) -> str:
    """What tells a build of llama.cpp from others: its library, and the names and sizes of the files beside it."""
    beside = sorted((file.name, file.stat().st_size) for file in path.parent.glob("*ggml*"))
    return hashlib.sha256(f"{library_digest(path, path.stat().st_mtime_ns)} {beside}".encode()).hexdigest()[:16]


@cache
def library_digest(path: Path, _: int) -> str:
    """The digest of a library of this time, which may have a hundred megabytes."""
    return digest(path)


def check_alone(path: Path) -> None:
    """Raise where files of another build, with the same names, are in this process: the system would mix them."""
    own = {file.name for file in path.parent.glob("*ggml*")}
    for other in mapped_files():
        if other.name in own and other.parent != path.parent.resolve():
            raise AdviceError(
                f"another build of llama.cpp is in this process already ({str(other)!r}), and two cannot be; use that "
                f"one, or start anew with {str(path.parent)!r} alone"
            )


def mapped_files() -> set[Path]:
    """The files that this process has mapped into its memory, where the system says so."""
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return set()
    return {Path(line.split(maxsplit=5)[5]) for line in lines if line.endswith(".so") or ".so." in line}


@cache
def llama_cpp(path: Path) -> LlamaCpp:
    """A build of llama.cpp by its file, loaded once."""
    return LlamaCpp(path)
