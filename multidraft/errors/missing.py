"""The optional packages, imported where they are used, with the line to type when they are missing."""

from importlib import import_module
from types import ModuleType

from multidraft.errors import AdviceError


class MissingExtra(AdviceError, ImportError):
    """A package is not installed that only some users need."""


def optional(module: str, package: str, extra: str) -> ModuleType:
    """Import `module`, or say how to get `package`.

    >>> optional("no.such", "Nothing", "transport")
    Traceback (most recent call last):
    ...
    multidraft.errors.missing.MissingExtra: this needs Nothing: pip install "multidraft[transport]"
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'this needs {package}: pip install "multidraft[{extra}]"') from error


def solver(module: str, package: str) -> ModuleType:
    """The same for solvers of the transport problem."""
    return optional(module, package, "transport")
