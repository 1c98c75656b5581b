"""What a user can mend: each message says what is wrong and what to do; and the checks that are made in many places.

Type hints are not checked at run time: a value of a wrong kind must end with advice, too.
"""

from importlib import import_module
from numbers import Integral, Real
from types import ModuleType
from typing import Any


class AdviceError(ValueError):
    """Bad input; the command line prints the message on one line and exits with code 2."""


class BrokenProgram(RuntimeError):
    """A fault of ours that nothing here can mend; the command line prints the message and exits with code 70."""


class MissingExtra(AdviceError, ImportError):
    """A package is not installed that only some users need."""


def optional(module: str, package: str, extra: str) -> ModuleType:
    """Import `module` where it is used, or say how to get `package`.

    >>> optional("no.such", "Nothing", "transport")
    Traceback (most recent call last):
    ...
    multidraft.errors.MissingExtra: this needs Nothing: pip install "multidraft[transport]"
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f'this needs {package}: pip install "multidraft[{extra}]"') from error


def is_integer(value: object) -> bool:
    """Whether it is a whole number; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a real number; True and False are none."""
    return isinstance(value, Real) and not isinstance(value, bool)


def shown(value: object) -> str:
    """A value in an error message: on one line, cut where it is long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def check_flag(value: object, name: str) -> None:
    """Raise unless it is True or False."""
    if not isinstance(value, bool):
        raise AdviceError(f"{name} is {shown(value)}; use True or False")


def check_integer(value: Any, name: str, least: int) -> None:
    """Raise unless it is a whole number that is large enough."""
    if not is_integer(value) or value < least:
        raise AdviceError(f"{name} is {shown(value)}; use a whole number, at least {least}")
