"""The binding to llama.cpp, imported when it is first needed; of what the library says, its last error is kept."""

import ctypes
from functools import cache
from typing import Any

from multidraft.errors import optional

PACKAGE = "llama-cpp-python, which is built where it is installed, by cmake and a C++ compiler"
ERROR = 4  # the level of ggml's errors
SAID: list[str] = []  # the last error, if there was one


@cache
def library() -> Any:
    """The functions of llama.cpp; raises AdviceError, with the line to type, where they are not installed."""
    found: Any = optional("llama_cpp.llama_cpp", PACKAGE, "gguf")
    found.llama_log_set(listener(found), ctypes.c_void_p(0))
    return found


@cache
def listener(found: Any) -> Any:
    """What llama.cpp calls for every line that it says; the cache keeps it, as long as the library may call it."""

    def hear(level: int, line: bytes, _: object) -> None:
        if level == ERROR and line.strip():
            SAID[:] = [" ".join(line.decode(errors="replace").split())]

    return found.llama_log_callback(hear)


def last_error() -> str:
    """What the library said of its last failure, without the name of the function that said it."""
    return SAID[-1].split(": ", 1)[-1].rstrip(".") if SAID else "llama.cpp does not say why"
