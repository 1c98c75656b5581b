"""Which library reads a GGUF file."""

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from multidraft.errors import AdviceError, MissingExtra, install_command, quote
from multidraft.models.gguf import IK_LLAMA_CPP, LIBRARIES, LLAMA_CPP, header, ik_llama
from multidraft.models.gguf.library import LlamaCpp, llama_cpp

LIBRARY_VARIABLE = "MULTIDRAFT_GGUF_LIBRARY"  # the environment variable with the default library
CONVERTED_FAMILIES = ("llama", "qwen2", "qwen3")  # that are converted for transformers here
TRANSFORMERS_FAMILIES = (  # that transformers converts, in one version or another
    *("bloom", "falcon", "gemma2", "gemma3", "gemma4", "gpt-oss", "gpt2", "lfm2", "minimax-m2", "nemotron", "phi3"),
    *("qwen2moe", "qwen3moe", "stablelm", "starcoder2"),
)
BY_LLAMA_CPP = f"llama.cpp reads it ({install_command('llama-cpp')}), or give its folder of safetensors"


def library_for(path: Path, name: str | None = None, kind: str = "f16", gpu_layers: int | None = None) -> LlamaCpp:
    """The library that reads a file: the named one, else ik_llama.cpp where it can, else llama.cpp."""
    name = name or os.environ.get(LIBRARY_VARIABLE) or None
    if name not in (None, *LIBRARIES):
        raise AdviceError(f"the library is {quote(name)}; use one of {', '.join(LIBRARIES)}")
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
        is_read = header.family(path) in (*CONVERTED_FAMILIES, *TRANSFORMERS_FAMILIES)
        slower = ", or read it by --engine transformers" if is_read else ""
        raise MissingExtra(f"{error}{slower} ({IK_LLAMA_CPP} does not read {path.name}: {reason})") from error


def check_readable(path: Path, engine: str | None) -> None:
    """Raise where a file is none, or where an engine does not read its family; nothing heavy is imported."""
    header.check(path)
    if engine in (None, *LIBRARIES):
        library_for(path, engine)
    elif (family := header.family(path)) not in (*CONVERTED_FAMILIES, *TRANSFORMERS_FAMILIES):
        raise AdviceError(f"{path.name} is of the family {family!r}, which {engine} does not read; {BY_LLAMA_CPP}")


@cache
def computes_on_gpu() -> bool:
    """Whether a llama.cpp is installed that was built for a GPU."""
    return find_spec("llama_cpp") is not None and bool(llama_cpp().llama_supports_gpu_offload())
