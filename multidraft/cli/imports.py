"""The modules of `--import`, which register schemes: in this process, and in those that work for it."""

import os
import pickle
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from importlib import import_module

from multidraft.errors import AdviceError, shown_error
from multidraft.io.journal import Record

IMPORTED_MODULES: list[str] = []  # modules that were asked for
unpickle = lru_cache(maxsize=1)(pickle.loads)  # cached, so that a process loads its models once


def import_modules(modules: Iterable[str]) -> None:
    """Import modules, also from the current folder."""
    for module in modules:
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            import_module(module)
        except Exception as error:  # importing it may raise anything
            what = shown_error(error)
            raise AdviceError(f"--import {module} fails with {what}; give a module's name, as in my_rules") from error
        IMPORTED_MODULES.extend([module] * (module not in IMPORTED_MODULES))


def with_imports(work: Callable[[int], Record]) -> Callable[[int], Record]:
    """The work of a worker process, which imports first what this process has been asked to import."""
    return partial(run_job, tuple(IMPORTED_MODULES), pickle.dumps(work)) if IMPORTED_MODULES else work


def run_job(modules: tuple[str, ...], pickled: bytes, job: int) -> Record:
    """Run a job in a worker process."""
    import_modules(modules)
    return unpickle(pickled)(job)
