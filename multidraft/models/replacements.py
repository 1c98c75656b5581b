"""What takes the place of a module's forward for a while: packed linear layers, and norms in one loop.

The model is left as it was, and what changes its weights is noticed.
"""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from multidraft.models.norms import can_normalise, epsilon_of, normalise
from multidraft.models.products import product_of

MIN_PACKED_NUMBERS = 2**14  # in a weight that is worth packing
PACKED_DTYPES = (torch.bfloat16, torch.float32)


class Replacement:
    """What takes the place of a module's forward for a while; raises RuntimeError where this processor cannot.

    `siblings` are what its parent holds by name: the parent itself may be the key that this is kept by.
    """

    copies = True  # weights

    def __init__(self, module: Any, siblings: Mapping[str, nn.Module | None], name: str):
        self.module = module
        parts = list(module.modules())
        self.places: list[tuple[Mapping[str, Any], str, Any]] = [(siblings, name, module)]
        self.places += [(part._modules, *item) for part in parts for item in part._modules.items()]
        self.places += [(part._parameters, *item) for part in parts for item in part._parameters.items()]
        self.weights = [(weight, weight._version, weight.data_ptr()) for weight in module.parameters()]
        self.pack()

    @staticmethod
    @abstractmethod
    def fits(module: nn.Module | None) -> bool:
        """Whether it is a module that this may be for."""

    @abstractmethod
    def pack(self) -> None:
        """Get ready, and try it once."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """What the module gives."""

    def is_fresh(self) -> bool:
        """Whether the module and its parts are still in their places, with the weights that were there."""
        for holder, name, part in self.places:
            if holder.get(name) is not part:
                return False
        for weight, version, place in self.weights:
            if weight._version != version or weight.data_ptr() != place:
                return False
        return True


class Norm(Replacement):
    """An RMS norm in one loop; raises AssertionError where the module is another kind of norm."""

    copies = False

    @staticmethod
    def fits(module: nn.Module | None) -> bool:
        return epsilon_of(module) is not None

    def pack(self) -> None:
        """Try it once."""
        epsilon, self.weight = epsilon_of(self.module), self.module.weight.detach()
        assert epsilon is not None
        self.epsilon = float(epsilon)
        sample = torch.linspace(-3, 5, 2 * len(self.weight), dtype=self.weight.dtype).view(2, -1)
        with torch.inference_mode():
            torch.testing.assert_close(self.forward(sample), type(self.module).forward(self.module, sample))

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        """What the norm gives."""
        if not can_normalise(inputs, self.weight):
            return type(self.module).forward(self.module, inputs)
        return normalise(inputs, self.weight, self.epsilon)


class Layer(Replacement):
    """A linear layer and a packed copy of its weight."""

    @staticmethod
    def fits(module: nn.Module | None) -> bool:
        return is_plain(module, MIN_PACKED_NUMBERS)

    def pack(self) -> None:
        """Make the copy, and try it once."""
        self.product = product_of([self.module])
        sample = torch.ones(1, 3, self.module.in_features, dtype=self.module.weight.dtype)
        torch.testing.assert_close(self.forward(sample), self.module.forward(sample))

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives."""
        if inputs.shape[:-1].numel() > self.product.most_tokens:
            return linear(inputs, self.module.weight, self.module.bias)
        return self.product(inputs)


def is_taken_over(module: nn.Module) -> bool:
    """Whether something else computes it, or looks at what it gives."""
    return "forward" in module.__dict__ or bool(module._forward_hooks) or bool(module._forward_pre_hooks)


def is_plain(module: nn.Module | None, smallest: int = 0) -> TypeGuard[nn.Linear]:
    """Whether it is a linear layer on a CPU, with so many weights, that nothing else has taken over."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or module.weight.is_inference():
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype in PACKED_DTYPES and weight.numel() >= smallest
