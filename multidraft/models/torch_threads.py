"""PyTorch's own threads for compiled loops: a second pool beside them would wait for the same cores.

PyTorch's packages for Linux come with GNU's OpenMP. Its `GOMP_parallel` runs a function in every thread of a team, and
gives each caller the threads that it had before, which are those of PyTorch's operations.
"""

import ctypes
import inspect
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numba import carray, cfunc, types

FUNCTION = types.void(types.voidptr)


class Team(NamedTuple):
    """Calls a compiled function of type `FUNCTION` in so many threads; each asks for its number."""

    parallel: Callable[[int | None, int, int, int], None]  # the function's address, its data's, threads, flags
    thread_number: Any

    def run(self, function: Any, job: np.ndarray) -> None:
        """Call it with a job in the job's number of threads."""
        self.parallel(function.address, job.ctypes.data, int(job["threads"][0]), 0)


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


def in_threads(share: Callable[..., None], kind: np.dtype, number: Any) -> Callable[[np.ndarray], None]:
    """A function of a job of this kind, whose `share` every thread does, or one thread where they cannot run it.

    A share is a compiled function of the job, the thread's number, and a number of the type that it reads.
    """
    pool = team()
    if pool is None:

        def run_alone(job: np.ndarray) -> None:
            job["threads"] = 1
            share(job[0], 0, number)

        return run_alone
    thread_number = pool.thread_number

    def work(data):
        share(carray(data, 1, kind)[0], thread_number(), number)

    function = cfunc(FUNCTION)(inspect.unwrap(work))
    return partial(pool.run, function)
