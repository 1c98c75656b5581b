"""Errors that a user can fix, whose messages say what is wrong and what to do; common checks of arguments; notes.

Type hints are not checked at run time, so the checks also cover values of a wrong type.
"""

import logging
from functools import lru_cache
from importlib import import_module
from importlib.metadata import PackageNotFoundError, requires
from numbers import Integral, Real
from pathlib import Path
from types import ModuleType
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[1]  # the folder of the project, if this is no installed copy
NOTES = logging.getLogger("multidraft")


class AdviceError(ValueError):
    """Invalid input; the command line prints the message on one line and exits with code 2."""


class BrokenProgram(RuntimeError):
    """A fault of the program, not of its input; the command line prints the message and exits with code 70."""


class MissingExtra(AdviceError, ImportError):
    """An optional package is not installed."""


@lru_cache(maxsize=32)
def say_once(message: str, *values: object) -> None:
    """Log a warning once in a process."""
    NOTES.warning(message, *values)


def optional(module: str, package: str, extra: str) -> ModuleType:
    """Import an optional module; if it is missing, raise with the pip command that installs it.

    >>> optional("no.such", "Nothing", "transport")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    multidraft.errors.MissingExtra: this needs Nothing; run ...pip install ...
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingExtra(f"this needs {package}; run {install_command(extra)}") from error


def judge_package() -> ModuleType:
    """The package multidraft_judge; raises AdviceError with the pip line where it is not installed."""
    try:
        return import_module("multidraft_judge")
    except ImportError as error:
        place = f"in {CHECKOUT}: pip install -c constraints.txt ./judge" if (CHECKOUT / "judge").is_dir() else ""
        raise MissingExtra(f"this needs multidraft-judge; run {place or 'pip install multidraft-judge'}") from error


def install_command(extra: str) -> str:
    """The command that installs an extra: from the checkout, or else the requirements that the metadata lists.

    No package index has this project, so `pip install multidraft[...]` would install something else.
    """
    if (CHECKOUT / "pyproject.toml").is_file() and (CHECKOUT / "constraints.txt").is_file():
        return f"in {CHECKOUT}: pip install -c constraints.txt -e '.[{extra}]'"
    requirements = " ".join(f'"{requirement}"' for requirement in requirements_of(extra))
    return f"pip install {requirements or f'with what pyproject.toml lists for {extra}'}"


def requirements_of(extra: str) -> list[str]:
    """The requirements of an extra on this machine, from the metadata of the installed distribution."""
    from packaging.requirements import Requirement

    try:
        lines = requires("multidraft") or []
    except PackageNotFoundError:
        return []
    requirements = []
    for requirement in map(Requirement, lines):
        marker, requirement.marker = requirement.marker, None
        if marker is not None and marker.evaluate({"extra": extra}) and not marker.evaluate({"extra": ""}):
            requirements.append(str(requirement))
    return requirements


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


def shown_error(error: Exception) -> str:
    """An error's kind and message in another error's message: on one line, cut where it is long."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


def check_flag(value: object, name: str) -> None:
    """Raise unless it is True or False."""
    if not isinstance(value, bool):
        raise AdviceError(f"{name} is {quote(value)}; use True or False")


def check_integer(value: Any, name: str, minimum: int) -> None:
    """Raise unless it is an integer of at least `minimum`."""
    if not is_integer(value) or value < minimum:
        raise AdviceError(f"{name} is {quote(value)}; use a whole number, at least {minimum}")
