"""How often draft heads are right along a target's greedy answers, by task, and how many of these tokens they have.

    multidraft generate --target smollm2 --draft none --prompts spec_bench.jsonl --chat --temperature 0 \\
        --jsonl answers.jsonl
    python benchmarks/head_by_task.py spec_bench.jsonl answers.jsonl --heads eagle3:smollm2 [eagle3:FOLDER] [--json]

A head reads the answer's own tokens and drafts the next one (depth 1). It is right where its most likely token is the
target's, and among three where one of its three is. A token that it lacks cannot be right.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from multidraft_research.training.conversations import TokenizedChat, in_fast_dtype
from multidraft_research.training.heads import captured, train
from multidraft_research.training.heads.captured import CapturedText
from multidraft_research.training.heads.drafts import Depths, TextBatch, draft_along
from multidraft_research.training.small_draft import TokenSet
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from multidraft.cli.engines import Loader
from multidraft.cli.pair import load
from multidraft.machine import hardware

NAMES = ("right", "among three", "covered")
ALL_TASKS = "all"
DEPTHS = Depths(1, 1.0, torch.Generator())


def main(words: Sequence[str] | None = None) -> None:
    """Read all answers once, and let every head draft along them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, help="JSON lines with `id`, `task` and `prompt`")
    parser.add_argument("answers", type=Path, help="what `multidraft generate --jsonl` wrote for them")
    parser.add_argument("--target", default="smollm2")
    parser.add_argument("--heads", nargs="+", default=["eagle3:smollm2"])
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(words)
    pair: Any = load(options.target, "none", Loader("transformers"))
    tasks, conversations = read(options.prompts, options.answers, pair.tokenizer)
    heads = {name: train.load_for_training(name, pair.target) for name in options.heads}
    target, lines = in_fast_dtype(pair.target), []
    for layers in dict.fromkeys(head.settings.layers for head, _ in heads.values()):
        texts = captured.read_texts(target, conversations, layers)
        all_texts = list(tqdm(texts, "reading answers", len(conversations), unit="text"))
        for name, (head, vocabulary) in heads.items():
            if head.settings.layers == layers:
                lines += by_task(head, vocabulary, all_texts, tasks, name)
    print(json.dumps({"hardware": hardware(), "lines": lines})) if options.json else Console().print(table(lines))


def read(prompts: Path, answers: Path, tokenizer: Any) -> tuple[list[str], list[TokenizedChat]]:
    """The task and the tokens of every answer."""
    by_id = {record["id"]: record for record in map(json.loads, prompts.read_text(encoding="utf-8").splitlines())}
    written = [json.loads(line) for line in answers.read_text(encoding="utf-8").splitlines()]
    written = [record for record in written if "text" in record]  # the first line says how they were made
    conversations = [
        captured.conversation_of(
            {"user": by_id[record["id"]]["prompt"], "assistant": record["text"], "ended": False, "temperature": 0.0},
            number,
            tokenizer,
        )
        for number, record in enumerate(written)
    ]
    return [str(by_id[record["id"]].get("task", "")).partition("/")[0] for record in written], conversations


@torch.inference_mode()
def by_task(
    head: Any, vocabulary: TokenSet, texts: Sequence[tuple[int, CapturedText]], tasks: Sequence[str], name: str
) -> list[dict[str, Any]]:
    """A line for each task, and one for all."""
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for number, text in texts:
        of_text = counted(head, vocabulary, text)
        for task in (tasks[number], ALL_TASKS):
            counts[task] = [count + new for count, new in zip(counts[task], of_text, strict=True)]
    return [
        {"head": name, "task": task, "tokens": tokens} | dict(zip(NAMES, (n / tokens for n in sums), strict=True))
        for task, (tokens, *sums) in sorted(counts.items())
        if tokens
    ]


def counted(head: Any, vocabulary: TokenSet, text: CapturedText) -> list[int]:
    """Tokens of an answer, where the head is right, right among three, and has the token."""
    batch = TextBatch.of([text], vocabulary)
    [(_, logits, laws)] = draft_along(head, batch, DEPTHS)
    target_probs = train.select(batch.target_probs, laws)
    hits = target_probs.hits(logits)
    return [len(laws), int(hits[:, 0].sum()), int(hits.any(1).sum()), int(target_probs.known[:, 0].sum())]


def table(lines: list[dict[str, Any]]) -> Table:
    """For people."""
    shown = Table()
    for column in ("head", "task", "tokens", *NAMES):
        shown.add_column(column, justify="left" if column in ("head", "task") else "right")
    for line in lines:
        shown.add_row(line["head"], line["task"], f"{line['tokens']:,}", *(f"{line[name]:.3f}" for name in NAMES))
    return shown


if __name__ == "__main__":
    main()
