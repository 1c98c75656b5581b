"""Text of a target's own, for training a head where there is none: users' turns that it makes up, and its answers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from multidraft.models.compat import home
from multidraft_research.training.heads.states import common, prompted
from multidraft_research.training.writing import ANSWER, HEATS, TURN

ROWS = 16  # texts that are written together


def write(model: PreTrainedModel, tokenizer: Any, out: Path, tokens: int, seed: int = 0) -> Iterator[int]:
    """Append conversations to JSON lines until they have so many tokens; after each batch, how many there are.

    Users' turns are written at T = 1, answers at T = 0, 0.7 and 1 by turns. A target without a chat template continues
    the empty text instead. Lines that are there stay, so a run that was stopped goes on.
    """
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()] if out.exists() else []
    count = sum(record["tokens"] for record in records)
    while count < tokens:
        torch.manual_seed(seed * 1_000_003 + len(records))
        new_records = batch(model, tokenizer, len(records))
        with out.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(record) + "\n" for record in new_records))
        records += new_records
        count += sum(record["tokens"] for record in new_records)
        yield count


def batch(model: PreTrainedModel, tokenizer: Any, first: int) -> list[dict[str, Any]]:
    """Some conversations, or texts."""
    numbers = range(first, first + ROWS)
    if not tokenizer.chat_template:
        start = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if token is not None][:1]
        texts = continued(model, tokenizer, [start] * ROWS, ANSWER, 1.0)
        return [
            {"id": f"self/{n}", "text": text, "tokens": size} for n, (text, size, _) in zip(numbers, texts, strict=True)
        ]
    prompt, other = prompted(tokenizer, "a"), prompted(tokenizer, "b")
    turns = continued(model, tokenizer, [prompt[: common(prompt, other)]] * ROWS, TURN, 1.0)
    heat = HEATS[first // ROWS % len(HEATS)]
    prompts = [prompted(tokenizer, turn) for turn, _, _ in turns]
    answers = continued(model, tokenizer, prompts, ANSWER, heat)
    records = []
    for number, (user, question, _), (text, size, ended) in zip(numbers, turns, answers, strict=True):
        record = {"id": f"self/{number}", "user": user, "assistant": text, "ended": ended}
        records.append(record | {"temperature": heat, "tokens": question + size})
    return records


@torch.inference_mode()
def continued(
    model: PreTrainedModel, tokenizer: Any, prompts: list[list[int]], most: int, heat: float
) -> list[tuple[str, int, bool]]:
    """What follows each prompt: text, tokens, and whether it came to its end; plain sampling without truncation."""
    ends = tokenizer.eos_token_id
    longest, fill = max(map(len, prompts)), 0 if ends is None else ends
    rows = torch.tensor([[fill] * (longest - len(prompt)) + prompt for prompt in prompts], device=home(model))
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=home(model))
    drawn: dict[str, Any] = (
        {"do_sample": True, "temperature": heat, "top_k": 0, "top_p": 1.0} if heat else {"do_sample": False}
    )
    generate: Any = model.generate  # type: ignore[operator]  # of every causal model
    read = generate(rows, attention_mask=mask, max_new_tokens=most, eos_token_id=ends, pad_token_id=fill, **drawn)
    answers = []
    for new_tokens in read[:, longest:].tolist():
        ended = ends in new_tokens
        answer = new_tokens[: new_tokens.index(ends)] if ended else new_tokens
        answers.append((tokenizer.decode(answer), len(answer), ended))
    return answers
