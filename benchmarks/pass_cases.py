"""The options and the output that benchmarks of passes share: cases of rows, new tokens and contexts."""

import argparse
import json
from collections.abc import Callable
from itertools import product

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from multidraft.machine import commit, hardware

Line = dict[str, float | int]


def parser_of(description: str | None, contexts: list[int]) -> argparse.ArgumentParser:
    """A parser of the options, with these contexts by default."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--new", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--context", type=int, nargs="+", default=contexts)
    parser.add_argument("--dtype", choices=["bfloat16", "float32"], default="bfloat16")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def show(options: argparse.Namespace, what: str, compared: Callable[[int, int, int], Line]) -> None:
    """Compare in all cases, and print a table or JSON."""
    cases = list(product(options.rows, options.new, options.context))
    lines = [compared(*case) for case in tqdm(cases, desc="cases", disable=options.json)]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), commit=commit(), dtype=options.dtype, lines=lines)))
        return
    table = Table(*lines[0], title=f"{what}, ms, {options.dtype}, {options.threads} threads, {commit()}")
    for line in lines:
        table.add_row(*(f"{value:.2f}" if isinstance(value, float) else str(value) for value in line.values()))
    Console().print(table)
