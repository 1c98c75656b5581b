"""A device that is not the CPU, for machines that have none: tensors say `pretended:0`, and compute on the CPU.

What fails on a GPU fails here: an operation on tensors of two devices, a NumPy view (and so a Numba loop), pinned
memory. A copy to the CPU that does not block holds nonsense until the host waits for something.

Waits of the host are counted by the line of multidraft that causes them. As in PyTorch's CUDA backend it waits

- for values: `item`, `tolist`, `bool`, `equal`, a copy to the CPU;
- for shapes that depend on values: `nonzero`, `unique`, a mask as an index;
- for a copy to the device, unless it is `non_blocking`: `torch.tensor(..., device=...)`, a list as an index.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from types import FrameType
from typing import Any

import torch
from torch import Tensor, from_dlpack, nn
from torch.utils import backend_registration

NAME, CPU, aten = "pretended", torch.device("cpu"), torch.ops.aten
INDEXED = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
COPIES = {aten.copy_.default, aten._to_copy.default}
WAITING = {
    getattr(aten, name).default
    for name in "_local_scalar_dense nonzero is_nonzero equal allclose _unique2 unique_dim unique_consecutive".split()
} | {aten.masked_select.default, aten.repeat_interleave.Tensor, aten.bincount.default}
NUMPY_ERROR = "can't convert pretended:0 device type tensor to numpy. Use Tensor.cpu() to copy it to host memory first"
WAITS = Counter[str]()
UNFINISHED = list[tuple[Tensor, Tensor]]()  # copies to the CPU that have not arrived, and what will


class Pretended(Tensor):
    """A tensor on the pretended device; `inner` holds its numbers."""

    inner: Tensor

    @staticmethod
    def __new__(cls, inner: Tensor) -> "Pretended":
        settings = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        with torch.inference_mode(False):  # else PyTorch refuses views of weights in inference mode
            return Tensor._make_wrapper_subclass(cls, inner.shape, device=device(), **settings)

    def __init__(self, inner: Tensor):
        self.inner = inner

    def __repr__(self, *, tensor_contents: Any = None) -> str:
        return f"Pretended({self.inner!r})"

    def tolist(self) -> Any:
        wait("tolist")
        return self.inner.tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError(NUMPY_ERROR)

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        return run(operation, args, kwargs or {})


def wait(reason: str) -> None:
    """Note the line that makes the host wait; copies that did not block have arrived then."""
    WAITS[f"{line_of(sys._getframe())} {reason}"] += 1
    while UNFINISHED:
        copy, values = UNFINISHED.pop()
        copy.copy_(values)


def line_of(frame: FrameType | None) -> str:
    """The innermost line of multidraft, those aside that only copy; without one, `elsewhere`."""
    while frame is not None:
        _, inside, path = frame.f_code.co_filename.rpartition("/multidraft/")
        if inside and path != "transfer.py":
            return f"{path}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


def run(operation: Any, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An operation with a pretended tensor among its arguments."""
    if operation._can_decompose():  # PyTorch does that itself, but not in inference mode
        return operation.decompose(*args, **kwargs)
    if operation in COPIES:
        return copied(operation, args, kwargs)
    tensors = [*tensors_in(args), *tensors_in([*kwargs.values()])]
    check_devices(operation, args, tensors)
    if operation in WAITING or (operation in INDEXED and index_waits(*args)):
        wait(operation.overloadpacket.__name__)
    known = {id(tensor.inner): tensor for tensor in tensors if isinstance(tensor, Pretended)}  # what is written into
    return outside(operation(*inside(args), **inside(kwargs)), known)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """The tensors among arguments, and in lists of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def inside(value: Any) -> Any:
    """Arguments with the numbers of pretended tensors in their places."""
    if isinstance(value, list | tuple):
        return type(value)(map(inside, value))
    if isinstance(value, dict):
        return {name: inside(part) for name, part in value.items()}
    return value.inner if isinstance(value, Pretended) else CPU if isinstance(value, torch.device) else value


def outside(value: Any, known: dict[int, Pretended]) -> Any:
    """Results as pretended tensors."""
    if isinstance(value, list | tuple):
        return type(value)(outside(part, known) for part in value)
    return value if not isinstance(value, Tensor) else known[id(value)] if id(value) in known else Pretended(value)


def check_devices(operation: Any, args: tuple, tensors: list[Tensor]) -> None:
    """Raise where tensors of both devices meet; numbers without a dimension may, and indices may be on the CPU."""
    checked = tensors_in((args[0], args[2:])) if operation in INDEXED else tensors
    devices = {isinstance(tensor, Pretended) for tensor in checked if tensor.dim() or isinstance(tensor, Pretended)}
    if len(devices) > 1 or (operation in INDEXED and not isinstance(args[0], Pretended)):
        raise RuntimeError(f"expected all tensors of {operation} on one device, and found the CPU and pretended:0")


def index_waits(tensor: Tensor, indices: list[Tensor | None], *values: Any) -> bool:
    """Whether an index is a mask (unless a number fills it) or has to be copied from the CPU."""
    is_fill = bool(values) and values[0].numel() == 1
    given = [index for index in indices if index is not None]
    masks = [index for index in given if index.dtype in (torch.bool, torch.uint8)]
    return bool(masks and not is_fill) or any(not isinstance(index, Pretended) for index in given)


def copied(operation: Any, args: tuple, kwargs: dict[str, Any]) -> Tensor:
    """A copy between the devices, or on the pretended one."""
    into_place = operation is aten.copy_.default
    source = args[1] if into_place else args[0]
    to_cpu = kwargs.get("device", source.device).type == "cpu" if not into_place else not isinstance(args[0], Pretended)
    blocks = not (args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
    from_cpu = not isinstance(source, Pretended)
    if blocks and (to_cpu or (from_cpu and source.dim())):
        wait("copy to the CPU" if to_cpu else "copy to the device")
    result = operation(*inside(args), **inside(kwargs))
    if to_cpu and not blocks:
        UNFINISHED.append((result, result.clone()))
        result.fill_(-(2**7) if not result.is_floating_point() else torch.nan)
    return result if to_cpu else args[0] if into_place else Pretended(result)


def alias(tensor: Tensor) -> Tensor:
    """The same memory in a tensor with a storage of its own, as DLPack makes it, which does not know this device."""
    return Pretended(from_dlpack(tensor.inner)) if isinstance(tensor, Pretended) else from_dlpack(tensor)


class Backend(backend_registration._DummyBackendModule):
    """No accelerator to whoever asks PyTorch for one."""

    def is_available(self) -> bool:
        return False


@cache
def device() -> torch.device:
    """The pretended device, which PyTorch knows from the first call on."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=Backend())
    library = LIBRARY[0] = torch.library.Library("aten", "IMPL")
    for name, make in {"empty.memory_format": aten.empty.memory_format, "empty_strided": aten.empty_strided}.items():
        library.impl(name, partial(made, make), "PrivateUse1")
    library.impl("_copy_from", copy_from, "PrivateUse1")
    return torch.device(NAME, 0)


LIBRARY = dict[int, Any]()  # which lives as long as the process


def made(make: Any, *args: Any, device: Any = None, pin_memory: bool | None = None, **settings: Any) -> Pretended:
    """A new tensor."""
    if pin_memory:
        raise RuntimeError("only dense CPU tensors can be pinned")
    return Pretended(make(*args, device="cpu", **settings))


def copy_from(source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
    """What is left of `copy_` where PyTorch makes a tensor of Python's numbers."""
    return copied(aten.copy_.default, (target, source, non_blocking), {})


@contextmanager
def counted_waits() -> Iterator[Counter[str]]:
    """The waits of a block, by line and reason."""
    before = WAITS.copy()
    counted = Counter[str]()
    yield counted
    counted.update(WAITS - before)


def moved(module: Any) -> Any:
    """A copy of a module with its weights and buffers on the pretended device."""
    copy = deepcopy(module)
    for part in copy.modules():
        for name, value in part._parameters.items():
            part._parameters[name] = value if value is None else nn.Parameter(Pretended(value.detach()), False)
        for name, value in part._buffers.items():
            part._buffers[name] = value if value is None else Pretended(value)
    return copy
