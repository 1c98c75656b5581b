"""Which library reads a GGUF file."""

import os
from pathlib import Path

from multidraft.errors import AdviceError, MissingExtra, install_command, quote, say_once
from multidraft.models.gguf import IK_LLAMA_CPP, LIBRARIES, LLAMA_CPP, header, ik_llama
from multidraft.models.gguf.hub import look_up
from multidraft.models.gguf.library import GGUFLibrary, LlamaCpp, build_digest, llama_cpp
from multidraft.models.gguf.places import llama_cpp_path
from multidraft.models.gguf.verdicts import WIDTHS, verdict_on

MIN_TRIED_BYTES = 2**25  # of a model; those of tests are smaller
LIBRARY_VARIABLE = "MULTIDRAFT_GGUF_LIBRARY"  # the environment variable with the default library
CONVERTED_FAMILIES = ("llama", "qwen2", "qwen3")  # that are converted for transformers here
TRANSFORMERS_FAMILIES = (  # that transformers converts, in one version or another
    *("bloom", "falcon", "gemma2", "gemma3", "gemma4", "gpt-oss", "gpt2", "lfm2", "minimax-m2", "nemotron", "phi3"),
    *("qwen2moe", "qwen3moe", "stablelm", "starcoder2"),
)
GET_BUILD = f"unpack a release of it and name the folder by --llama-lib, or run {install_command('llama-cpp')}"
NO_BUILD = f"no llama.cpp is found; {GET_BUILD}"
BY_LLAMA_CPP = f"llama.cpp reads it ({install_command('llama-cpp')}), or give its folder of safetensors"


def library_for(path: Path, name: str | None = None, kind: str = "f16", gpu_layers: int | None = None) -> GGUFLibrary:
    """The library that reads a file: the named one, or the build of llama.cpp in a folder; else the fastest.

    A library that was never tried on such a model is tried in a process of its own, and not taken if it fails. Raises
    AdviceError where none is left.
    """
    name = name or os.environ.get(LIBRARY_VARIABLE) or None
    if name not in (None, *LIBRARIES) and not Path(name).expanduser().exists():
        known = ", ".join(LIBRARIES)
        raise AdviceError(f"the library is {quote(name)}; use one of {known}, or the folder of a build of llama.cpp")
    if name not in (None, IK_LLAMA_CPP):
        return named_build(path, llama_cpp_path(None if name == LLAMA_CPP else name))
    reason = ik_llama.reason_against(path, kind, gpu_layers)
    if name is not None:
        if reason is not None:
            raise AdviceError(f"{IK_LLAMA_CPP} does not read {str(path)!r}: {reason}; use {LLAMA_CPP}")
        return ik_llama.ik_llama()
    build = llama_cpp_path()
    if reason is None:
        return llama_cpp(build) if build and is_faster(build, path) else fork_for(path, build)
    try:
        return named_build(path, build)
    except MissingExtra as error:
        is_read = header.family(path) in (*CONVERTED_FAMILIES, *TRANSFORMERS_FAMILIES)
        slower = ", or read it by --engine transformers" if is_read else ""
        raise MissingExtra(f"{error}{slower} ({IK_LLAMA_CPP} does not read {path.name}: {reason})") from error


def fork_for(path: Path, build: Path | None) -> GGUFLibrary:
    """ik_llama.cpp; a line says where a build of llama.cpp, of which there is none, might be faster."""
    if build is None and ik_llama.is_outrun() and is_worth_a_trial(path):
        say_once(
            f"this processor has instructions that {IK_LLAMA_CPP} does not use: llama.cpp may be faster; {GET_BUILD}"
        )
    return ik_llama.ik_llama()


def named_build(path: Path, build: Path | None) -> LlamaCpp:
    """The build of llama.cpp in a file; raises AdviceError where there is none, or where it fails on a model."""
    if build is None:
        raise MissingExtra(NO_BUILD)
    if is_worth_a_trial(path) and (fault := verdict_on(path, str(build), build_digest(build)).fault):
        raise AdviceError(f"llama.cpp in {str(build.parent)!r} fails on {path.name}: {fault}; get another build")
    return llama_cpp(build)


def is_faster(build: Path, path: Path) -> bool:
    """Whether a build of llama.cpp reads a model rightly, and its passes take less than those of ik_llama.cpp."""
    if not is_worth_a_trial(path):
        return False
    verdict = verdict_on(path, str(build), build_digest(build))
    if verdict.fault:
        say_once(f"llama.cpp in {str(build.parent)!r} is left out: {verdict.fault}")
        return False
    other, widths = verdict_on(path, IK_LLAMA_CPP, ik_llama.IDENTITY), ", ".join(map(str, WIDTHS))
    times = f"{verdict.times} ms by {LLAMA_CPP} and {other.times} ms by {IK_LLAMA_CPP}"
    is_best = verdict.slowness < other.slowness
    say_once(f"{path.name} is read by {LIBRARIES[is_best]}: passes of {widths} tokens take {times}")
    return is_best


def is_worth_a_trial(path: Path) -> bool:
    """Whether a model is large enough for the seconds that a trial takes."""
    return sum(part.stat().st_size for part in header.parts(path)) > MIN_TRIED_BYTES


def hub_file(name: str, revision: str | None, engine: object, is_gguf: bool) -> Path | None:
    """The file of a GGUF model of the hub, downloaded if it is not here; None where a name stands for others."""
    found, needs_build = look_up(name, revision, is_gguf), engine or ik_llama.reason_against_package()
    if found and needs_build and engine in (None, LLAMA_CPP) and llama_cpp_path() is None:
        raise MissingExtra(NO_BUILD)
    return found.fetch() if found else None


def check_readable(path: Path, engine: str | None) -> None:
    """Raise where a file is none, or where an engine does not read its family; nothing heavy is imported."""
    header.check(path)
    if engine != "transformers":
        library_for(path, engine)
    elif (family := header.family(path)) not in (*CONVERTED_FAMILIES, *TRANSFORMERS_FAMILIES):
        raise AdviceError(f"{path.name} is of the family {family!r}, which {engine} does not read; {BY_LLAMA_CPP}")
