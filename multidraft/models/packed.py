"""Linear layers on CPUs with weights that are packed once, in the order in which oneDNN multiplies.

PyTorch packs a layer's weights anew in every call, which takes longer than to multiply them with a few tokens. The
packed ones are a copy: the model is left as it was, and what changes its weights is noticed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeGuard
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from multidraft.machine import available

LEAST = 2**14  # numbers in a weight that is worth packing
MOST = 128  # tokens of a pass that gains: oneDNN keeps 0.7 MB of code for each number of tokens, and prompts are of any
KINDS = (torch.bfloat16, torch.float32)


class Layer:
    """A linear layer and a packed copy of its weight; raises RuntimeError where this processor cannot have one."""

    def __init__(self, module: nn.Linear):
        self.module, self.weight = module, module.weight
        self.version, self.place = self.weight._version, self.weight.data_ptr()
        self.packed = torch.ops.mkldnn._reorder_linear_weight(self.weight.detach())
        some = torch.ones(1, 3, module.in_features, dtype=self.weight.dtype)
        torch.testing.assert_close(self.forward(some), module.forward(some))

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives."""
        if inputs.shape[:-1].numel() > MOST:
            return linear(inputs, self.weight, self.module.bias)
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.module.bias, "none", [], "")

    def is_fresh(self) -> bool:
        """Whether the weight is still the one that was packed."""
        weight = self.module._parameters["weight"]
        return weight is self.weight and weight._version == self.version and weight.data_ptr() == self.place


PACKED: WeakKeyDictionary[nn.Module, list[Layer]] = WeakKeyDictionary()


def fits(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether it is a plain linear layer on a CPU, large enough, that nothing else has taken over."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or module.weight.is_inference():
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype in KINDS and weight.numel() >= LEAST


def pack(module: nn.Module) -> list[Layer]:
    """All layers of a module that can be packed, if half of the memory that is left holds them; else none."""
    found = [part for part in module.modules() if fits(part)] if torch.backends.mkldnn.is_available() else []
    size, room = sum(layer.weight.nbytes for layer in found), available(torch.device("cpu"))
    try:
        return [Layer(layer) for layer in found] if room is None or size <= room / 2 else []
    except (AssertionError, RuntimeError):
        return []


def fresh_layers(module: nn.Module) -> list[Layer]:
    """The packed layers of a module, made anew where one's weight has changed."""
    layers = PACKED.get(module)
    if layers is None or not all(layer.is_fresh() for layer in layers):
        layers = PACKED[module] = pack(module)
    return layers


@contextmanager
def packed(module: nn.Module) -> Iterator[None]:
    """Let the linear layers of a module use their packed weights for a while."""
    layers = [] if torch.is_autocast_enabled("cpu") else fresh_layers(module)
    for layer in layers:
        layer.module.__dict__.setdefault("forward", layer.forward)  # what else has taken a layer over since stays
    try:
        yield
    finally:
        for layer in layers:
            if layer.module.__dict__.get("forward") == layer.forward:
                del layer.module.__dict__["forward"]
