"""Which library reads a GGUF file."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from multidraft.errors import AdviceError, MissingExtra, shown
from multidraft.models.gguf import IK_LLAMA_CPP, LIBRARIES, LLAMA_CPP, ik_llama
from multidraft.models.gguf.library import LlamaCpp, llama_cpp

LIBRARY_VARIABLE = "MULTIDRAFT_GGUF_LIBRARY"  # the environment variable with the default library


def library_for(path: Path, name: str | None = None, kind: str = "f16", gpu_layers: int | None = None) -> LlamaCpp:
    """The library that reads a file: the named one, else ik_llama.cpp where it can, else llama.cpp."""
    name = name or os.environ.get(LIBRARY_VARIABLE) or None
    if name not in (None, *LIBRARIES):
        raise AdviceError(f"the library is {shown(name)}; use one of {', '.join(LIBRARIES)}")
    if name == LLAMA_CPP or (name is None and (gpu_layers or computes_on_gpu())):
        return llama_cpp()
    reason = ik_llama.reason_against(path, kind, gpu_layers)
    if reason is None:
        return ik_llama.ik_llama()
    if name is not None:
        raise AdviceError(f"{IK_LLAMA_CPP} does not read {str(path)!r}: {reason}; use {LLAMA_CPP}")
    try:
        return llama_cpp()
    except MissingExtra as error:
        raise MissingExtra(f"{error} ({IK_LLAMA_CPP} does not read {path.name}: {reason})") from error


@cache
def computes_on_gpu() -> bool:
    """Whether a llama.cpp is installed that was built for a GPU."""
    return find_spec("llama_cpp") is not None and bool(llama_cpp().llama_supports_gpu_offload())
