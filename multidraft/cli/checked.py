"""What holds for every option of every command: numbers in range, text that is text, old names, help without noise."""

import math
from itertools import pairwise
from typing import Any

from typer.core import TyperCommand

from multidraft.cli.prompts import HALF_CHARACTER
from multidraft.errors import AdviceError

LARGEST = 2**32  # far more of anything than can be meant, and what every library below takes
LONGEST, MOST = 65_536, 1_000  # characters of a value (a prompt has more room), and times that an option is given
FREE = ("prompt",)  # texts of any length
ALIASES = {"--new-tokens": "--max-new-tokens"}  # by old name


class Checked(TyperCommand):
    """A command whose values are checked before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        args = [renamed(arg) for arg in args]
        if (empty := without_value(args)) and empty.lstrip("-") not in FREE:
            raise AdviceError(f"{empty} is empty; give it a value, or leave it out")
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            given = ctx.params.get(parameter.name)
            values = given if isinstance(given, list | tuple) else [given]
            faults = [fault_of(value, parameter.name in FREE) for value in values]
            if len(values) > MOST:
                faults.insert(0, f"is given {len(values)} times; give it at most {MOST} times")
            for fault in filter(None, faults):
                raise AdviceError(f"{max(parameter.opts, key=len)} {fault}")
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))


def without_types(parameters: list[Any]) -> list[Any]:
    """Parameters whose help shows no <bool> for a switch, which takes no value."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.display_type_rich = lambda ctx: None
    return parameters


def without_value(args: list[str]) -> str | None:
    """The first option whose value is the empty text."""
    for option, value in pairwise([*(part for arg in args for part in split(arg)), "end"]):
        if option.startswith("--") and value == "":
            return option
    return None


def split(arg: str) -> list[str]:
    """`--name=value` as two words, any other word as it is."""
    name, equals, value = arg.partition("=")
    return [name, value] if equals and name.startswith("--") else [arg]


def renamed(word: str) -> str:
    """An option by its present name."""
    name, equals, value = word.partition("=")
    return ALIASES.get(name, name) + equals + value


def fault_of(value: object, free: bool = False) -> str | None:
    """What is wrong with a value, and what to do."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; give a finite number"
    if isinstance(value, int | float) and abs(value) > LARGEST:
        return f"is too large; give a number of at most {LARGEST}"
    if isinstance(value, str) and not free and len(value) > LONGEST:
        return f"has {len(value)} characters; give at most {LONGEST}"
    if isinstance(value, str) and HALF_CHARACTER.search(value):
        return "is not UTF-8 text; check the terminal's encoding"
    return None
