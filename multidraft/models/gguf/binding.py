"""llama.cpp by its functions in C: their signatures, and parameters at the places that its own defaults show.

Structures of parameters come and go by value, and gain members from version to version. So no version is asked for: the
defaults are known numbers, and where they stand is where the members are (llama.cpp of late 2025 and of 2026). A
structure that is handed over larger than it is does no harm.
"""

import ctypes
import struct
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from multidraft.errors import AdviceError

POINTER, INT, BOOL, SIZE, BYTES = ctypes.c_void_p, ctypes.c_int32, ctypes.c_bool, ctypes.c_size_t, ctypes.c_char_p
NUMBERS, WORD = ctypes.POINTER(INT), ctypes.c_uint32
LOG_CALLBACK = ctypes.CFUNCTYPE(None, INT, BYTES, POINTER)
SPECIAL_TOKENS = ("bos", "eos", "sep", "pad")
ROOM = 512  # bytes for a structure of parameters; the largest so far has 176
SIZES = ("n_ctx", "n_batch", "n_ubatch", "n_seq_max")
FLAGS = dict(embeddings=False, offload_kqv=True, no_perf=True, op_offload=True, swa_full=True, kv_unified=False)
DEFAULT_SIZES, DEFAULT_FLAGS = struct.pack("=4I", 512, 2048, 512, 1), bytes(FLAGS.values())
DEFAULT_THREADS, DEFAULT_TYPES = struct.pack("=2i", 4, 4), struct.pack("=2i", 1, 1)  # of keys and values: f16
DEFAULT_CHOICES = struct.pack("=4i", -1, -1, -1, -1)  # rope scaling, pooling, attention, flash attention: unsaid
NO_DEVICES = bytes(16)  # pointers to devices and to buffers, in front of the number of layers on a GPU
DEFAULT_LAYERS = {struct.pack("=2i", layers, 1) for layers in (-1, 999)}  # all of them, split among GPUs by layer
Functions = SimpleNamespace  # of a library, as attributes under llama.cpp's names
Signatures = dict[str, tuple[Any, Sequence[Any]]]  # by function its result and its arguments


class TokenBatch(ctypes.Structure):
    """The tokens of a pass."""

    _fields_ = [
        *(("n_tokens", INT), ("token", NUMBERS), ("embd", POINTER), ("pos", NUMBERS), ("n_seq_id", NUMBERS)),
        *(("seq_id", ctypes.POINTER(NUMBERS)), ("logits", ctypes.POINTER(ctypes.c_int8))),
    ]


class Parameters(ctypes.Structure):
    """Parameters of which nothing is known yet."""

    _fields_ = [("known", ctypes.c_uint8 * ROOM)]


COMMON_FUNCTIONS: Signatures = {  # of llama.cpp and of its fork
    "llama_get_logits": (POINTER, [POINTER]),
    "llama_n_ctx": (INT, [POINTER]),
    "llama_set_n_threads": (None, [POINTER, INT, INT]),
    "llama_supports_gpu_offload": (BOOL, []),
    "llama_state_get_size": (SIZE, [POINTER]),
    "llama_state_get_data": (SIZE, [POINTER, POINTER, SIZE]),
    "llama_state_set_data": (SIZE, [POINTER, POINTER, SIZE]),
    "llama_state_seq_get_size": (SIZE, [POINTER, INT, INT]),  # the last argument, flags, is the fork's alone
    "llama_state_seq_get_data": (SIZE, [POINTER, POINTER, SIZE, INT, INT]),
    "llama_state_seq_set_data": (SIZE, [POINTER, POINTER, SIZE, INT, INT]),
    "llama_memory_seq_rm": (BOOL, [POINTER, INT, INT, INT]),
    "llama_memory_seq_cp": (None, [POINTER, INT, INT, INT, INT]),
    "llama_model_free": (None, [POINTER]),
    "llama_model_n_ctx_train": (INT, [POINTER]),
    "llama_model_is_recurrent": (BOOL, [POINTER]),
    "llama_model_is_hybrid": (BOOL, [POINTER]),
    "llama_model_has_encoder": (BOOL, [POINTER]),
    "llama_model_meta_val_str": (INT, [POINTER, BYTES, BYTES, SIZE]),
    "llama_vocab_type": (INT, [POINTER]),
    "llama_vocab_get_text": (BYTES, [POINTER, INT]),
    "llama_vocab_is_eog": (BOOL, [POINTER, INT]),
    "llama_tokenize": (INT, [POINTER, BYTES, INT, NUMBERS, INT, BOOL, BOOL]),
    "llama_token_to_piece": (INT, [POINTER, INT, BYTES, INT, INT, BOOL]),
    "llama_detokenize": (INT, [POINTER, NUMBERS, INT, BYTES, INT, BOOL, BOOL]),
    "llama_log_set": (None, [LOG_CALLBACK, POINTER]),
}
LLAMA_CPP_FUNCTIONS: Signatures = COMMON_FUNCTIONS | {
    "llama_backend_init": (None, []),
    "llama_model_load_from_file": (POINTER, [BYTES, Parameters]),
    "llama_init_from_model": (POINTER, [POINTER, Parameters]),
    "llama_free": (None, [POINTER]),
    "llama_get_memory": (POINTER, [POINTER]),
    "llama_decode": (INT, [POINTER, TokenBatch]),
    "llama_batch_init": (TokenBatch, [INT, INT, INT]),
    "llama_batch_free": (None, [TokenBatch]),
    "llama_model_get_vocab": (POINTER, [POINTER]),
    "llama_model_is_diffusion": (BOOL, [POINTER]),
    "llama_vocab_n_tokens": (INT, [POINTER]),
    "llama_vocab_get_attr": (INT, [POINTER, INT]),
    **{f"llama_vocab_{name}": (INT, [POINTER]) for name in SPECIAL_TOKENS},
    "ggml_backend_reg_count": (SIZE, []),
    "ggml_backend_load_all": (None, []),
    "ggml_backend_load_all_from_path": (None, [BYTES]),
}


