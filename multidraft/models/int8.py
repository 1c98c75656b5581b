"""Linear layers of draft heads on CPUs, with weights in eight bits.

A level of a head multiplies one token, or a few, by all its weights, and takes as long as to read these from memory.
Each row of a weight is rounded to whole numbers up to 127, times a scale of its own. Drafts are drawn from the logits
that this gives, so that nothing but the acceptance can change.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear

from multidraft.models.attention import NUMBERS, array_at, narrowed, widened
from multidraft.models.bfloat16 import in_float32
from multidraft.models.products import can_pack
from multidraft.models.replacements import Layer
from multidraft.models.torch_threads import in_threads
from multidraft.verification.loops import compiled

MAX_INT8 = 127
MIN_SHARED_NUMBERS = 2**19  # in a weight; with fewer other threads would wake up for little
ADDRESSES, SIZES = ("weights", "scales", "biases", "inputs", "outputs"), ("wide", "width", "tokens", "threads")
JOB = np.dtype([(name, np.int64) for name in (*ADDRESSES, *SIZES)])
MAX_TOKENS = 8  # at once; for more of them, as in prompts, products of the weights as they are take less time


class Int8Product:
    """Products of tokens with the rounded weights of linear layers that have the same inputs, side by side."""

    most_tokens = torch.iinfo(torch.int64).max

    def __init__(self, layers: Sequence[nn.Linear]):
        self.layers = list(layers)
        numbers = torch.cat([layer.weight.detach().float() for layer in layers]).numpy()
        self.scales = np.maximum(np.abs(numbers).max(1), np.finfo(np.float32).tiny) / np.float32(MAX_INT8)
        self.weights = np.rint(numbers / self.scales[:, None]).astype(np.int8)
        biases = [torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach() for layer in layers]
        self.biases = torch.cat(biases).float().numpy()
        self.addresses = [array.ctypes.data for array in (self.weights, self.scales, self.biases)]

    def __call__(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens columns"]:
        """What the layers give with rounded weights, in float32 inside."""
        tokens = inputs.shape[:-1].numel()
        if tokens > MAX_TOKENS:
            multiplied = linear if can_pack(inputs.dtype) else in_float32
            outputs = [multiplied(inputs, layer.weight, layer.bias).to(inputs.dtype) for layer in self.layers]
            return outputs[0] if len(outputs) == 1 else torch.cat(outputs, -1)
        inputs, (wide, width) = inputs.contiguous(), self.weights.shape
        result = inputs.new_empty(*inputs.shape[:-1], wide)
        threads = torch.get_num_threads() if wide * width >= MIN_SHARED_NUMBERS else 1
        sizes = wide, width, tokens, threads
        multiply(inputs.dtype)(np.array([(*self.addresses, inputs.data_ptr(), result.data_ptr(), *sizes)], JOB))
        return result


class Int8Layer(Layer):
    """A linear layer and a rounded copy of its weight."""

    product: Any

    def pack(self) -> None:
        """Make the copy: each row in whole numbers up to the largest, and the scales of rows."""
        self.product = Int8Product([self.module])

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives with the rounded weight."""
        return self.product(inputs)


@partial(compiled, any_order=True)
def product(whole, numbers):
    """The inner product of whole numbers with others."""
    total = np.float32(0)
    for place in range(whole.size):
        total += np.float32(whole[place]) * numbers[place]
    return total


@partial(compiled, any_order=True)
def products_of_two(whole, first, second):
    """The same with two lines of others: whole numbers are converted once, which takes longer than to multiply."""
    left, right = np.float32(0), np.float32(0)
    for place in range(whole.size):
        number = np.float32(whole[place])
        left += number * first[place]
        right += number * second[place]
    return left, right


@cache
def multiply(dtype: torch.dtype) -> Callable[[np.ndarray], None]:
    """The function of a job by which all threads do their shares of a product."""
    return in_threads(multiply_share, JOB, NUMBERS[dtype](0))


@compiled
def multiply_share(job, thread, number):
    """A thread's rows of whole numbers times tokens, and times the rows' scales; a row is read once for all tokens."""
    wide, width, tokens = job.wide, job.width, job.tokens
    rows = array_at(job.weights, np.int8(0), wide * width).reshape((wide, width))
    factors, terms = array_at(job.scales, np.float32(0), wide), array_at(job.biases, np.float32(0), wide)
    sources = array_at(job.inputs, number, tokens * width)
    results = array_at(job.outputs, number, tokens * wide).reshape((tokens, wide))
    lines = np.empty((tokens, width), np.float32)
    for i in range(tokens * width):
        lines.flat[i] = widened(sources[i])
    for row in range(wide * thread // job.threads, wide * (thread + 1) // job.threads):
        for token in range(0, tokens - 1, 2):
            both = products_of_two(rows[row], lines[token], lines[token + 1])
            results[token, row] = narrowed(both[0] * factors[row] + terms[row], number)
            results[token + 1, row] = narrowed(both[1] * factors[row] + terms[row], number)
        if tokens % 2:
            results[-1, row] = narrowed(product(rows[row], lines[-1]) * factors[row] + terms[row], number)
