"""Tokens per target pass with the drafters that `multidraft generate --draft` names, for the embedded target.

    python benchmarks/drafters.py [--temperature 1.0] [--seeds 2] [--max-new-tokens 128] [--prompts FILE] [--json]

Every drafter takes its turn on every prompt; the error is the standard error over prompts and seeds.
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
from multidraft.cli.pair import Models, load
from multidraft.decoding.metrics import Info
from multidraft.machine import hardware

PROMPTS = Path(md.__file__).parent / "zoo" / "prompts" / "demo_prompts.jsonl"
Case = tuple[str, str, str]
ONE, LIST = ("anchored:lorenz", "4x2x2x1", "deferred"), ("distinct:recursive_rejection", "4x2x2x1", "deferred")
DRAFTERS = [
    ("embedded", ONE),
    ("ngram", ONE),
    ("lookup", ("top:naive", "1x1x1x1", "deferred")),
    ("0.9*embedded+0.1*ngram", ONE),
    ("embedded+ngram", ONE),
    ("layers:1", ONE),
    ("layers:2", ONE),
    ("embedded", ("iid:recursive_rejection", "4x2x2x1", "deferred")),
    ("embedded,ngram", LIST),
    ("embedded,layers:1", LIST),
]


def decode(models: Models, case: Case, prompt: list[int], seed: int, options: argparse.Namespace) -> Info:
    """One prompt by one drafter."""
    scheme, tree, walk = case
    settings = dict(max_new_tokens=options.new_tokens, temperature=options.temperature, eos_token_id=[])
    generator = torch.Generator().manual_seed(seed)
    return md.generate(
        models.target, models.draft, [prompt], scheme=scheme, tree=tree, walk=walk, generator=generator, **settings
    )[1]


def summary(draft: str, case: Case, infos: list[Info]) -> dict[str, object]:
    """One line of the table."""
    whole = sum(infos[1:], infos[0])
    efficiencies = [info.block_efficiency for info in infos]
    return dict(
        draft=draft,
        scheme=case[0],
        tree=case[1],
        walk=case[2],
        block_efficiency=whole.block_efficiency,
        standard_error=statistics.stdev(efficiencies) / len(efficiencies) ** 0.5,
        acceptance_rate=whole.acceptance_rate,
        optimal_acceptance_rate=whole.optimal_acceptance_rate,
    )


def main() -> None:
    """Decode everything and print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=128)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    models = [load("embedded", draft) for draft, _ in DRAFTERS]
    texts = [json.loads(line)["prompt"] for line in options.prompts.read_text().splitlines()]
    prompts = [models[0].tokenizer(text)["input_ids"] for text in texts]
    infos: list[list[Info]] = [[] for _ in DRAFTERS]
    for seed in tqdm(range(options.seeds), desc="seed"):
        for prompt in tqdm(prompts, desc="prompt", leave=False):
            for (_, case), pair, runs in zip(DRAFTERS, models, infos, strict=True):
                runs.append(decode(pair, case, prompt, seed, options))
    results = [summary(draft, case, runs) for (draft, case), runs in zip(DRAFTERS, infos, strict=True)]
    if options.json:
        print(json.dumps(dict(hardware=hardware(), temperature=options.temperature, results=results)))
        return
    table = Table("draft", "scheme", "tree", "tokens a pass", "accepted / optimum")
    for r in results:
        rates = f"{r['acceptance_rate']:.3f} / {r['optimal_acceptance_rate']:.3f}"
        passes = f"{r['block_efficiency']:.2f} ± {r['standard_error']:.2f}"
        table.add_row(r["draft"], r["scheme"], r["tree"], passes, rates)
    console = Console(width=130)
    console.print(f"temperature {options.temperature}, {hardware()}")
    console.print(table)


if __name__ == "__main__":
    main()
