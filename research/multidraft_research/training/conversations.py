"""The target's distributions at every token of texts that it has written before, from reading them once."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from multidraft_research.training.texts import TOP_TOKENS, Text, save
from multidraft_research.training.writing import ASSISTANT, END, SYSTEM, TEXTS_PER_SHARD, USER

TEXTS_TOGETHER = 8  # texts of a pass


class Conversation(NamedTuple):
    """A text in tokens: where its user's turn begins, and where its answer does."""

    tokens: list[int]
    first: int
    answer: int
    about: dict[str, Any]


def conversation(record: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> Conversation:
    """One line of a file of conversations of one turn: `user`, `assistant`, `ended`, `temperature`."""
    first = len(tokenizer(SYSTEM)["input_ids"])
    prompt = tokenizer(f"{SYSTEM}{USER}{record['user']}{END}\n{ASSISTANT}")["input_ids"]
    answer = tokenizer(record["assistant"] + (END if record["ended"] else ""))["input_ids"]
    about = {"id": record["id"], "temperature": record["temperature"], "answer": len(prompt)}
    return Conversation(prompt + answer, first, len(prompt), about)


@torch.inference_mode()
def read(model: PreTrainedModel, conversations: Sequence[Conversation]) -> list[Text]:
    """The texts with the target's distributions; each is read beside those of about its length."""
    texts: dict[int, Text] = {}
    order = sorted(range(len(conversations)), key=lambda index: len(conversations[index].tokens))
    for first in range(0, len(order), TEXTS_TOGETHER):
        group = order[first : first + TEXTS_TOGETHER]
        longest = len(conversations[group[-1]].tokens)
        tokens = torch.tensor(
            [conversations[index].tokens + [0] * (longest - len(conversations[index].tokens)) for index in group]
        )
        states = model.model(tokens, use_cache=False).last_hidden_state  # what follows a text is seen by none of it
        for index, state in zip(group, states, strict=True):
            texts[index] = with_distributions(model, conversations[index], state)
    return [texts[index] for index in range(len(conversations))]


def with_distributions(model: PreTrainedModel, conversation_read: Conversation, state: torch.Tensor) -> Text:
    """One text with its model's distribution at each place behind the system's line."""
    places = np.arange(conversation_read.first + 1, len(conversation_read.tokens))
    logits = model.lm_head(state[places - 1]).float()
    values, ids = logits.topk(TOP_TOKENS)
    logs = values - logits.logsumexp(-1, keepdim=True)
    return Text(np.array(conversation_read.tokens), places, ids.numpy(), logs.numpy(), conversation_read.about)


def capture_texts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, records: Sequence[dict[str, Any]], out: Path, name: str
) -> Iterator[Path]:
    """Write shards `name`-00000.npz, ... of conversations; those that are there are passed over."""
    for first in range(0, len(records), TEXTS_PER_SHARD):
        group, path = records[first : first + TEXTS_PER_SHARD], out / f"{name}-{first // TEXTS_PER_SHARD:05d}.npz"
        if not path.exists():
            save(path, read(model, [conversation(record, tokenizer) for record in group]))
        yield path
