"""What holds for every option of every command: numbers are numbers, not too large ones, and text is text."""

import math
from typing import Any

from typer.core import TyperCommand

from multidraft.cli.prompts import HALF_CHARACTER
from multidraft.errors import AdviceError

LARGEST = 2**32  # far more of anything than can be meant, and what every library below takes


class Checked(TyperCommand):
    """A command whose values are checked before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for parameter in self.params:
            given = ctx.params.get(parameter.name)
            for value in given if isinstance(given, list | tuple) else [given]:
                if fault := fault_of(value):
                    raise AdviceError(f"{max(parameter.opts, key=len)} {fault}")
        return rest


def fault_of(value: object) -> str | None:
    """What is wrong with a value, and what to do."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"is {value}; give a finite number"
    if isinstance(value, int | float) and abs(value) > LARGEST:
        return f"is too large; give a number of at most {LARGEST}"
    if isinstance(value, str) and HALF_CHARACTER.search(value):
        return "is not UTF-8 text; check the terminal's encoding"
    return None
