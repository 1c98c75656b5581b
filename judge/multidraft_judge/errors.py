"""Errors that a user can fix, whose messages say what is wrong and what to do; common checks of arguments."""

import re
from importlib import import_module
from numbers import Integral, Real
from types import ModuleType
from typing import Any

MAX_INTEGER = 2**32
LONE_SURROGATE = re.compile("[\ud800-\udfff]")  # half a character, as JSON may have it


class AdviceError(ValueError):
    """Invalid input, or a server that cannot be judged; the command prints it on one line and exits with code 2."""


def optional(module: str, advice: str) -> ModuleType:
    """Import what an extra brings; raises AdviceError that says how to get it.

    >>> optional("absent", "run pip install absent")
    Traceback (most recent call last):
    ...
    multidraft_judge.errors.AdviceError: this needs absent; run pip install absent
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise AdviceError(f"this needs {module}; {advice}") from error


def is_integer(value: object) -> bool:
    """Whether it is an integer, but not True or False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether it is a real number, but not True or False."""
    return isinstance(value, Real) and not isinstance(value, bool)


def quote(value: object) -> str:
    """A value for an error message: its repr on one line, at most 60 characters."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def one_line(text: str) -> str:
    """A text on one line without control characters, which a server may have sent.

    >>> one_line("oh\\n \\x1b[31mno")
    'oh  [31mno'
    """
    return "".join(character if character.isprintable() else " " for character in " ".join(text.split()))


def check_integer(value: Any, name: str, minimum: int) -> None:
    """Raise unless it is an integer of at least `minimum`, and of a size that others can take."""
    if not is_integer(value) or not minimum <= value <= MAX_INTEGER:
        raise AdviceError(f"{name} is {quote(value)}; use a whole number from {minimum} to {MAX_INTEGER}")


def check_text(text: object, name: str) -> None:
    """Raise unless it is a text that can be sent: not empty, and of whole characters.

    >>> check_text("a\\ud800", "model")
    Traceback (most recent call last):
    ...
    multidraft_judge.errors.AdviceError: model is 'a\\ud800', which is no text that can be sent; give another
    """
    if not isinstance(text, str) or not text or LONE_SURROGATE.search(text):
        raise AdviceError(f"{name} is {quote(text)}, which is no text that can be sent; give another")


def check_number(value: Any, name: str, least: float, most: float, is_open: bool = False) -> None:
    """Raise unless it is a number within limits; with `is_open` it may not be the least one.

    >>> check_number(0.0, "alpha", 0, 1, is_open=True)
    Traceback (most recent call last):
    ...
    multidraft_judge.errors.AdviceError: alpha is 0.0; use a number above 0, at most 1
    """
    if not is_number(value) or not least <= value <= most or (is_open and value == least):
        limits = f"above {least:g}, at most {most:g}" if is_open else f"from {least:g} to {most:g}"
        raise AdviceError(f"{name} is {quote(value)}; use a number {limits}")
