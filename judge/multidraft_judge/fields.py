"""Fields of what others wrote: a table says what each may hold, and is checked before a value is used.

>>> table = Object({"tokens": Whole(1, 64), "logprob": Number(-10, 0, required=True)})
>>> read(table, {"logprob": -1, "unknown": []}, "it", "ask another")
{'logprob': -1.0, 'tokens': None}
>>> read(table, {"tokens": "2"}, "it", "ask another")
Traceback (most recent call last):
...
multidraft_judge.errors.AdviceError: it: tokens is '2' and should be a whole number from 1 to 64; ask another
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from multidraft_judge.errors import AdviceError, is_integer, is_number, quote

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
        """The checked value; raises Misfit, which names the field."""


def misfit(name: str, value: object, expected: str) -> Misfit:
    """The error for a field with a wrong value; the name is empty if all of it is wrong."""
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
    """A real number within limits; a NaN is none."""

    least: float
    most: float

    def read(self, value: Any, name: str) -> float:
        """The number as a float."""
        if not is_number(value) or not self.least <= value <= self.most:  # false for NaN too
            raise misfit(name, value, f"a number from {self.least:g} to {self.most:g}")
        return float(value)


@dataclass(frozen=True)
class Text(Field):
    """A text of limited length."""

    most: int = MAX_TEXT

    def read(self, value: Any, name: str) -> str:
        """The text."""
        if not isinstance(value, str) or len(value) > self.most:
            raise misfit(name, value, f"a text of at most {self.most} characters")
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
    most: int

    def read(self, value: Any, name: str) -> list[Any]:
        """The list."""
        if not isinstance(value, list) or len(value) > self.most:
            raise misfit(name, value, f"a list of 0 to {self.most} values")
        return [self.item.read(item, f"{name}[{index}]") for index, item in enumerate(value)]


@dataclass(frozen=True)
class Object(Field):
    """A JSON object. Fields that are not in the table are dropped."""

    fields: Mapping[str, Field]

    def read(self, value: Any, name: str) -> dict[str, Any]:
        """The fields of the table: present ones first, in their order."""
        if not isinstance(value, dict):
            raise misfit(name, value, "an object")
        ordered = [key for key in {**value, **self.fields} if key in self.fields]
        return {key: self.part(key, value.get(key), name) for key in ordered}

    def part(self, key: str, value: Any, name: str) -> Any:
        """The value of one field of the table, or its default."""
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
    value: Field
    most: int
    convert: Callable[[str], Any] = str

    def read(self, value: Any, name: str) -> dict[Any, Any]:
        """The object with converted keys."""
        if not isinstance(value, dict) or len(value) > self.most:
            raise misfit(name, value, f"an object of at most {self.most} fields")
        for key in value:
            if not re.fullmatch(self.keys, key):
                raise misfit(f"a key of {name}", key, f"like {self.keys}")
        return {self.convert(key): self.value.read(item, f"{name}[{key}]") for key, item in value.items()}


def read(field: Field, value: Any, where: str, advice: str) -> Any:
    """The checked value; otherwise raises AdviceError that names the place, the field and what to do."""
    try:
        return field.read(value, "")
    except Misfit as error:
        raise AdviceError(f"{where}: {error}; {advice}") from None
