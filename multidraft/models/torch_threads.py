"""PyTorch's own threads for compiled loops: a second pool beside them would wait for the same cores.

PyTorch's packages for Linux come with GNU's OpenMP. Its `GOMP_parallel` runs a function in every thread of a team, and
gives each caller the threads that it had before, which are those of PyTorch's operations.
"""

import ctypes
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numba import cfunc, types

FUNCTION = types.void(types.voidptr)


class Team(NamedTuple):
    """Calls a compiled function of type `FUNCTION` in so many threads; each asks for its number."""

    parallel: Callable[[int | None, int, int, int], None]  # the function's address, its data's, threads, flags
    thread_number: Any

    def run(self, function: Any, data: int) -> None:
        """Call it in as many threads as PyTorch's operations use."""
        self.parallel(function.address, data, torch.get_num_threads(), 0)


@cache
def team() -> Team | None:
    """PyTorch's threads; None where it uses other ones."""
    libraries = sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*"))
    if len(libraries) != 1 or "OpenMP" not in torch.__config__.parallel_info():
        return None
    library = ctypes.CDLL(str(libraries[0]))
    parallel = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_uint)
    number = ctypes.CFUNCTYPE(ctypes.c_int)
    return Team(parallel(("GOMP_parallel", library)), number(("omp_get_thread_num", library)))


def callback(function: Callable[[int], None]) -> Any:
    """The compiled function of a pointer to data, which a team can call."""
    return cfunc(FUNCTION)(inspect.unwrap(function))
