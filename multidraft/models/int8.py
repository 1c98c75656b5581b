"""Linear layers of draft heads on CPUs, with weights in eight bits.

A level of a head multiplies one token, or a few, by all its weights, and takes as long as to read these from memory.
Each row of a weight is rounded to whole numbers up to 127, times a scale of its own. Drafts are drawn from the logits
that this gives, so that nothing but the acceptance can change.
"""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int8
from torch import Tensor
from torch.nn.functional import linear

from multidraft.models.bfloat16 import in_float32
from multidraft.models.replacements import Layer, can_pack
from multidraft.verification.loops import compiled

Rounded = tuple[Int8[np.ndarray, "wide width"], Float[np.ndarray, " wide"]]  # whole numbers, and the scale of each row
LARGEST = 127
MAX_TOKENS = 8  # at once; for more of them, as in prompts, products of the weights as they are take less time


class Int8Layer(Layer):
    """A linear layer and a rounded copy of its weight."""

    def pack(self) -> None:
        """Make the copy: each row in whole numbers up to the largest, and the scales of rows."""
        numbers = self.module.weight.detach().float().numpy()
        scales = np.maximum(np.abs(numbers).max(1), np.finfo(np.float32).tiny) / np.float32(LARGEST)
        self.packed: Rounded = np.rint(numbers / scales[:, None]).astype(np.int8), scales

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives with the rounded weight, in float32 inside."""
        if inputs.shape[:-1].numel() > MAX_TOKENS:
            multiplied = linear if can_pack(inputs.dtype) else in_float32
            return multiplied(inputs, self.module.weight, self.module.bias).to(inputs.dtype)
        lines = np.ascontiguousarray(inputs.float().numpy()).reshape(-1, inputs.shape[-1])
        outputs = np.empty((len(lines), len(self.module.weight)), np.float32)
        multiply(*self.packed, lines, outputs)
        result = torch.from_numpy(outputs).to(inputs.dtype).view(*inputs.shape[:-1], -1)
        return result if self.module.bias is None else result + self.module.bias


@partial(compiled, any_order=True)
def product(whole, numbers):
    """The inner product of whole numbers with others."""
    total = np.float32(0)
    for place in range(whole.size):
        total += np.float32(whole[place]) * numbers[place]
    return total


@compiled
def multiply(weights, scales, lines, outputs):
    """Products of lines with rows of whole numbers, times the rows' scales; a row is read once for all lines."""
    for row in range(len(weights)):
        for line in range(len(lines)):
            outputs[line, row] = product(weights[row], lines[line]) * scales[row]
