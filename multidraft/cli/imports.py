"""The modules of `--import`, which register schemes: in this process, and in those that work for it."""

import os
import sys
from collections.abc import Iterable
from importlib import import_module

from multidraft.errors import AdviceError, shown_error

IMPORTED_MODULES: list[str] = []  # modules that were asked for


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
