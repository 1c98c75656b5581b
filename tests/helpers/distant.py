"""A device that is not there: tensors that say `meta` and compute on the CPU, and a count of how often the host waits.

What a GPU is asked for comes in order, and the host goes on at once, until it asks for a number: then it waits for all
that came before. So it does for `item`, `tolist` and `cpu`, for `nonzero` and masks as indices, and for a plain copy to
the device, lists as indices among them; a copy with `non_blocking=True` does not wait. Operations over tensors of both
sides fail, as they do there.
"""

import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

aten = torch.ops.aten
THERE = torch.device("meta")  # which every build of PyTorch has
ASKING = {aten._local_scalar_dense.default, aten.nonzero.default, aten.equal.default, aten.masked_select.default}
INDEXING = {aten.index.Tensor, aten.index_put_.default, aten.index_put.default, aten._index_put_impl_.default}
COPYING = {aten.copy_.default, aten._to_copy.default}


def as_tensors(key: Any) -> Any:
    """An index in which lists are tensors, made here."""
    if isinstance(key, list):
        return torch.tensor(key)
    return tuple(map(as_tensors, key)) if isinstance(key, tuple) else key


class Distant(Tensor):
    """A tensor on the device."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> "Distant":
        made = Tensor._make_wrapper_subclass(
            cls, near.shape, near.stride(), near.storage_offset(), dtype=near.dtype, device=THERE
        )
        made.near = near
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise RuntimeError(f"{function} of a distant tensor outside of `Device`")

    def __getitem__(self, key: Any) -> Tensor:
        return super().__getitem__(as_tensors(key))

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(as_tensors(key), value)

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, *_: Any) -> str:
        return f"Distant({self.near})"


class Device(TorchDispatchMode):
    """The device, as long as it is entered: `waits` says where in our code the host waited, and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()
        self.operations, self.counting = 0, True

    def __enter__(self) -> "Device":
        self.pretended = patch.object(torch, "tensor", made_here)
        self.pretended.start()
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        self.pretended.stop()
        super().__exit__(*error)

    @contextmanager
    def uncounted(self) -> Iterator[None]:
        """What a model does is its own business."""
        self.counting, before = False, self.counting
        try:
            yield
        finally:
            self.counting = before

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_flatten((args, kwargs))[0] if isinstance(x, Tensor)]
        distant = [x for x in tensors if isinstance(x, Distant)]
        device = kwargs.get("device")
        here = not distant if device is None else torch.device(device).type == "cpu"
        self.note(function, args, kwargs, tensors, distant, here)
        if device is not None:
            kwargs["device"] = torch.device("cpu")
        by_near = {id(x.near): x for x in distant}
        result = function(*tree_map(near, args), **tree_map(near, kwargs))
        if here and function is not aten.copy_.default:
            return result
        if function is aten.copy_.default:
            return args[0]
        there = lambda x: by_near[id(x)] if id(x) in by_near else Distant(x)  # noqa: E731  # itself, if changed in place
        return tree_map(lambda x: there(x) if isinstance(x, Tensor) else x, result)

    def note(self, function, args, kwargs, tensors: list[Tensor], distant: list[Distant], here: bool) -> None:
        """Count the operation, and whether the host waits for it."""
        if not self.counting or (here and not distant):
            return
        self.operations += 1
        both = len({isinstance(x, Distant) for x in tensors if x.ndim}) == 2
        copies = function in COPYING and (both or here == bool(distant))
        if both and not (copies or function in INDEXING):
            raise RuntimeError(f"{function} of tensors on two devices")
        masks = function in INDEXING and any(x is not None and x.dtype in (torch.bool, torch.uint8) for x in args[1])
        if (function in ASKING and distant) or masks or (both and function in INDEXING):
            self.waits[place()] += 1
        elif copies and not (kwargs.get("non_blocking") and not here):
            self.waits[place()] += 1


def made_here(data: Any, *, device: Any = None, real=torch.tensor, **settings: Any) -> Tensor:
    """`torch.tensor`, which makes its values here and then copies them, as for a GPU."""
    made = real(data, **settings)
    return made if device is None else made.to(device)


def near(value: Any) -> Any:
    """What is behind a tensor."""
    return value.near if isinstance(value, Distant) else value


def place() -> str:
    """The line of ours that made the host wait."""
    frames = [frame for frame in traceback.extract_stack() if "/multidraft/" in frame.filename]
    return f"{frames[-1].filename.rpartition('/multidraft/')[2]}:{frames[-1].lineno}" if frames else "elsewhere"


class There:
    """A model whose tokens and logits are on the device."""

    device = THERE

    def __init__(self, model: Any, to: Device) -> None:
        self.model, self.to, self.vocabulary, self.context = model, to, model.vocabulary, model.context

    def fresh(self, capacity: int) -> "There":
        return There(self.model.fresh(capacity), self.to)

    def forward(self, tokens: Tensor, positions: Tensor, visible: Tensor, logits: bool = True) -> Tensor:
        with self.to.uncounted():
            return Distant(self.model.forward(near(tokens), near(positions), near(visible), logits))

    def keep(self, chosen: Tensor) -> None:
        with self.to.uncounted():
            self.model.keep(near(chosen))

    def select(self, rows: Tensor) -> None:
        with self.to.uncounted():
            self.model.select(near(rows))

    def join(self, other: "There") -> None:
        with self.to.uncounted():
            self.model.join(other.model)

    def part(self, row: int, length: int, capacity: int) -> "There":
        with self.to.uncounted():
            return There(self.model.part(row, length, capacity), self.to)
