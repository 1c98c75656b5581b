"""Compiled loops for CPUs, where a small tensor operation costs more in being called than in its arithmetic.

They need Numba. Without it, and on other devices, tensor operations do the same: a function names the module of its
compiled twin by `paired`, and knows nothing more of it (`tests/verification/test_loops.py` compares all pairs).
"""

import inspect
from collections.abc import Callable
from functools import cache, partial, wraps
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from multidraft.errors import AdviceError

HAS_NUMBA = find_spec("numba") is not None
KINDS = frozenset((torch.float32, torch.float64, torch.int64, torch.bool))
PAIRS: dict[str, str] = {}  # from a function, by its module and name, to the module of its compiled twin
Function = TypeVar("Function", bound=Callable[..., Any])


def usable(*arguments: object) -> bool:
    """Whether loops can run over the tensors among these: on a CPU, with Numba, and in a precision that it has."""
    if not HAS_NUMBA:
        return False
    for one in arguments:
        if isinstance(one, Tensor) and not (one.is_cpu and one.dtype in KINDS):
            return False
    return True


def paired(home: str, fits: Callable[..., bool] = lambda *_: True) -> Callable[[Function], Function]:
    """Where loops can run, the function of the same name in the module `home` takes the place of the decorated one.

    A twin that is not for all arguments takes its place where they fit.
    """

    def choosing(reference: Function) -> Function:
        PAIRS[f"{reference.__module__}.{reference.__name__}"] = home

        @wraps(reference)
        def chosen(*arguments: Any) -> Any:
            compiled_one = usable(*arguments) and fits(*arguments)
            return (twin(home, reference.__name__) if compiled_one else reference)(*arguments)

        return chosen  # type: ignore[return-value]

    return choosing


@cache
def twin(home: str, name: str) -> Callable[..., Any]:
    """A compiled twin, imported when it is first needed."""
    return getattr(import_module(home), name)


def compiled(function: Callable, any_order: bool = False) -> Callable:
    """The loop compiled when it is first called, and kept on disk; it may add up in `any_order`, several at a time."""
    plain = inspect.unwrap(function)  # without what checks its types in tests
    if not HAS_NUMBA:  # it is never called then
        return plain
    from numba import njit

    make = partial(njit, error_model="numpy", fastmath={"reassoc"} if any_order else False)
    try:
        return make(cache=True)(plain)
    except RuntimeError:  # there is nowhere to keep it
        return make()(plain)


def lines(values: Tensor) -> np.ndarray:
    """The rows of a tensor for a loop."""
    values = values.detach() if values.requires_grad else values
    return np.ascontiguousarray(values.numpy()).reshape(-1, values.shape[-1])


def same_shape(names: str, *shapes: tuple[int, ...]) -> None:
    """Raise unless all shapes are equal: a compiled loop would read and write beyond the smaller arrays."""
    if any(shape != shapes[0] for shape in shapes):
        raise AdviceError(f"{names} have shapes {' and '.join(str(tuple(shape)) for shape in shapes)}; make them equal")


@compiled
def forget(weights, tokens, lowest):
    """Take tokens out of a line of weights, and all that count as nothing beside them."""
    for token in tokens:
        if token >= 0:
            weights[token] = 0.0
    for token in range(weights.size):
        if weights[token] < lowest:
            weights[token] = 0.0


@partial(compiled, any_order=True)
def sum_of(values):
    """The sum in float64."""
    total = 0.0
    for index in range(values.size):  # which is compiled into vector instructions; `for value in values` is not
        total += values[index]
    return total
