"""Tokens per target pass and speed of schemes, trees and walks, all against plain decoding in the same run.

    python benchmarks/decode.py [--temperature 1.0] [--seeds 2] [--new-tokens 128] [--prompts FILE] [--json]

The embedded pair continues the prompts. Every case takes its turn on every prompt before the next one comes, so that a
noisy machine hits all alike; the error is the standard error over prompts and seeds. Block efficiency does not depend
on the machine; the speed does, and says so with the hardware printed.
"""

import argparse
import json
import statistics
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.commands.machine import hardware
from multidraft.commands.pair import load
from multidraft.metrics import Info

PROMPTS = Path(md.__file__).parent / "data" / "demo_prompts.jsonl"
PLAIN = ("plain", "", "")
CASES = [
    PLAIN,
    ("iid:lorenz", "1x1x1x1", "deferred"),
    ("iid:recursive_rejection", "4x2x2x1", "commit"),
    ("without_replacement:recursive_rejection", "4x2x2x1", "commit"),
    ("without_replacement:recursive_rejection", "4x2x2x1", "deferred"),
    ("iid:lorenz", "4x2x2x1", "commit"),
    ("iid:lorenz", "4x2x2x1", "deferred"),
    ("greedy:maximal_coupling", "4x2x2x1", "deferred"),
    ("top:naive", "4x2x2x1", "deferred"),
    ("anchored:lorenz", "4x2x2x1", "commit"),
    ("anchored:lorenz", "4x2x2x1", "deferred"),
    ("anchored:lorenz", "2x1x1", "deferred"),
    ("anchored:lorenz", "3x2", "deferred"),
]


def decode(pair, case: tuple[str, str, str], prompt: list[int], seed: int, options: argparse.Namespace) -> Info:
    """One prompt by one case."""
    scheme, tree, walk = case
    settings = {} if case == PLAIN else dict(scheme=scheme, tree=tree, walk=walk)
    _, info = md.generate(
        pair.target,
        None if case == PLAIN else pair.draft,
        [prompt],
        temperature=options.temperature,
        max_new_tokens=options.new_tokens,
        eos_token_id=[],
        generator=torch.Generator().manual_seed(seed),
        synchronise=pair.target.device.type == "cuda",
        **settings,
    )
    return info


def summary(case: tuple[str, str, str], infos: list[Info], plain: list[Info]) -> dict:
    """One line of the table."""
    whole = sum(infos[1:], infos[0])
    rate = sum(plain[1:], plain[0]).tokens_per_second
    each = [info.block_efficiency for info in infos]
    error = statistics.stdev(each) / len(each) ** 0.5 if len(each) > 1 else 0.0
    parts = {
        part: whole.watch.seconds[part] / whole.total_seconds for part in ("draft", "target", "rule", "cache", "rest")
    }
    return dict(
        scheme=case[0],
        tree=case[1],
        walk=case[2],
        block_efficiency=whole.block_efficiency,
        standard_error=error,
        acceptance_rate=whole.acceptance_rate,
        optimal_acceptance_rate=whole.optimal_acceptance_rate,
        speedup=whole.tokens_per_second / rate,
        share_of_time=parts,
    )


def main() -> None:
    """Decode everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair = load(None, None)
    lines = options.prompts.read_text().splitlines()[: options.limit]
    prompts = [pair.tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
    for case in CASES:
        decode(pair, case, prompts[0][:20], 0, argparse.Namespace(temperature=1.0, new_tokens=8))  # warm-up
    infos: dict[tuple[str, str, str], list[Info]] = {case: [] for case in CASES}
    for seed in tqdm(range(options.seeds), desc="seed"):
        for prompt in tqdm(prompts, desc="prompt", leave=False):
            for case in CASES:
                infos[case].append(decode(pair, case, prompt, seed, options))
    results = [summary(case, infos[case], infos[PLAIN]) for case in CASES]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), temperature=options.temperature, results=results)))
        return
    table = Table(
        "scheme", "tree", "walk", "tokens a pass", "accepted / optimum", "speed / plain", "draft target rule rest"
    )
    for r in results:
        shares = r["share_of_time"]
        table.add_row(
            r["scheme"],
            r["tree"],
            r["walk"],
            f"{r['block_efficiency']:.2f} ± {r['standard_error']:.2f}",
            f"{r['acceptance_rate']:.3f} / {r['optimal_acceptance_rate']:.3f}" if r["tree"] else "",
            f"{r['speedup']:.2f}",
            " ".join(
                f"{100 * (shares[part] + (shares['cache'] if part == 'rest' else 0)):.0f}%"
                for part in ("draft", "target", "rule", "rest")
            ),
        )
    console = Console(width=130)
    console.print(f"temperature {options.temperature}, {hardware()}")
    console.print(table)


if __name__ == "__main__":
    main()
