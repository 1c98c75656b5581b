"""The optional solvers, imported where they are used, with the line to type when they are missing."""

from importlib import import_module
from types import ModuleType


def solver(module: str, package: str) -> ModuleType:
    """Import `module`, or say how to get `package`.

    >>> solver("no.such", "Nothing")
    Traceback (most recent call last):
    ...
    ImportError: this solver needs Nothing: pip install "multidraft[transport]"
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise ImportError(f'this solver needs {package}: pip install "multidraft[transport]"') from error
