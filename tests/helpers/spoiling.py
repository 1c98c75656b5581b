"""Files spoilt in one place: every field with values that it cannot have, every tensor of another shape or dtype."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from multidraft.errors import AdviceError

MISSING = object()


def shifted(value: Tensor, number: float, offset: int) -> Tensor:
    """Floats that are all one number, or whole numbers elsewhere."""
    return torch.full_like(value, number) if value.is_floating_point() else value.long() + offset


WRONG: dict[str, Any] = {
    "a text": "1x", "a list": ["a", {}], "an object": {"a": []}, "a flag": True, "half": 0.5, "zero": 0, "negative": -3,
    "huge": 10**9, "gigantic": 10**30, "endless": float("inf"), "no number": float("nan"), "null": None,
    "missing": MISSING, "empty": [], "long": list(range(100_000)),
}  # fmt: skip
TENSORS = {
    "another shape": lambda value: torch.cat([value.flatten(), value.flatten()])[: value.numel() + 1],
    "transposed": lambda value: value[None].transpose(0, -1).contiguous(),
    "empty": lambda value: value.flatten()[:0],
    "one number": lambda value: value.flatten()[0].clone(),
    "whole numbers": lambda value: value.to(torch.int64 if value.is_floating_point() else torch.float32),
    "flags": lambda value: value.bool(),
    "complex": lambda value: value.to(torch.complex64),
    "eight bits": lambda value: value.float().to(torch.float8_e4m3fn),
    "no numbers": lambda value: shifted(value, float("nan"), -(10**12)),
    "endless": lambda value: shifted(value, float("-inf"), 2**62),
    "all alike": lambda value: torch.zeros_like(value),
    "missing": lambda value: None,
}


def places(value: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every field of nested objects and lists is, those that hold others among them; of long lists the first."""
    parts: Any = value.items() if isinstance(value, dict) else enumerate(value[:1]) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*place, key)
        yield from places(part, (*place, key))


def spoilt(value: Any, place: tuple[Any, ...], wrong: Any) -> Any:
    """The same with another value in one place, or none."""
    spoilt_copy = copy.deepcopy(value)
    holder = spoilt_copy
    for key in place[:-1]:
        holder = holder[key]
    if wrong is MISSING:
        del holder[place[-1]]
    else:
        holder[place[-1]] = wrong
    return spoilt_copy


def spoilt_tensors(tensors: dict[str, Tensor], name: str, kind: str) -> dict[str, Tensor]:
    """The same with one tensor changed, or left out."""
    changed = TENSORS[kind](tensors[name])
    others = {other: value for other, value in tensors.items() if other != name}
    return others if changed is None else others | {name: changed}


def loads_or_says_why(load: Any, path: Path | str) -> bool:
    """Whether a file loads; where it does not, that is one line of decent length, which names the file or its kind."""
    try:
        load()
    except AdviceError as error:
        line = str(error)
        assert "\n" not in line
        assert 20 < len(line) < 700, line
        return False
    except BaseException as error:
        pytest.fail(f"{path} ends in {type(error).__name__}: {error}")
    return True
