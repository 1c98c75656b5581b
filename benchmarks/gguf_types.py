"""What a type of weights does to a model: the KL divergence of GGUF files from SmolLM2 as its package brings it.

    python benchmarks/gguf_types.py q8_0.gguf q4_0.gguf --prompts spec_bench.jsonl [--tokens 20000] [--json]

The reference is the package's Q4_1 file, dequantised and computed in float32 by transformers. Texts are prompts, each
read from its beginning, up to 512 tokens. KL(reference || file) is in nats a token; "same" is how
often the likeliest token is.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from multidraft.cli.engines import TRANSFORMERS, Loader
from multidraft.cli.pair import load
from multidraft.io.files import cache
from multidraft.models.gguf.model import GGUF
from multidraft.models.huggingface.from_gguf import folder_of
from multidraft.models.reader import chain_parents
from multidraft.zoo import smollm2

MAX_TEXT = 512  # tokens; logits of all of them are in memory at once
COLUMNS = ("KL, mean", "standard error", "median", "99 %", "same")


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    base = load(str(folder_of(smollm2.file("target"), cache(), torch.float32)), "none", Loader(TRANSFORMERS))
    target: Any = base.target
    models, divergences = {path.name: GGUF(path) for path in options.files}, dict[str, list[tuple[float, bool]]]()
    texts = list(texts_of(base.tokenizer, options.prompts, options.tokens))
    for ids in tqdm(texts, desc="texts", disable=options.json):
        reference = reference_of(target, ids)
        for name, model in models.items():
            divergences.setdefault(name, []).extend(compared(reference, logits_of(model, ids)))
    show({name: summary(pairs) for name, pairs in divergences.items()}, options.json)


def texts_of(tokenizer: Any, path: Path, tokens: int) -> Iterator[list[int]]:
    """The tokens of prompts, until there are so many."""
    for line in path.read_text().splitlines():
        if tokens <= 0:
            return
        ids = tokenizer(json.loads(line)["prompt"]).input_ids[: min(MAX_TEXT, tokens)]
        tokens -= len(ids)
        yield ids


@torch.inference_mode()
def reference_of(target: Any, ids: list[int]) -> torch.Tensor:
    """The reference's log-probabilities behind every token, in float64."""
    return target.float()(torch.tensor([ids])).logits[0].double().log_softmax(-1)


@torch.inference_mode()
def logits_of(model: GGUF, ids: list[int]) -> torch.Tensor:
    """A file's logits behind every token of a text."""
    return model.new(len(ids)).forward([ids], [chain_parents(len(ids))]).logits[0]


def compared(reference: torch.Tensor, logits: torch.Tensor) -> list[tuple[float, bool]]:
    """By token the divergence, and whether the likeliest token is the same."""
    other = logits.double().log_softmax(-1)
    divergence = (reference.exp() * (reference - other)).sum(-1)
    return list(zip(divergence.tolist(), (reference.argmax(-1) == other.argmax(-1)).tolist(), strict=True))


def summary(pairs: list[tuple[float, bool]]) -> list[float]:
    """A line of the table."""
    values, is_same = map(np.array, zip(*pairs, strict=True))
    error = float(values.std() / len(values) ** 0.5)
    return [float(values.mean()), error, *map(float, np.quantile(values, [0.5, 0.99])), float(is_same.mean())]


def show(lines: dict[str, list[float]], as_json: bool) -> None:
    """Print the table."""
    if as_json:
        print(json.dumps({name: dict(zip(COLUMNS, line, strict=True)) for name, line in lines.items()}))
        return
    table = Table("file", *COLUMNS)
    for name, line in lines.items():
        table.add_row(name, *(f"{value:.4f}" for value in line))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
