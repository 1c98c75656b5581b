"""Text that a target writes for training a head: users' turns that it makes up, and its answers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from multidraft.generation.text import text_ends
from multidraft.io import journal
from multidraft.models.huggingface.compat import home
from multidraft_research.training.heads.captured import common_prefix, with_template
from multidraft_research.training.writing import MAX_ANSWER_TOKENS, MAX_TURN_TOKENS, TEMPERATURES

ROWS_TOGETHER = 16  # texts that are written together


def write(model: PreTrainedModel, tokenizer: Any, out: Path, tokens: int, seed: int = 0) -> Iterator[int]:
    """Append conversations to JSON lines until they have so many tokens; after each batch, how many there are.

    Users' turns are written at T = 1, answers at T = 0, 0.7 and 1 by turns. A target without a chat template continues
    the empty text instead. Lines that are there stay, so a run that was stopped goes on.
    """
    lines, _ = journal.read_lines(out, "the text") if out.exists() else ([], b"")  # a torn last line is cut off
    records, writer = journal.read_records(lines, out), journal.Writer(out, journal.size_of(lines))
    count = sum(record["tokens"] for record in records)
    while count < tokens:
        torch.manual_seed(seed * 1_000_003 + len(records))
        new_records = write_batch(model, tokenizer, len(records))
        for record in new_records:
            writer.write(record)
        records += new_records
        count += sum(record["tokens"] for record in new_records)
        yield count


def write_batch(model: PreTrainedModel, tokenizer: Any, first: int) -> list[dict[str, Any]]:
    """Some conversations, or texts."""
    numbers = range(first, first + ROWS_TOGETHER)
    if not tokenizer.chat_template:
        start = [token for token in (tokenizer.bos_token_id, tokenizer.eos_token_id, 0) if token is not None][:1]
        texts = continue_prompts(model, tokenizer, [start] * ROWS_TOGETHER, MAX_ANSWER_TOKENS, 1.0)
        return [
            {"id": f"self/{n}", "text": text, "tokens": size} for n, (text, size, _) in zip(numbers, texts, strict=True)
        ]
    prompt, other = with_template(tokenizer, "a"), with_template(tokenizer, "b")
    before_turn = prompt[: common_prefix(prompt, other)]
    turns = continue_prompts(model, tokenizer, [before_turn] * ROWS_TOGETHER, MAX_TURN_TOKENS, 1.0)
    temperature = TEMPERATURES[first // ROWS_TOGETHER % len(TEMPERATURES)]
    prompts = [with_template(tokenizer, turn) for turn, _, _ in turns]
    answers = continue_prompts(model, tokenizer, prompts, MAX_ANSWER_TOKENS, temperature)
    records = []
    for number, (user, question, _), (text, size, ended) in zip(numbers, turns, answers, strict=True):
        record = {"id": f"self/{number}", "user": user, "assistant": text, "ended": ended}
        records.append(record | {"temperature": temperature, "tokens": question + size})
    return records


@torch.inference_mode()
def continue_prompts(
    model: PreTrainedModel, tokenizer: Any, prompts: list[list[int]], max_tokens: int, temperature: float
) -> list[tuple[str, int, bool]]:
    """What follows each prompt: text, tokens, and whether it came to its end; plain sampling without truncation."""
    ends = text_ends(model, tokenizer, chat=True)
    longest, fill = max(map(len, prompts)), min(ends, default=0)
    rows = torch.tensor([[fill] * (longest - len(prompt)) + prompt for prompt in prompts], device=home(model))
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=home(model))
    drawn: dict[str, Any] = (
        {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0}
        if temperature
        else {"do_sample": False}
    )
    drawn["eos_token_id"] = sorted(ends) or None
    generate: Any = model.generate  # type: ignore[operator]  # of every causal model
    read = generate(rows, attention_mask=mask, max_new_tokens=max_tokens, pad_token_id=fill, **drawn)
    answers = []
    for new_tokens in read[:, longest:].tolist():
        length = next((place for place, token in enumerate(new_tokens) if token in ends), len(new_tokens))
        answers.append((tokenizer.decode(new_tokens[:length]), length, length < len(new_tokens)))
    return answers
