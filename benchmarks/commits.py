"""Two checkouts of this repository against each other, in runs that take turns: is one of them slower?

    git worktree add ../base COMMIT
    OMP_NUM_THREADS=1 python benchmarks/commits.py ../base . [--cases plain 1x1x1 2x1x1x1] [--rows 1 4 16] [--json]
    OMP_NUM_THREADS=1 python benchmarks/commits.py ../base . --target smollm2 --cases plain auto [--engine llama.cpp]

A process of each checkout loads the same models and keeps them. Both decode the same prompts with the same seeds, one
after the other, so that a busy machine hits both alike. What counts is processor time, which neighbours lengthen least
(where one thread computes; with more it is the clock's). Printed are the second checkout's tokens a second over the
first one's, and the first one's seconds a target pass over the second one's, which luck with drafts does not move. Each
is a ratio of sums over runs, with the middle 95 % of 2,000 resamplings of the runs.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

PROMPTS = Path(__file__).with_name("prompts.jsonl")
Run = tuple[int, int, float]  # tokens, target passes, seconds


def work(options: argparse.Namespace) -> None:
    """Decode what is asked for, line by line; only what both checkouts know alike may be used here."""
    import torch

    import multidraft as md

    try:
        from multidraft.cli.engines import Loader
        from multidraft.cli.pair import load
    except ImportError:  # a checkout from before 2026-11-29
        from multidraft.cli.models import Loader, load

    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    target, draft, tokenizer = load(options.target, options.draft, Loader(options.engine))
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        job = json.loads(line)
        generator, tree = torch.Generator().manual_seed(job.pop("seed")), job.pop("case")
        drafts = (None, {}) if tree == "plain" else (draft, dict(tree=tree))
        prompts = [tokenizer(text).input_ids[: options.prompt] for text in job.pop("texts")]
        start = clock()
        rows, info = md.generate(target, drafts[0], prompts, eos_token_id=[], generator=generator, **drafts[1], **job)
        seconds = clock() - start
        print(json.dumps([sum(map(len, rows)), info.target_passes, seconds]), file=out, flush=True)


@contextmanager
def worker(checkout: Path, options: argparse.Namespace) -> Iterator[subprocess.Popen]:
    """A process that runs a checkout's code."""
    named = {"--target": options.target, "--draft": options.draft, "--engine": options.engine}
    named |= {"--prompt": str(options.prompt)}
    started = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).resolve()),
            "--work",
            *(f"{name}={value}" for name, value in named.items() if value),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | dict(PYTHONPATH=str(checkout.resolve())),
    )
    try:
        yield started
    finally:
        started.terminate()
        started.wait()


def decode(process: subprocess.Popen, job: dict[str, Any]) -> Run:
    """One run in a process."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(job) + "\n")
    process.stdin.flush()
    answer = process.stdout.readline()
    if not answer:
        sys.exit("commits.py: a worker has ended; its error is above")
    return tuple(json.loads(answer))


def measure(workers: list[subprocess.Popen], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The runs of both checkouts in turn, by case, temperature and rows."""
    texts = [json.loads(line)["prompt"] for line in PROMPTS.read_text().splitlines()]
    for case, heat, rows in product(options.cases, options.temperature, options.rows):
        runs: list[list[Run]] = [[], []]
        for turn in range(-1, options.rounds):
            chosen = [texts[(turn * rows + place) % len(texts)] for place in range(rows)]
            job = dict(case=case, temperature=heat, texts=chosen, max_new_tokens=options.new_tokens, seed=turn + 1)
            job |= dict(measure=options.measure)
            for runs_of_worker, process in list(zip(runs, workers, strict=True))[:: 1 if turn % 2 else -1]:
                run = decode(process, job)
                if turn >= 0:  # the first warms up
                    runs_of_worker.append(run)
        yield dict(case=case, temperature=heat, rows=rows) | compared(*runs)


def compared(first: list[Run], second: list[Run]) -> dict[str, Any]:
    """Both ratios with their intervals, and milliseconds a pass."""
    import numpy as np

    runs = np.array([first, second], dtype=float)  # (2, runs, 3)
    chance = np.random.default_rng(0)
    picks = chance.integers(runs.shape[1], size=(2000, runs.shape[1]))
    sums = np.concatenate([runs.sum(1)[:, None], runs[:, picks].sum(2)], 1)  # (2, 1 + 2000, 3)
    speed, step = sums[..., 0] / sums[..., 2], sums[..., 2] / sums[..., 1]

    def with_interval(ratios: Any) -> list[float]:
        return [float(ratios[0]), *np.quantile(ratios[1:], (0.025, 0.975)).tolist()]

    return dict(speed=with_interval(speed[1] / speed[0]), step=with_interval(step[0] / step[1])) | dict(
        milliseconds=[float(1e3 * values[0]) for values in step],
        tokens_per_pass=(sums[:, 0, 0] / sums[:, 0, 1]).tolist(),
    )


def main() -> None:
    """Measure and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", type=Path, nargs="*", help="two folders, the older one first")
    parser.add_argument("--cases", nargs="+", default=["plain", "1x1x1", "2x1x1x1"], help="trees, or plain")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 1.0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=48)
    parser.add_argument("--prompt", type=int, default=64, help="tokens of a prompt at most")
    parser.add_argument("--measure", action="store_true", help="with the acceptance that `info` reports")
    parser.add_argument("--target", default="embedded", help="as for `multidraft generate`, as are the next two")
    parser.add_argument("--draft")
    parser.add_argument("--engine")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        return work(options)
    if len(options.checkouts) != 2:
        parser.error("name two checkouts")
    with worker(options.checkouts[0], options) as first, worker(options.checkouts[1], options) as second:
        for line in measure([first, second], options):
            print(json.dumps(line) if options.json else sentence(line), flush=True)


def sentence(line: dict[str, Any]) -> str:
    """A line of the table."""
    ratios = "   ".join(f"{name} {{:.3f}} ({{:.3f}} to {{:.3f}})".format(*line[name]) for name in ("speed", "step"))
    times = " -> ".join(f"{value:.2f}" for value in line["milliseconds"])
    tokens = " -> ".join(f"{value:.2f}" for value in line["tokens_per_pass"])
    return f"{line['case']:>9} T={line['temperature']:g} rows={line['rows']:<2} {ratios}   ms {times}   tokens {tokens}"


if __name__ == "__main__":
    main()
