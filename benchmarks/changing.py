"""A workload that changes midway, from prose to a list of numbers that both models are sure of: is it followed?

    OMP_NUM_THREADS=1 python benchmarks/changing.py

After half of the tokens a logits processor leaves only the next token of a list of numbers, so that every draft is
right. A tree that was best for prose is too small for it then. All trees take turns on every prompt; tokens a second of
either half, and their ratio to plain decoding.
"""

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm
from transformers import LogitsProcessor

import multidraft as md
from multidraft.zoo import Pair, load_pair

PROMPTS = Path(__file__).with_name("prompts.jsonl")
TREES = ("none", "1x1x1", "2x1x1x1", "3x1x1x1", "1x1x1x1x1x1x1x1", "auto")


class Numbers(LogitsProcessor):
    """From some length on nothing but a list of numbers."""

    def __init__(self, tokens: list[int], start: int):
        self.tokens, self.start = tokens, start

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        """Logits as they were before the start; afterwards one token is left."""
        place = input_ids.shape[1] - self.start
        if place < 0:
            return scores
        token = self.tokens[place % len(self.tokens)]
        return torch.full_like(scores, -float("inf")).index_fill(1, torch.tensor([token]), 0.0)


def seconds_of_halves(pair: Pair, tree: str, prompt: list[int], numbers: list[int], half: int) -> tuple[float, float]:
    """Decode twice as many tokens as `half`; how long each half takes, the prompt not counted."""
    times: list[tuple[int, float]] = []
    md.generate(
        pair.target,
        None if tree == "none" else pair.draft,
        [prompt],
        tree="auto" if tree == "none" else tree,
        max_new_tokens=2 * half,
        eos_token_id=[],
        temperature=0.7,
        generator=torch.Generator().manual_seed(0),
        logits_processor=[Numbers(numbers, len(prompt) + half)],
        stream=lambda row, emitted: times.append((len(emitted.tokens), time.perf_counter())),
        measure=False,
    )
    made = torch.tensor([count for count, _ in times]).cumsum(0)
    middle = int((made >= half).nonzero()[0, 0])
    return times[middle][1] - times[0][1], times[-1][1] - times[middle][1]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--limit", type=int, default=8, help="prompts")
    parser.add_argument("--half", type=int, default=96, help="tokens of prose, and of numbers")
    options = parser.parse_args()
    pair = load_pair()
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()[: options.limit]]
    numbers = pair.tokenizer(", ".join(map(str, range(1, 60))))["input_ids"]
    taken: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for index, text in enumerate(tqdm([texts[0], *texts], leave=False)):
        for tree in TREES:
            halves = seconds_of_halves(pair, tree, pair.tokenizer(text)["input_ids"], numbers, options.half)
            if index:  # the first turn warms up
                taken[tree].append(halves)
    table = Table("tree", "prose, tokens a second", "over plain", "numbers, tokens a second", "over plain")
    speeds = {
        tree: [len(runs) * options.half / sum(half) for half in zip(*runs, strict=True)] for tree, runs in taken.items()
    }
    plain = speeds["none"]
    for tree, (prose, listed) in speeds.items():
        table.add_row(tree, f"{prose:.0f}", f"{prose / plain[0]:.2f}", f"{listed:.0f}", f"{listed / plain[1]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main()
