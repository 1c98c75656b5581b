"""The libraries that read GGUF files: llama.cpp, and ik_llama.cpp, its fork for CPUs, which is faster there."""

import ctypes
from functools import cache
from importlib.metadata import version
from typing import Any

from multidraft.errors import optional
from multidraft.models.gguf import LLAMA_CPP

ERROR = 4  # the level of ggml's errors
ALL_LAYERS = -1  # layers on the GPU
LOAD_ERROR = b"failed to load model"  # the error behind the one that says why
UNUSED_ATTRIBUTE = 1 << 1  # the attribute of a token that only fills the vocabulary up
SPECIAL_TOKENS = ("bos", "eos", "sep", "pad")


class Cells:
    """The cells of a context, each of which holds a token; llama.cpp looks after them itself."""

    def make_room(self, count: int) -> bool:
        """Whether so many tokens fit, after what can be done for it."""
        return True


class LlamaCpp:
    """llama.cpp, as llama-cpp-python brings it: its functions are attributes under their names in C.

    A fork answers to the same names. What differs beyond names are methods. `most_tokens` is how many tokens a call of
    `llama_decode` may read.
    """

    name, package = LLAMA_CPP, "llama-cpp-python"
    most_tokens = 1 << 20
    pass_tokens = 512  # that are computed together; a longer call is several passes

    def __init__(self, functions: Any):
        self.functions = functions
        self.last_line = f"{self.name} does not say why"

        @functions.llama_log_callback
        def log_line(level: int, line: bytes, _: object) -> None:
            if level == ERROR and line.strip() and LOAD_ERROR not in line:
                self.last_line = " ".join(line.decode(errors="replace").split())

        self.log_line = log_line  # must live as long as the library may call it
        functions.llama_log_set(log_line, ctypes.c_void_p(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.functions, name)

    @property
    def symbols(self) -> ctypes.CDLL:
        """All that it exports, ggml's functions among it."""
        return self.functions._lib

    @property
    def version(self) -> str:
        """The version of the Python package."""
        return version(self.package)

    def last_error(self) -> str:
        """What the library said of its last failure, without the name of the function that said it."""
        return self.last_line.split(": ", 1)[-1].rstrip(".")

    def model_settings(self, gpu_layers: int | None) -> Any:
        """Those with which weights are loaded."""
        settings = self.llama_model_default_params()
        # llama.cpp's kernels for AMX fault where they read q8_0 (0.3.36, on a Xeon)
        settings.use_extra_bufts = b"AMX_INT8 = 1" not in self.llama_print_system_info()
        if self.llama_supports_gpu_offload():
            settings.n_gpu_layers = ALL_LAYERS if gpu_layers is None else gpu_layers
        return settings

    def context_settings(self, cells: int, sequences: int, kind: str) -> Any:
        """Those of a context whose sequences share all cells, and can be cut anywhere."""
        settings = self.llama_context_default_params()
        settings.n_ctx = settings.n_batch = cells
        settings.n_ubatch, settings.n_seq_max = self.pass_tokens, sequences
        settings.type_k = settings.type_v = getattr(self.functions, f"GGML_TYPE_{kind.upper()}")
        self.finish_settings(settings, kind)
        return settings

    def finish_settings(self, settings: Any, kind: str) -> None:
        """What a fork has not."""
        settings.kv_unified = settings.swa_full = settings.no_perf = True
        if kind == "f32":  # flash attention rounds to f16, whatever it is given
            settings.flash_attn_type = self.LLAMA_FLASH_ATTN_TYPE_DISABLED

    def cells(self, context: Any) -> Cells:
        """The cells of a context."""
        return Cells()

    def is_unused(self, weights: Any, token: int) -> bool:
        """Whether a token only fills the vocabulary up."""
        return bool(self.llama_vocab_get_attr(weights.vocab, token) & UNUSED_ATTRIBUTE)

    def special_tokens(self, weights: Any) -> dict[str, int]:
        """The tokens that have a role, and a negative number for roles without one."""
        return {name: getattr(self, f"llama_vocab_{name}")(weights.vocab) for name in SPECIAL_TOKENS}


@cache
def llama_cpp() -> LlamaCpp:
    """llama.cpp; raises AdviceError, with the line to type, where it is not installed."""
    package = "llama-cpp-python, which is built where it is installed, by cmake and a C++ compiler"
    return LlamaCpp(optional("llama_cpp.llama_cpp", package, "llama-cpp"))
