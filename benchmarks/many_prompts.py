"""Many prompts in one call: continuous batching beside calls of as many prompts as decode at a time.

    OMP_NUM_THREADS=1 python benchmarks/many_prompts.py                # 64 prompts, 16 at a time
    python benchmarks/many_prompts.py --target smollm2 --plain --float32 --rounds 2

Prompts and answers have lengths of all kinds. One call with `max_num_seqs` takes in the next prompt when a row ends;
calls of so many prompts each end with their longest row. The two take turns in every round.
"""

import argparse
import random
import statistics
import time

import torch

import multidraft as md
from multidraft.cli.pair import Models, load
from multidraft.machine import commit, hardware

SHORTEST, LONGEST = 8, 256  # new tokens of a row; their logarithms are uniform, as answers are: many short, few long
WORDS = "the old house stood at the end of a road and nobody had lived there for a long time when one day".split()


def prompts_of(tokenizer, count: int) -> list[list[int]]:
    """Texts of 2 to 60 words."""
    chance = random.Random(0)
    texts = [" ".join(chance.choices(WORDS, k=chance.choice([2, 5, 10, 30, 60]))) for _ in range(count)]
    return tokenizer(texts).input_ids


class EndsAt:
    """A stopping criterion by which each prompt's row has a number of new tokens of its own."""

    def __init__(self, prompts: list[list[int]]):
        chance = random.Random(1)
        counts = [int(SHORTEST * (LONGEST / SHORTEST) ** chance.random()) for _ in prompts]
        self.ends = {tuple(prompt): len(prompt) + count for prompt, count in zip(prompts, counts, strict=True)}
        self.lengths = sorted(
            {len(prompt) for prompt in prompts}, reverse=True
        )  # the longest prompt that fits is meant

    def __call__(self, input_ids: torch.Tensor, scores: object) -> bool:
        tokens = input_ids[0].tolist()
        return len(tokens) >= next(filter(None, (self.ends.get(tuple(tokens[:length])) for length in self.lengths)))


def seconds(
    pair: Models, prompts: list[list[int]], rows: int, continuous: bool, temperature: float
) -> tuple[float, int]:
    """Seconds and new tokens of all prompts."""
    calls = [prompts] if continuous else [prompts[first : first + rows] for first in range(0, len(prompts), rows)]
    settings = dict(temperature=temperature, max_new_tokens=LONGEST, eos_token_id=[], tune_budget=0.0)
    began, tokens = time.perf_counter(), 0
    for number, call in enumerate(calls):
        new_tokens, _ = md.generate(
            pair.target,
            pair.draft,
            call,
            generator=torch.Generator().manual_seed(number),
            max_num_seqs=rows,
            stopping_criteria=[EndsAt(prompts)],
            measure=False,
            **settings,
        )
        tokens += sum(map(len, new_tokens))
    return time.perf_counter() - began, tokens


def main() -> None:
    """Take turns, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompts", type=int, default=64)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--target", default="embedded", help="as for `multidraft generate`; its drafts too")
    parser.add_argument("--plain", action="store_true", help="without drafts")
    parser.add_argument("--float32", action="store_true", help="where a processor computes bfloat16 slowly")
    options = parser.parse_args()
    pair = load(options.target, "none" if options.plain else None)
    for model in filter(None, (pair.target, pair.draft)) if options.float32 else ():
        model.float()
    prompts = prompts_of(pair.tokenizer, options.prompts)
    print(f"{hardware()}; commit {commit()}")
    for temperature in (0.0, 1.0):
        seconds(pair, prompts[: options.rows], options.rows, True, temperature)  # warms up
        ratios, rates = [], []
        for turn in range(options.rounds):
            ways = (True, False) if turn % 2 else (False, True)
            timed = {way: seconds(pair, prompts, options.rows, way, temperature) for way in ways}
            one_call, many_calls = timed[True], timed[False]
            ratios.append(one_call[0] / one_call[1] / (many_calls[0] / many_calls[1]))
            rates.append(one_call[1] / one_call[0])
        print(
            f"T = {temperature:g}: one call takes {statistics.median(ratios):.2f} of the time a token "
            f"({min(ratios):.2f} to {max(ratios):.2f}), {statistics.median(rates):.0f} tokens a second"
        )


if __name__ == "__main__":
    main()
