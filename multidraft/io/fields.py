"""Fields of files that others wrote: a table says what each may hold, and nothing is made of a file before that holds.

>>> table = Object({"layers": Whole(1, 64, required=True), "scale": Number(0.1, 10, default=1.0)})
>>> read(table, {"layers": 2, "unknown": []}, "config.json", "get it again")
{'layers': 2, 'scale': 1.0}
>>> read(table, {"layers": "2"}, "config.json", "get it again")
Traceback (most recent call last):
...
multidraft.errors.AdviceError: config.json: layers is '2' and should be a whole number from 1 to 64; get it again
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from multidraft.errors import AdviceError, is_integer, is_number, shown

MAX_TEXT = 4096  # characters of a text of which nothing else is said


class Misfit(ValueError):
    """A field that does not hold what it should."""


@dataclass(frozen=True, kw_only=True)
class Field(ABC):
    """What a field may hold; one that is missing or null has its default, unless it is required."""

    default: Any = None
    required: bool = False

    @abstractmethod
    def read(self, value: Any, name: str) -> Any:
        """The value as it is used; raises Misfit, which names the field."""


def misfit(name: str, value: object, wanted: str) -> Misfit:
    """What to say of a field with a wrong value; the whole file has no name."""
    return Misfit(f"{name or 'its content'} is {shown(value)} and should be {wanted}")


@dataclass(frozen=True)
class Whole(Field):
    """A whole number within limits."""

    least: int
    most: int

    def read(self, value: Any, name: str) -> int:
        """The number as an int."""
        if not is_integer(value) or not self.least <= value <= self.most:
            raise misfit(name, value, f"a whole number from {self.least} to {self.most}")
        return int(value)


@dataclass(frozen=True)
class Number(Field):
    """A real number within limits, so that it is finite."""

    least: float | int
    most: float | int

    def read(self, value: Any, name: str) -> float:
        """The number as a float."""
        if not is_number(value) or not self.least <= value <= self.most:  # also where it is NaN
            raise misfit(name, value, f"a number from {self.least:g} to {self.most:g}")
        return float(value)


@dataclass(frozen=True)
class Flag(Field):
    """True or false."""

    def read(self, value: Any, name: str) -> bool:
        """The flag."""
        if not isinstance(value, bool):
            raise misfit(name, value, "true or false")
        return value


@dataclass(frozen=True)
class Text(Field):
    """A text of limited length, of which a pattern may say more."""

    pattern: str | None = None
    what: str = f"a text of at most {MAX_TEXT} characters"

    def read(self, value: Any, name: str) -> str:
        """The text."""
        is_right = isinstance(value, str) and len(value) <= MAX_TEXT
        if not is_right or (self.pattern is not None and not re.fullmatch(self.pattern, value)):
            raise misfit(name, value, self.what)
        return value


@dataclass(frozen=True)
class Items(Field):
    """A list of alike values, of limited length."""

    each: Field
    least: int
    most: int

    def read(self, value: Any, name: str) -> list[Any]:
        """All of them."""
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.most:
            count = self.least if self.least == self.most else f"{self.least} to {self.most}"
            raise misfit(name, value, f"a list of {count} values")
        return [self.each.read(item, f"{name}[{place}]") for place, item in enumerate(value)]


@dataclass(frozen=True)
class Object(Field):
    """A JSON object; fields that are not in the table are left out. Without a table it stays as it is."""

    fields: Mapping[str, Field] | None = None

    def read(self, value: Any, name: str) -> dict[str, Any]:
        """The fields of the table, those that are there first and in their order."""
        if not isinstance(value, dict):
            raise misfit(name, value, "an object")
        if self.fields is None:
            return value
        ordered = [key for key in {**value, **self.fields} if key in self.fields]
        return {key: self.part(key, value.get(key), name) for key in ordered}

    def part(self, key: str, value: Any, name: str) -> Any:
        """One of its fields."""
        assert self.fields is not None
        field, full = self.fields[key], f"{name}.{key}" if name else key
        if value is not None:
            return field.read(value, full)
        if field.required:
            raise Misfit(f"it lacks {full}")
        return field.default


@dataclass(frozen=True)
class Table(Field):
    """A JSON object with any keys that a pattern knows, and alike values."""

    keys: str
    convert: Callable[[str], Any]
    each: Field
    most: int

    def read(self, value: Any, name: str) -> dict[Any, Any]:
        """All of it, the keys converted."""
        if not isinstance(value, dict) or len(value) > self.most:
            raise misfit(name, value, f"an object of at most {self.most} fields")
        for key in value:
            if not re.fullmatch(self.keys, key):
                raise misfit(f"a key of {name}", key, f"like {self.keys}")
        return {self.convert(key): self.each.read(item, f"{name}[{key}]") for key, item in value.items()}


def read(field: Field, value: Any, where: str, advice: str) -> Any:
    """The value as it is used; raises AdviceError with the file, the field and what to do where it is no such value."""
    try:
        return field.read(value, "")
    except Misfit as error:
        raise AdviceError(f"{where}: {error}; {advice}") from None
