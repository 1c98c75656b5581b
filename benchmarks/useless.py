"""What `auto` costs where drafts gain nothing: a draft model of random weights, beside plain decoding.

    OMP_NUM_THREADS=1 python benchmarks/useless.py
    OMP_NUM_THREADS=1 python benchmarks/useless.py --rows 16 --new-tokens 128

The pair is measured first, as ever. `believed` has the plan of the good pair in its place, so that `auto` finds out by
itself that nothing is accepted. Both take turns with plain decoding on every batch of prompts. Seconds are the
process's own, which other programs hardly stretch.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
from multidraft_research.cli.capture import DEMO
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.autotune.identity import Subject
from multidraft.autotune.tuning import measured
from multidraft.generation.defaults import SCHEME
from multidraft.zoo import Pair, load_pair

PROMPTS = Path(__file__).with_name("prompts.jsonl")
REDRAWN = 1000
TUNE = 60.0  # seconds of measuring before it begins


def useless(pair: Pair) -> Pair:
    """The pair with a draft model of the same size that has learnt nothing."""
    torch.manual_seed(0)
    draft = type(pair.draft)(pair.draft.config).to(pair.draft.dtype).eval()
    draft.generation_config = pair.draft.generation_config
    return pair._replace(draft=draft)


def tokens_of(pair: Pair, path: Path) -> list[list[int]]:
    """The prompts of a file."""
    return [pair.tokenizer(json.loads(line)["prompt"])["input_ids"] for line in path.read_text().splitlines()]


def believed(good: Pair, bad: Pair, folder: str) -> Path:
    """The good pair's plan, in a file that says it is the other's."""
    prompts = tokens_of(good, DEMO)
    subjects = [Subject(pair.target, pair.draft, md.scheme(SCHEME), prompts=prompts) for pair in (good, bad)]
    file = Path(folder, "plan.json")
    file.write_text(replace(measured(subjects[0], TUNE), identity=subjects[1].identity).as_json())
    return file


def seconds(pair: Pair, way: str, plan: Path, prompts: list[list[int]], seed: int, options: Any) -> float:
    """The process's seconds of one run."""
    settings = dict(plan=plan) if way == "believed" else {}
    start = time.process_time()
    md.generate(
        pair.target,
        None if way == "plain" else pair.draft,
        prompts,
        temperature=options.temperature,
        max_new_tokens=options.new_tokens,
        eos_token_id=[],
        generator=torch.Generator().manual_seed(seed),
        measure=False,
        **settings,
    )
    return time.process_time() - start


def over_plain(taken: list[float], plain: list[float]) -> str:
    """The time of all runs over that of plain decoding, with 95 % of the bootstrap over batches."""
    pairs, chance = list(zip(taken, plain, strict=True)), random.Random(0)
    redrawn = (list(zip(*chance.choices(pairs, k=len(pairs)), strict=True)) for _ in range(REDRAWN))
    ratios = sorted(sum(ours) / sum(theirs) for ours, theirs in redrawn)
    low, high = ratios[round(0.025 * REDRAWN)], ratios[round(0.975 * REDRAWN)]
    return f"{sum(taken) / sum(plain):.3f} ({low:.3f} to {high:.3f})"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=16, help="prompts")
    parser.add_argument("--rows", type=int, default=1, help="prompts side by side")
    parser.add_argument("--new-tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    good, ways = load_pair(), ("plain", "auto", "believed")
    bad, taken = useless(good), defaultdict[str, list[float]](list)
    prompts = tokens_of(good, PROMPTS)[: options.limit]
    batches = [prompts[first : first + options.rows] for first in range(0, len(prompts), options.rows)]
    with TemporaryDirectory() as folder:
        plan = believed(good, bad, folder)
        for turn, batch in enumerate(tqdm([batches[0], *batches * options.seeds], leave=False)):
            for way in ways:
                own = seconds(bad, way, plan, batch, turn, options)
                if turn:  # the first turn warms up
                    taken[way].append(own)
    table = Table("way", "seconds a batch", "over plain")
    for way in ways:
        table.add_row(way, f"{mean(taken[way]):.3f}", over_plain(taken[way], taken["plain"]))
    Console().print(table)


if __name__ == "__main__":
    main()
