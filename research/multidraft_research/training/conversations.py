"""The target's distributions at every token of texts that it has written before, from reading them once."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from multidraft.models.compat import home
from multidraft_research.training.descent import has_bfloat16
from multidraft_research.training.texts import TEXTS_PER_SHARD, TEXTS_TOGETHER, TOP_TOKENS, Text, save
from multidraft_research.training.writing import ASSISTANT, END, SYSTEM, USER


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


def in_passes(conversations: Sequence[Conversation]) -> Iterator[tuple[list[int], list[list[int]]]]:
    """Texts of about one length, by their indices, and their tokens, filled up to the longest at their ends.

    What follows a text is seen by none of its tokens.
    """
    order = sorted(range(len(conversations)), key=lambda index: len(conversations[index].tokens))
    for first in range(0, len(order), TEXTS_TOGETHER):
        group = order[first : first + TEXTS_TOGETHER]
        rows, longest = [conversations[index].tokens for index in group], len(conversations[group[-1]].tokens)
        yield group, [row + [0] * (longest - len(row)) for row in rows]


def in_fast_dtype(model: PreTrainedModel) -> PreTrainedModel:
    """The model, or a copy in float32 of one in bfloat16 on processors without it, which take an eighth of the time."""
    is_fast = model.dtype != torch.bfloat16 or has_bfloat16(home(model).type)
    return model if is_fast else deepcopy(model).float()


@torch.inference_mode()
def read(model: PreTrainedModel, conversations: Sequence[Conversation]) -> list[Text]:
    """The texts with the target's distributions; each is read beside those of about its length."""
    texts: dict[int, Text] = {}
    for group, rows in in_passes(conversations):
        states = model.model(torch.tensor(rows), use_cache=False).last_hidden_state
        for index, state in zip(group, states, strict=True):
            texts[index] = with_distributions(model, conversations[index], state)
    return [texts[index] for index in range(len(conversations))]


@torch.no_grad()
def with_distributions(
    model: PreTrainedModel, conversation: Conversation, states: Float[Tensor, "length width"]
) -> Text:
    """One text with its model's distribution, from its last states, at each place that is trained on."""
    places = np.arange(conversation.first + 1, len(conversation.tokens))
    logits = model.lm_head(states[places - 1]).float()
    values, ids = logits.topk(min(TOP_TOKENS, logits.shape[-1]))
    logs = values - logits.logsumexp(-1, keepdim=True)
    return Text(np.array(conversation.tokens), places, ids.cpu().numpy(), logs.cpu().numpy(), conversation.about)


def capture_texts(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, records: Sequence[dict[str, Any]], out: Path, name: str
) -> Iterator[Path]:
    """Write shards `name`-00000.npz, ... of conversations; those that are there are passed over."""
    model = in_fast_dtype(model)
    for first in range(0, len(records), TEXTS_PER_SHARD):
        group, path = records[first : first + TEXTS_PER_SHARD], out / f"{name}-{first // TEXTS_PER_SHARD:05d}.npz"
        if not path.exists():
            save(path, read(model, [conversation(record, tokenizer) for record in group]))
        yield path
