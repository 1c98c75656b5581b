"""Attention of few tokens on a CPU: our loop and PyTorch's, over keys and values that come from memory.

    python benchmarks/attention.py --threads 2
    python benchmarks/attention.py --rows 16 --context 1000 --dtype float32 --json

A pass goes through the keys and values of all layers, ours and PyTorch's by turns. Rows have from half to all of the
context, as in a server. PyTorch's way is the one where the loop does not fit: heads of a group side by side.
"""

import argparse
import json
import time
from collections.abc import Callable
from statistics import median

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from multidraft.machine import commit, hardware
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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--new", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--context", type=int, nargs="+", default=[300, 1000])
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="for machines")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if team() is None:
        parser.error("PyTorch's threads are not GNU's OpenMP here, so its attention is what is used")
    dtype = getattr(torch, options.dtype)
    cases = [(rows, new, context) for rows in options.rows for new in options.new for context in options.context]
    lines = [compared(*case, dtype) for case in cases]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), commit=commit(), dtype=options.dtype, lines=lines)))
        return
    table = Table(*lines[0], title=f"{LAYERS} layers, ms, {options.dtype}, {options.threads} threads, {commit()}")
    for line in lines:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in line.values()))
    Console().print(table)


if __name__ == "__main__":
    main()
