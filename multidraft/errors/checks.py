"""What kind of value a caller has passed: type hints are not checked, and a wrong kind must end with advice."""

from numbers import Integral, Real
from typing import Any

from multidraft.errors import AdviceError


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
