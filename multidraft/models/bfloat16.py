"""Products with weights in bfloat16 on processors without instructions for it, as most with AVX2 are.

PyTorch multiplies these number by number there, ten times as slowly as in float32. Here a loop widens weights as it
reads them: half the memory of float32, read once for four tokens. Weights are used where they are. For many tokens a
weight is widened as a whole, and multiplied in float32.
"""

from collections.abc import Callable, Sequence
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear

from multidraft.models.attention import array_at, narrowed, widened
from multidraft.models.torch_threads import in_threads
from multidraft.verification.loops import compiled

MAX_TOKENS = 32  # of the loop
NUMBER, BYTES = np.uint16(0), 2  # what it takes a bfloat16 for
FIELDS = "weight", "bias", "inputs", "outputs", "wide", "width", "tokens", "columns", "threads"
JOB = np.dtype([(name, np.int64) for name in FIELDS])


class WideningProduct:
    """Products of tokens with some weights in bfloat16, side by side."""

    most_tokens = torch.iinfo(torch.int64).max

    def __init__(self, weights: Sequence[Float[Tensor, "_ width"]], biases: Sequence[Float[Tensor, " _"] | None]):
        self.weights = [weight.contiguous() for weight in weights]
        pairs = zip(weights, biases, strict=True)
        self.biases = [weight.new_zeros(len(weight)) if bias is None else bias for weight, bias in pairs]
        self.biases = [bias.float() for bias in self.biases]
        self.columns = sum(map(len, weights))

    def __call__(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens columns"]:
        """The products, rounded once."""
        lines, parts = inputs.float().contiguous(), zip(self.weights, self.biases, strict=True)
        tokens = inputs.shape[:-1].numel()
        if tokens > MAX_TOKENS:
            return torch.cat([in_float32(lines, weight, bias).to(inputs.dtype) for weight, bias in parts], -1)
        outputs, place = inputs.new_empty(*inputs.shape[:-1], self.columns), 0
        for weight, bias in parts:
            addresses = weight.data_ptr(), bias.data_ptr(), lines.data_ptr(), outputs.data_ptr() + BYTES * place
            job = np.array([(*addresses, *weight.shape, tokens, self.columns, torch.get_num_threads())], JOB)
            multiply_in_threads()(job)
            place += len(weight)
        return outputs


def in_float32(
    inputs: Float[Tensor, "*tokens width"], weight: Float[Tensor, "wide width"], bias: Float[Tensor, " wide"] | None
) -> Float[Tensor, "*tokens wide"]:
    """What a linear layer gives, in float32: for many tokens."""
    return linear(inputs.float(), weight.float(), None if bias is None else bias.float())


@cache
def multiply_in_threads() -> Callable[[np.ndarray], None]:
    """The function of a job by which all threads do their shares."""
    return in_threads(multiply_share, JOB, NUMBER)


@partial(compiled, any_order=True)
def multiply_share(job, thread, number):
    """A thread's share: the products of all tokens with some rows of the weight."""
    wide, width, tokens = job.wide, job.width, job.tokens
    weights = array_at(job.weight, number, wide * width).reshape((wide, width))
    lines = array_at(job.inputs, np.float32(0), tokens * width).reshape((tokens, width))
    biases = array_at(job.bias, np.float32(0), wide)
    outputs = array_at(job.outputs, number, tokens * job.columns).reshape((tokens, job.columns))
    whole, sums = tokens // 4 * 4, np.zeros(4, np.float32)
    for row in range(wide * thread // job.threads, wide * (thread + 1) // job.threads):
        for first in range(0, whole, 4):
            multiply_four(sums, weights[row], lines[first : first + 4])
            for token in range(4):
                outputs[first + token, row] = narrowed(sums[token] + biases[row], number)
        for token in range(whole, tokens):
            total, weight, line = np.float32(0), weights[row], lines[token]
            for i in range(width):
                total += widened(weight[i]) * line[i]
            outputs[token, row] = narrowed(total + biases[row], number)


@partial(compiled, any_order=True)
def multiply_four(sums, weight, lines):
    """The products of a row of the weight with four tokens."""
    first, second, third, fourth = lines[0], lines[1], lines[2], lines[3]
    a = b = c = d = np.float32(0)
    for i in range(len(weight)):
        number = widened(weight[i])
        a += number * first[i]
        b += number * second[i]
        c += number * third[i]
        d += number * fourth[i]
    sums[0], sums[1], sums[2], sums[3] = a, b, c, d
