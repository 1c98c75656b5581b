"""How long each rule takes, as a multiple of one `torch.sort` of the same vectors in the same run.

    python benchmarks/rules.py [--vocabulary 128256] [--rows 1 64] [--drafts 2 4 8 16 64] [--json]

Target and draft are float32 softmaxes of normal logits, the draft a noisy copy. Each
number is the median over repetitions that take turns with the sort, so that a noisy machine hits both alike.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from multidraft_research.studies.acceptance import random_pairs
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.machine import hardware

RULES = ["iid:lorenz", "anchored:lorenz", "iid:k_sequential", "iid:recursive_rejection", "iid:naive"]
RULES += ["without_replacement:recursive_rejection", "greedy:maximal_coupling", "top:naive"]


def truncated(draft: torch.Tensor, keep: int) -> torch.Tensor:
    """The draft with its `keep` most likely tokens only."""
    value, index = draft.topk(keep, -1)
    return torch.zeros_like(draft).scatter_(-1, index, value / value.sum(-1, keepdim=True))


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(ours: Callable[[], object], other: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Median ratio of our time to the other's, one after the other `repeats` times, after a warm-up."""
    ours(), other()
    times = [(seconds(ours, device), seconds(other, device)) for _ in range(repeats)]
    return statistics.median(mine for mine, _ in times) / statistics.median(its for _, its in times)


def measure(rows: int, drafts: int, vocabulary: int, repeats: int, device: torch.device) -> list[dict]:
    """One line a rule: its time over the sort's, and for `lorenz` with a truncated draft, over `naive`'s."""
    generator, pairs = torch.Generator().manual_seed(0), random_pairs(rows, vocabulary, 0)
    target, draft = pairs.target.to(device).softmax(-1), pairs.draft.to(device).softmax(-1)
    lines = []
    for name in RULES:
        scheme = md.scheme(name, drafts=drafts)
        drafted = scheme.draw(draft, generator).to(device)
        run = lambda s=scheme, x=drafted: used(s.verify(target, draft, x))  # noqa: E731
        lines.append(line(name, rows, drafts, compare(run, lambda: target.sort(-1), repeats, device), "sort"))
    short, scheme, plain = (
        truncated(draft, 256),
        md.scheme("iid:lorenz", drafts=drafts),
        md.scheme("iid:naive", drafts=drafts),
    )
    drafted = scheme.draw(short, generator).to(device)
    ratio = compare(
        lambda: used(scheme.verify(target, short, drafted)),
        lambda: used(plain.verify(target, short, drafted)),
        repeats,
        device,
    )
    return [*lines, line("iid:lorenz, draft of 256 tokens", rows, drafts, ratio, "iid:naive")]


def used(outcome) -> None:
    """What a decoding step asks of an outcome, residual included."""
    _ = outcome.accept, outcome.residual_mass, outcome.residual


def line(rule: str, rows: int, drafts: int, ratio: float, other: str) -> dict:
    """One result."""
    return dict(rule=rule, rows=rows, drafts=drafts, ratio=round(ratio, 2), to=other)


def main() -> None:
    """Measure all and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocabulary", type=int, default=128_256)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--drafts", type=int, nargs="+", default=[2, 4, 8, 16, 64])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    cases = [(rows, drafts) for rows in options.rows for drafts in options.drafts]
    device = torch.device(options.device)
    lines = [r for case in tqdm(cases) for r in measure(*case, options.vocabulary, options.repeats, device)]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), vocabulary=options.vocabulary, results=lines)))
        return
    table = Table("rule", "rows", "time over", *[f"{n} drafts" for n in options.drafts], title=str(hardware()))
    for rows in options.rows:
        for rule in dict.fromkeys(r["rule"] for r in lines):
            lines_of_rule = [r for r in lines if r["rule"] == rule and r["rows"] == rows]
            table.add_row(rule, str(rows), lines_of_rule[0]["to"], *[f"{r['ratio']:.2f}" for r in lines_of_rule])
    Console().print(table)


if __name__ == "__main__":
    main()
