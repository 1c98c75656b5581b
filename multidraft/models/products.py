"""Products of a few tokens with the weights of linear layers that have the same inputs, side by side.

PyTorch packs a linear layer's weights in the order in which oneDNN multiplies, anew in every call, which takes longer
than to multiply them with a few tokens. Here a packed copy stays.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from multidraft.models.bfloat16 import WideningProduct

# Packing helps passes of few tokens; oneDNN keeps 0.7 MB of code for each number of tokens, and prompts are of any.
MAX_PACKED_TOKENS = 128


class PackedProduct:
    """Products of a few tokens with a packed copy of some weights, side by side."""

    most_tokens = MAX_PACKED_TOKENS

    def __init__(self, weights: Sequence[Float[Tensor, "_ width"]], biases: Sequence[Float[Tensor, " _"] | None]):
        given_biases = [bias for bias in biases if bias is not None]
        if len(given_biases) not in (0, len(weights)):
            raise RuntimeError("some of these layers have a bias, and some have none")
        weight = weights[0] if len(weights) == 1 else torch.cat(list(weights))
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = given_biases[0] if len(given_biases) == 1 else torch.cat(given_biases) if given_biases else None

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
