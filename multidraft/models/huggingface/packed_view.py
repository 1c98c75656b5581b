"""A view of a user's model that multiplies packed copies of its weights on a CPU. The model itself is never touched.

PyTorch packs the weight of a linear layer in the order in which oneDNN multiplies, anew in every call, which takes
longer than to multiply it with a few tokens. A view is a tree of shallow copies of modules: they share parameters,
buffers and hooks with the model, and plain linear layers multiply copies that were packed once.

A view is made anew for every reader that begins. What somebody has put something into (a hook, a forward or a class of
their own, a compiled call) stands in it as it is, with all that is within; a weight that has changed is packed again.
"""

import copy
import ctypes
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import Any, TypeGuard, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules import linear, module

from multidraft.machine import available
from multidraft.models.huggingface.weight_marks import CHANGES, WeightMark, has_additions, has_numbers, library_of

MIN_PACKED_NUMBERS = 2**14  # in a weight that is worth packing
# Packing helps passes of few tokens; oneDNN keeps 0.7 MB of code for each number of tokens, and prompts are of any.
MAX_PACKED_TOKENS = 128
PACKED_DTYPES = torch.bfloat16, torch.float32
LIBRARIES = "torch", "transformers", "multidraft"  # whose modules keep nothing in themselves when they are called
Module = TypeVar("Module", bound=nn.Module)


class PackedWeight:
    """A copy of a linear layer's weight in oneDNN's order; raises where this processor has no such products."""

    def __init__(self, layer: nn.Linear):
        self.mark, self.changes = WeightMark(layer.weight), CHANGES.get(layer, 0)  # before another thread writes it
        weight = layer.weight.detach()
        self.numbers = torch.ops.mkldnn._reorder_linear_weight(weight)
        sample = torch.ones(1, 3, layer.in_features, dtype=weight.dtype)
        torch.testing.assert_close(self.multiply(sample, layer.bias), layer.forward(sample))

    def multiply(
        self, inputs: Float[Tensor, "*tokens width"], bias: Float[Tensor, " wide"] | None
    ) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.numbers, bias, "none", [], "")


PACKED_WEIGHTS: WeakKeyDictionary[nn.Linear, PackedWeight] = WeakKeyDictionary()


class PackedLinear(nn.Linear):
    """A linear layer in a view: its parameters and hooks, and a packed copy of its weight."""

    packed: Any  # a PackedWeight

    def __init__(self, layer: nn.Linear, packed: PackedWeight):
        vars(self).update(vars(layer), packed=packed)

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives: from the copy while it holds for few tokens, else as ever."""
        weight = self._parameters["weight"]
        few = inputs.shape[:-1].numel() <= MAX_PACKED_TOKENS
        if not few or not self.packed.mark.is_unwritten(weight) or torch.is_autocast_enabled("cpu"):
            return super().forward(inputs)
        return self.packed.multiply(inputs, self._parameters["bias"])


@cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies such numbers on this processor."""
    is_known = dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.backends.mkldnn.is_available() and is_known and dtype in PACKED_DTYPES


def view_of(model: Module) -> Module:
    """The model's view; itself where nothing can be packed, or half of the memory that is left would not hold it."""
    if module._global_forward_hooks or module._global_forward_pre_hooks or not is_torchs_linear():
        return model
    if not has_all_threads():
        warn_of_missing_threads()
        return model
    layers = [layer for layer in layers_to_pack(model) if not is_packed(layer)]
    free, size = available(torch.device("cpu")), sum({layer.weight: layer.weight.nbytes for layer in layers}.values())
    if free is not None and size > free / 2:
        return model
    for layer in layers:
        PACKED_WEIGHTS.pop(layer, None)
        with suppress(AssertionError, RuntimeError):
            PACKED_WEIGHTS[layer] = PackedWeight(layer)
    return with_packed_layers(model)


def layers_to_pack(part: nn.Module) -> Iterator[nn.Linear]:
    """The linear layers in a module that a view packs."""
    if can_be_packed(part):
        yield part
    elif is_transparent(part):
        for child in part.children():
            yield from layers_to_pack(child)


def is_packed(layer: nn.Linear) -> bool:
    """Whether its weight has been packed, as it is now."""
    packed = PACKED_WEIGHTS.get(layer)
    return packed is not None and packed.changes == CHANGES.get(layer, 0) and packed.mark.agrees(layer.weight)


def with_packed_layers(part: Any) -> Any:
    """A module whose linear layers multiply what was packed of them; itself where nothing was."""
    if can_be_packed(part):
        packed = PACKED_WEIGHTS.get(part)
        return part if packed is None else PackedLinear(part, packed)
    children = part._modules
    if is_transparent(part):
        children = {name: None if child is None else with_packed_layers(child) for name, child in children.items()}
    if children == part._modules:
        return part
    shallow = copy.copy(part)
    shallow._modules = children
    return shallow


def is_transparent(part: nn.Module) -> bool:
    """Whether a copy may stand for it: nobody has put anything into it, and its class keeps nothing of a call."""
    is_known = library_of(type(part)) in LIBRARIES and library_of(type(part).forward) in LIBRARIES
    return is_known and not has_additions(part)


def can_be_packed(part: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether it is a plain linear layer on a CPU that is large enough."""
    if type(part) is not nn.Linear or has_additions(part):
        return False
    weight = part.weight
    if not has_numbers(weight) or not weight.is_cpu or weight.is_inference() or weight.numel() < MIN_PACKED_NUMBERS:
        return False
    return can_pack(weight.dtype) and len(part._parameters) == 2 and not part._buffers


def is_torchs_linear() -> bool:
    """Whether nobody has put another forward into PyTorch's class."""
    return getattr(nn.Linear.forward, "__globals__", None) is vars(linear)


def has_all_threads() -> bool:
    """Whether OpenMP gives the threads that PyTorch asks for: oneDNN's products would lack the others' shares."""
    if sys.platform != "linux":
        return True
    openmp, threads = ctypes.CDLL(None), torch.get_num_threads()
    try:
        most = 1 if openmp.omp_get_max_active_levels() == 0 else openmp.omp_get_thread_limit()
        return threads == 1 or (threads <= most and not openmp.omp_get_dynamic())
    except AttributeError:  # no OpenMP is loaded
        return True


@cache
def warn_of_missing_threads() -> None:
    """Warn, once, of what PyTorch itself makes of it."""
    warnings.warn(
        f"OpenMP may give fewer threads than the {torch.get_num_threads()} that PyTorch asks for (OMP_THREAD_LIMIT, "
        "OMP_DYNAMIC or OMP_MAX_ACTIVE_LEVELS), and PyTorch's own products in bfloat16 are wrong then; call "
        "torch.set_num_threads(1), or lift the limit",
        stacklevel=4,
    )