class LibraryFiles:
    """The files of one library, among which its functions are."""

    def __init__(self, *files: ctypes.CDLL):
        self.files = files

    def function(self, name: str, result: Any, arguments: Sequence[Any]) -> Any:
        """A function by its name there; raises AttributeError where there is none."""
        file = next((file for file in self.files if hasattr(file, name)), self.files[0])
        return ctypes.CFUNCTYPE(result, *arguments)((name, file))

    def functions(
        self, signatures: Mapping[str, tuple[Any, Sequence[Any]]], own_names: Mapping[str, str] | None = None
    ) -> Functions:
        """Several functions, some of which have names of their own there; raises AttributeError where it lacks one."""
        names = own_names or {}
        return Functions(**{name: self.function(names.get(name, name), *types) for name, types in signatures.items()})


def llama_cpp_files(path: Path) -> LibraryFiles:
    """A build of llama.cpp; raises AdviceError where it cannot be loaded."""
    # elsewhere a library's handle leads to what it needs, too
    names = [path.name, "ggml.dll", "ggml-base.dll"] if sys.platform == "win32" else [path.name]
    try:
        return LibraryFiles(*(ctypes.CDLL(str(file)) for name in names if (file := path.with_name(name)).exists()))
    except OSError as error:
        raise AdviceError(f"cannot load llama.cpp ({error}); get a build for this system and processor") from None


def llama_cpp_functions(files: LibraryFiles) -> Functions:
    """The functions of llama.cpp, with parameters as they are laid out; raises AdviceError for an unknown version."""
    try:
        functions = files.functions(LLAMA_CPP_FUNCTIONS)
        for name, members_in, taker in (
            ("llama_model_default_params", model_members, "llama_model_load_from_file"),
            ("llama_context_default_params", context_members, "llama_init_from_model"),
        ):
            defaults = files.function(name, Parameters, [])()
            kind = structure(members_in(bytes(defaults.known)))
            result, arguments = LLAMA_CPP_FUNCTIONS[taker]
            laid_out = {name: (kind, []), taker: (result, [*arguments[:-1], kind])}
            vars(functions).update(vars(files.functions(laid_out)))
        return functions
    except (AttributeError, ValueError) as error:
        advice = "get one of late 2025 or of 2026"
        raise AdviceError(f"this version of llama.cpp is not known ({error}); {advice}") from None


def context_members(defaults: bytes) -> dict[str, tuple[int, Any]]:
    """The places and types of members that are set, by the default parameters of a context; raises ValueError."""
    if not defaults.startswith(DEFAULT_SIZES):
        raise ValueError("its contexts begin with other members")
    threads = place_of(DEFAULT_THREADS, defaults, len(DEFAULT_SIZES), "threads")
    choices = place_of(DEFAULT_CHOICES, defaults, threads, "flash attention")
    types = place_of(DEFAULT_TYPES, defaults, choices, "types of keys and values")
    flags = place_of(DEFAULT_FLAGS, defaults, types, "flags")
    return (
        {name: (4 * index, WORD) for index, name in enumerate(SIZES)}
        | {"n_threads": (threads, INT), "n_threads_batch": (threads + 4, INT), "flash_attn_type": (choices + 12, INT)}
        | {"cb_eval": (types - 16, POINTER), "cb_eval_user_data": (types - 8, POINTER)}
        | {"type_k": (types, INT), "type_v": (types + 4, INT)}
        | {name: (flags + index, BOOL) for index, name in enumerate(FLAGS)}
    )


def model_members(defaults: bytes) -> dict[str, tuple[int, Any]]:
    """The places and types of members that are set, by the default parameters of a model; raises ValueError."""
    place = len(NO_DEVICES)
    if not defaults.startswith(NO_DEVICES) or defaults[place : place + 8] not in DEFAULT_LAYERS:
        raise ValueError("its models have other parameters")
    return {"n_gpu_layers": (place, INT)}


def place_of(value: bytes, defaults: bytes, start: int, name: str) -> int:
    """Where a value stands among defaults, from a place on; raises ValueError with the name of what is not there."""
    place = defaults.find(value, start)
    if place < 0:
        raise ValueError(f"its contexts have no {name} where they should be")
    return place


def structure(members: Mapping[str, tuple[int, Any]]) -> type[ctypes.Structure]:
    """A structure with these members at these places."""
    fields: list[tuple[str, Any]] = []
    end = 0
    for name, (place, kind) in sorted(members.items(), key=lambda item: item[1][0]):
        fields += [(f"before_{name}", ctypes.c_uint8 * (place - end)), (name, kind)]
        end = place + ctypes.sizeof(kind)
    fields.append(("behind", ctypes.c_uint8 * (ROOM - end)))
    return type("LaidOutParameters", (ctypes.Structure,), {"_fields_": fields})
