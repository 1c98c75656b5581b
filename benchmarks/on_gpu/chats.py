"""SmolLM2 answers chats on the device: plain, by look-ups, and with its head, by fixed trees and by `auto`."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import multidraft as md
from multidraft.cli.drafter_names import built_in_drafter, mixture_of, parse
from multidraft.cli.engines import DEFAULT_LOADER
from multidraft.cli.pair import Models, load
from multidraft.generation.text import encode_messages
from multidraft.zoo import smollm2
from on_gpu.asked import Line, PieceOptions, Skipped

CHATS = Path(md.__file__).parent / "zoo" / "prompts" / "demo_chats.jsonl"
WAYS: dict[str, tuple[str, str]] = {  # drafters and trees
    "plain": ("none", "auto"),
    "look-ups": ("lookup", "auto"),
    "head": ("eagle3:smollm2", "auto"),
    "look-ups, then head": ("copy+eagle3:smollm2", "auto"),
    "head, 1x1x1": ("eagle3:smollm2", "1x1x1"),
}
ROUNDS, TEMPERATURE = 2, 0.7  # the first one records graphs and times steps


def measure(piece_options: PieceOptions) -> list[Line]:
    """A line a way and round: tokens a second over those of plain decoding, chat by chat in turn."""
    if not smollm2.is_installed():
        raise Skipped(f"there is no SmolLM2; {smollm2.INSTALL}")
    new_tokens, limit = (8, 1) if piece_options.quick else (128, 5)
    plain = load("smollm2", "none", DEFAULT_LOADER._replace(engine="transformers"))
    models = {way: with_draft(plain, draft) for way, (draft, _) in WAYS.items()}
    texts = [json.loads(line)["prompt"] for line in CHATS.read_text().splitlines()[:limit]]
    prompts = [encode_messages(plain.tokenizer, [{"role": "user", "content": text}]) for text in texts]
    sums = {(way, turn): [0, 0, 0.0] for turn in range(ROUNDS) for way in WAYS}
    for turn in range(ROUNDS):
        for number, prompt in enumerate(prompts):
            for way, (_, tree) in WAYS.items():
                run = answer(models[way], prompt, tree, number, new_tokens, piece_options.wait)
                sums[way, turn] = [total + part for total, part in zip(sums[way, turn], run, strict=True)]
    rates = {key: tokens / seconds for key, (tokens, _, seconds) in sums.items()}
    return [
        dict(way=way, round=turn + 1, tokens_a_second=round(rates[way, turn], 1))
        | dict(over_plain=round(rates[way, turn] / rates["plain", turn], 2))
        | dict(tokens_a_pass=round(sums[way, turn][0] / sums[way, turn][1], 2))
        for turn in range(ROUNDS)
        for way in WAYS
    ]


def with_draft(plain: Models, draft: str) -> Models:
    """The same target with another drafter, of those that need no model of their own."""
    if not (mixtures := parse(draft)):
        return plain
    (mixture,) = mixtures
    return plain._replace(draft=mixture_of([built_in_drafter(name, plain.target) for name, _ in mixture], mixture))


def answer(
    models: Models, prompt: list[int], tree: str, seed: int, new_tokens: int, wait: Callable[[], None]
) -> tuple[int, int, float]:
    """Tokens, passes of the target and seconds of an answer, which goes on past its end."""
    settings: dict[str, Any] = {} if models.draft is None else dict(tree=tree)
    start = time.perf_counter()
    rows, info = md.generate(
        models.target,
        models.draft,
        [prompt],
        temperature=TEMPERATURE,
        max_new_tokens=new_tokens,
        eos_token_id=[],
        generator=torch.Generator().manual_seed(seed),
        measure=False,
        **settings,
    )
    wait()
    return sum(map(len, rows)), info.target_passes, time.perf_counter() - start
