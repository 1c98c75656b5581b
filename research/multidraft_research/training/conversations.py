"""The target's distributions at every token of texts that it has written before, from reading them once."""

from collections.abc import Iterator, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as BodyOutput

from multidraft.models.huggingface.compat import body, home
from multidraft_research.training.descent import has_bfloat16
from multidraft_research.training.texts import TEXTS_PER_SHARD, TEXTS_TOGETHER, TOP_TOKENS, TopText, save
from multidraft_research.training.writing import ASSISTANT, END, SYSTEM, USER

MAX_TOKENS = 1024  # of a text that a head is trained on; what goes beyond is cut off


class TokenizedChat(NamedTuple):
    """A text in tokens: where its user's turn begins, and where its answer does."""

    tokens: list[int]
    first: int
    answer: int
    about: dict[str, Any]
    places: list[int] | None = None  # of the tokens that are trained on; None for all behind `first`

    @property
    def trained_places(self) -> list[int]:
        """The places of the tokens that are trained on."""
        return [*range(self.first + 1, len(self.tokens))] if self.places is None else self.places


def conversation(record: dict[str, Any], tokenizer: PreTrainedTokenizerBase) -> TokenizedChat:
    """One line of a file of conversations of one turn: `user`, `assistant`, `ended`, `temperature`."""
    first = len(tokenizer(SYSTEM)["input_ids"])
    prompt = tokenizer(f"{SYSTEM}{USER}{record['user']}{END}\n{ASSISTANT}")["input_ids"]
    answer = tokenizer(record["assistant"] + (END if record["ended"] else ""))["input_ids"]
    about = {"id": record["id"], "temperature": record["temperature"], "answer": len(prompt)}
    return TokenizedChat(prompt + answer, first, len(prompt), about)


def in_passes(conversations: Sequence[TokenizedChat]) -> Iterator[tuple[list[int], list[list[int]]]]:
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
def read(model: PreTrainedModel, conversations: Sequence[TokenizedChat]) -> list[TopText]:
    """The texts with the target's distributions; each is read beside those of about its length."""
    texts: dict[int, TopText] = {}
    for group, rows in in_passes(conversations):
        states = body(model)[1](torch.tensor(rows), use_cache=False).last_hidden_state
        for index, state in zip(group, states, strict=True):
            texts[index] = with_distributions(model, conversations[index], state)
    return [texts[index] for index in range(len(conversations))]


@torch.no_grad()
def with_distributions(
    model: PreTrainedModel, conversation: TokenizedChat, states: Float[Tensor, "length width"]
) -> TopText:
    """One text with its model's distribution, from its last states, at each place that is trained on."""
    places = np.array(conversation.trained_places, np.int64)
    logits = logits_of(model, states[places - 1])
    values, ids = logits.topk(min(TOP_TOKENS, logits.shape[-1]))
    logs = values - logits.logsumexp(-1, keepdim=True)
    return TopText(np.array(conversation.tokens), places, ids.cpu().numpy(), logs.cpu().numpy(), conversation.about)


def common_prefix(tokens: Sequence[Any], others: Sequence[Any]) -> int:
    """How many tokens two texts begin with alike.

    >>> common_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    same = (index for index, (left, right) in enumerate(zip(tokens, others, strict=False)) if left != right)
    return next(same, min(len(tokens), len(others)))


class GivenStates(nn.Module):
    """In the place of a model's body: what it says is known."""

    def __init__(self, states: Float[Tensor, "rows new width"]):
        super().__init__()
        self.states = states

    def forward(self, *_: Any, **__: Any) -> BodyOutput:
        """The states, whatever is read."""
        return BodyOutput(last_hidden_state=self.states)

    @property
    def decoder(self) -> "GivenStates":
        """Itself: OPT asks this part of its body."""
        return self


def logits_of(model: PreTrainedModel, states: Float[Tensor, "places width"]) -> Float[Tensor, "places vocabulary"]:
    """What the model's own forward makes of its body's last states.

    Many families do more there than the product with the output layer: Granite and Cohere scale, Gemma 2 has a cap.
    """
    head: Any = copy(model)
    head._modules = model._modules | {body(model)[0]: GivenStates(states[None])}
    tokens = torch.zeros(1, len(states), dtype=torch.int64, device=states.device)
    return head(input_ids=tokens, use_cache=False).logits[0].float()


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
