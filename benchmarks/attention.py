"""Attention of few tokens on a CPU: our loop and PyTorch's, over keys and values that come from memory.

    python benchmarks/attention.py --threads 2
    python benchmarks/attention.py --rows 16 --context 1000 --dtype float32 --json

A pass goes through the keys and values of all layers, ours and PyTorch's by turns. Rows have from half to all of the
context, as in a server. PyTorch's way is the one where the loop does not fit: heads of a group side by side.
"""

import time
from collections.abc import Callable
from statistics import median

import torch
from pass_cases import parser_of, show
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from multidraft.models.attention import SlotLists, team

LAYERS, GROUPS, TIMES, WIDTH, PASSES = 30, 3, 3, 64, 20  # as in SmolLM2-135M


def milliseconds(ways: list[Callable[[Tensor, Tensor], Tensor]], memory: Tensor) -> list[float]:
    """The median pass of each way, by turns."""
    times: list[list[float]] = [[] for _ in ways]
    for _ in range(PASSES):
        for way, seconds in zip(ways, times, strict=True):
            start = time.perf_counter()
            for keys, values in memory:
                way(keys, values)
            seconds.append(time.perf_counter() - start)
    return [1e3 * median(seconds) for seconds in times]


def compared(rows: int, new: int, context: int, dtype: torch.dtype) -> dict[str, float | int]:
    """A pass of so many rows with so many new tokens behind a text."""
    slots = context + new
    memory = torch.randn(LAYERS, 2, rows, GROUPS, slots, WIDTH).to(dtype)
    query, mask = torch.randn(rows, GROUPS * TIMES, new, WIDTH).to(dtype), torch.zeros(rows, 1, new, slots, dtype=dtype)
    for row in range(rows):
        mask[row, :, :, : row * context // (2 * rows)] = torch.finfo(dtype).min
    lists, side_by_side = SlotLists(mask), query.reshape(rows, GROUPS, -1, WIDTH)
    repeated = mask.repeat(1, 1, TIMES, 1)
    ours, theirs = milliseconds(
        [
            lambda keys, values: lists.attend(query, keys, values, WIDTH**-0.5),
            lambda keys, values: scaled_dot_product_attention(side_by_side, keys, values, repeated),
        ],
        memory,
    )
    return dict(rows=rows, new=new, context=context, ours=ours, pytorch=theirs, ratio=ours / theirs)


def main() -> None:
    """Compare, and print a table or JSON."""
    parser = parser_of(__doc__, [300, 1000])
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if team() is None:
        parser.error("PyTorch's threads are not GNU's OpenMP here, so its attention is what is used")
    dtype = getattr(torch, options.dtype)
    show(options, f"{LAYERS} layers", lambda *case: compared(*case, dtype))


if __name__ == "__main__":
    main()
