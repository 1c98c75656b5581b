"""What takes the place of a module's forward for a while: packed linear layers, and norms in one loop.

PyTorch packs a linear layer's weights in the order in which oneDNN multiplies, anew in every call, which takes longer
than to multiply them with a few tokens. Here a packed copy stays; the model is left as it was, and what changes its
weights is noticed.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from multidraft.models.bfloat16 import WideningProduct
from multidraft.models.norms import can_normalise, epsilon_of, normalise

MIN_PACKED_NUMBERS = 2**14  # in a weight that is worth packing
# Packing helps passes of few tokens; oneDNN keeps 0.7 MB of code for each number of tokens, and prompts are of any.
MAX_PACKED_TOKENS = 128
KINDS = (torch.bfloat16, torch.float32)


class Replacement:
    """What takes the place of a module's forward for a while; raises RuntimeError where this processor cannot.

    `siblings` are what its parent holds by name: the parent itself may be the key that this is kept by.
    """

    def __init__(self, module: Any, siblings: Mapping[str, nn.Module | None], name: str):
        self.module = module
        parts = list(module.modules())
        self.places: list[tuple[Mapping[str, Any], str, Any]] = [(siblings, name, module)]
        self.places += [(part._modules, *item) for part in parts for item in part._modules.items()]
        self.places += [(part._parameters, *item) for part in parts for item in part._parameters.items()]
        self.weights = [(weight, weight._version, weight.data_ptr()) for weight in module.parameters()]
        self.pack()

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


class PackedProduct:
    """Products of a few tokens with a packed copy of some weights, side by side."""

    most_tokens = MAX_PACKED_TOKENS

    def __init__(self, weights: Sequence[Float[Tensor, "_ width"]], biases: Sequence[Float[Tensor, " _"] | None]):
        given = [bias for bias in biases if bias is not None]
        if len(given) not in (0, len(weights)):
            raise RuntimeError("some of these layers have a bias, and some have none")
        weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = given[0] if len(given) == 1 else torch.cat(given) if given else None

    def __call__(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens columns"]:
        """What linear layers give."""
        return torch.ops.mkldnn._linear_pointwise(inputs, self.weight, self.bias, "none", [], "")


def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN multiplies such numbers on this processor."""
    is_known = dtype != torch.bfloat16 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.backends.mkldnn.is_available() and is_known


def product_of(layers: Sequence[nn.Linear]) -> PackedProduct | WideningProduct:
    """The products of several linear layers with the same inputs."""
    dtype = layers[0].weight.dtype
    kind = PackedProduct if can_pack(dtype) else WideningProduct if dtype == torch.bfloat16 else None
    if kind is None:
        raise RuntimeError("this processor has no oneDNN")
    biases = [None if layer.bias is None else layer.bias.detach() for layer in layers]
    return kind([layer.weight.detach() for layer in layers], biases)


class Layer(Replacement):
    """A linear layer and a packed copy of its weight."""

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


def fits(module: nn.Module | None, smallest: int = MIN_PACKED_NUMBERS) -> TypeGuard[nn.Linear]:
    """Whether it is a plain linear layer on a CPU, large enough, that nothing else has taken over."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or module.weight.is_inference():
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype in KINDS and weight.numel() >= smallest
