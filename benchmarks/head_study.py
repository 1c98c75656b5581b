"""One draft head under every way of drafting from it and verifying: tokens a target pass, and tokens a second.

    python benchmarks/head_study.py --draft eagle3:FOLDER --prompts prompts.jsonl [--tree 3x2x1x1] [--rows 8]

The same head, trees, prompts and random numbers. A way that drafts chains gets one as deep as the tree. Matching is
what most engines do: the most likely tokens are drafted, and what the target draws is taken if it is among them; on
such trees SGLang's target-only sampling has the same law. Rejection on chains committed node by node is vLLM's with
`probabilistic`, deferred it is block verification. Errors are one standard deviation, over prompts.
"""

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.cli.engines import Loader
from multidraft.cli.pair import load
from multidraft.machine import hardware

WAYS = {  # the scheme, the walk, and whether it is of chains alone
    "matching, target-only sampling": ("top:naive", "commit", False),
    "rejection, sampled chains": ("iid:recursive_rejection", "commit", True),
    "block verification, sampled chains": ("iid:recursive_rejection", "deferred", True),
    "recursive rejection without replacement, committed": ("without_replacement:recursive_rejection", "commit", False),
    "recursive rejection without replacement, deferred": ("without_replacement:recursive_rejection", "deferred", False),
    "anchored:lorenz, deferred": ("anchored:lorenz", "deferred", False),
}


def main() -> None:
    """Decode all prompts in every way at every temperature."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--draft", required=True, help="a head, such as eagle3:FOLDER, or any drafter")
    parser.add_argument(
        "--prompts", type=Path, required=True, help="JSON lines with `prompt`, put into the chat template"
    )
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--tree", default="3x2x1x1")
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.7, 1.0])
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--rows", type=int, default=1, help="prompts decoded side by side")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    pair = load(options.target, options.draft, Loader("transformers"))
    prompts = chats(options.prompts, options.limit, pair.tokenizer)
    lines = [
        line
        for temperature in options.temperatures
        for way in tqdm(WAYS, desc=f"T = {temperature}", leave=False)
        for line in [measured(pair, prompts, way, temperature, options)]
    ]
    if options.json:
        print(json.dumps({"hardware": hardware(), "tree": options.tree, "draft": options.draft, "lines": lines}))
    else:
        shown(lines, options)


def chats(path: Path, limit: int, tokenizer: Any) -> list[list[int]]:
    """The tokens of the first prompts."""
    texts = [json.loads(line)["prompt"] for line in path.read_text(encoding="utf-8").splitlines()[:limit]]
    turns = [[{"role": "user", "content": text}] for text in texts]
    written = [tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False) for turn in turns]
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in written]


def measured(pair: Any, prompts: list[list[int]], way: str, temperature: float, options: Any) -> dict[str, Any]:
    """One line of the table."""
    scheme, walk, is_chain = WAYS[way]
    tree = "x".join("1" for _ in options.tree.split("x")) if is_chain else options.tree
    settings = dict(scheme=scheme, walk=walk, tree=tree, temperature=temperature, max_new_tokens=options.max_new_tokens)
    infos = []
    for first in range(0, len(prompts), options.rows):
        rows = prompts[first : first + options.rows]
        generators = [torch.Generator().manual_seed(first + row) for row in range(len(rows))]
        infos.append(md.generate(pair.target, pair.draft, rows, generator=generators, measure=4, **settings)[1])
    efficiencies = [info.block_efficiency for info in infos]
    whole = sum(infos[1:], infos[0])
    return {
        "way": way,
        "temperature": temperature,
        "tree": tree,
        "tokens a pass": whole.block_efficiency,
        "error": statistics.stdev(efficiencies) / len(efficiencies) ** 0.5 if len(efficiencies) > 1 else None,
        "acceptance": whole.acceptance_rate,
        "optimum": whole.optimal_acceptance_rate,
        "tokens a second": whole.tokens_per_second,
    }


def shown(lines: list[dict[str, Any]], options: Any) -> None:
    """Print the table."""
    names = ["T", "way", "tree", "tokens a pass", "acceptance of a node", "its optimum", "tokens a second"]
    table = Table(*names, title=f"{options.draft} for {options.target}, {hardware()}")
    for line in lines:
        error = "" if line["error"] is None else f" ± {line['error']:.2f}"
        numbers = [f"{line[name]:.3f}" for name in ("acceptance", "optimum")]
        passes, speed = f"{line['tokens a pass']:.2f}{error}", f"{line['tokens a second']:.1f}"
        table.add_row(f"{line['temperature']:g}", line["way"], line["tree"], passes, *numbers, speed)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
