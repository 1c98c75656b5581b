"""Fields of files that others wrote: a table says what each field may hold, and is checked before a value is used.

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
from dataclasses import dataclass, replace
from typing import Any

from multidraft.errors import AdviceError, is_integer, is_number, quote

MAX_TEXT = 4096  # characters


class Misfit(ValueError):
    """A field with a value that the table does not allow."""


@dataclass(frozen=True, kw_only=True)
class Field(ABC):
    """What a field may hold. A missing or null field has its default, unless it is required."""

    default: Any = None
    required: bool = False

    @abstractmethod
    def read(self, value: Any, name: str) -> Any:
        """The checked and converted value; raises Misfit, which names the field."""


def misfit(name: str, value: object, expected: str) -> Misfit:
    """The error for a field with a wrong value; the name is empty if the whole file is wrong."""
    return Misfit(f"{name or 'its content'} is {quote(value)} and should be {expected}")


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
        if not is_number(value) or not self.least <= value <= self.most:  # false for NaN too
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
    """A text of limited length, which a pattern may restrict further."""

    pattern: str | None = None
    what: str = f"a text of at most {MAX_TEXT} characters"
    most: int = MAX_TEXT

    def read(self, value: Any, name: str) -> str:
        """The text."""
        fits = isinstance(value, str) and len(value) <= self.most
        if not fits or (self.pattern is not None and not re.fullmatch(self.pattern, value)):
            raise misfit(name, value, self.what)
        return value


@dataclass(frozen=True)
class Maybe(Field):
    """What another field may hold, or null."""

    field: Field

    def read(self, value: Any, name: str) -> Any:
        """The value; None for null."""
        return None if value is None else self.field.read(value, name)


@dataclass(frozen=True)
class Items(Field):
    """A list of limited length; all values have the same kind."""

    item: Field
    least: int
    most: int

    def read(self, value: Any, name: str) -> list[Any]:
        """The list."""
        if not isinstance(value, list | tuple) or not self.least <= len(value) <= self.most:
            count = self.least if self.least == self.most else f"{self.least} to {self.most}"
            raise misfit(name, value, f"a list of {count} values")
        return [self.item.read(item, f"{name}[{index}]") for index, item in enumerate(value)]


@dataclass(frozen=True)
class Object(Field):
    """A JSON object. Fields that are not in the table are dropped; without a table it is returned unchanged."""

    fields: Mapping[str, Field] | None = None

    def read(self, value: Any, name: str) -> dict[str, Any]:
        """The fields of the table: present ones first, in the order of the file."""
        if not isinstance(value, dict):
            raise misfit(name, value, "an object")
        if self.fields is None:
            return value
        ordered = [key for key in {**value, **self.fields} if key in self.fields]
        return {key: self.part(key, value.get(key), name) for key in ordered}

    def part(self, key: str, value: Any, name: str) -> Any:
        """The value of one field of the table, or its default."""
        assert self.fields is not None
        field, full_name = self.fields[key], f"{name}.{key}" if name else key
        if value is not None:
            return field.read(value, full_name)
        if field.required:
            raise Misfit(f"it lacks {full_name}")
        return field.default


@dataclass(frozen=True)
class TableField(Field):
    """A JSON object whose keys match a pattern; all values have the same kind."""

    keys: str
    convert: Callable[[str], Any]
    value: Field
    most: int

    def read(self, value: Any, name: str) -> dict[Any, Any]:
        """The object with converted keys."""
        if not isinstance(value, dict) or len(value) > self.most:
            raise misfit(name, value, f"an object of at most {self.most} fields")
        for key in value:
            if not re.fullmatch(self.keys, key):
                raise misfit(f"a key of {name}", key, f"like {self.keys}")
        return {self.convert(key): self.value.read(item, f"{name}[{key}]") for key, item in value.items()}


def exactly(table: dict[str, Field]) -> Object:
    """An object with all of these fields."""
    return Object({name: replace(field, required=True) for name, field in table.items()}, required=True)


def read(field: Field, value: Any, where: str, advice: str) -> Any:
    """The checked value; otherwise raises AdviceError that names the file, the field and what to do."""
    try:
        return field.read(value, "")
    except Misfit as error:
        raise AdviceError(f"{where}: {error}; {advice}") from None
