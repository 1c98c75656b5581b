"""What a head is trained on: a target's hidden states and distributions at texts that it wrote, captured once.

A text is read beside those of about its length. They are kept in bfloat16 in shards on disk, 64 texts each; a shard is
whole or not there, so a capture that was stopped goes on.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.generation.text import closing_token
from multidraft.io.files import NEW_PREFIX
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.compat import home
from multidraft_research.training.conversations import (
    MAX_TOKENS,
    TokenizedChat,
    common_prefix,
    in_fast_dtype,
    in_passes,
    with_distributions,
)
from multidraft_research.training.heads.turns import conversation_of_turns, turns_of
from multidraft_research.training.texts import TEXTS_PER_SHARD, TopText


class CapturedText(NamedTuple):
    """A text with the target's states at each of its tokens: those of the layers asked for, then the last, normed."""

    text: TopText
    states: Float[Tensor, "length layers width"]


def records(path: Path) -> list[dict[str, Any]]:
    """Conversations, a line each: `user` and `assistant`, or `messages`, or `conversations` as ShareGPT has them.

    If known, `id`, `ended` and `temperature` come with them. A record with `text` alone is a text without turns. Raises
    AdviceError where a line is none of these.
    """
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            all_records = [json.loads(line) for line in file if line.strip()]
    except (OSError, ValueError, EOFError) as error:
        raise AdviceError(f"cannot read {str(path)!r} ({error}); give JSON lines of user and assistant") from None
    return [with_messages(record, f"line {number} of {str(path)!r}") for number, record in enumerate(all_records, 1)]


def with_messages(record: Any, where: str) -> dict[str, Any]:
    """A record, several turns in the form of chat templates; raises AdviceError on what is none."""
    named = next((name for name in ("messages", "conversations") if isinstance(record, dict) and name in record), None)
    if named is not None:
        return record | {"messages": turns_of(record[named], f"{named} in {where}")}
    texts = [record.get(name) for name in ("user", "assistant", "text")] if isinstance(record, dict) else [None] * 3
    if not (isinstance(texts[0], str) and isinstance(texts[1], str)) and not isinstance(texts[2], str):
        raise AdviceError(f"{where} has no user and assistant, no messages, and no text; add them")
    return record


def conversation_of(record: dict[str, Any], number: int, tokenizer: Any) -> TokenizedChat:
    """One record in tokens, in the tokenizer's chat template; turns by the target (`self/...`) are trained on.

    `first` is the token before the first one that is trained on, `answer` where the answer begins.
    """
    is_self_written = str(record.get("id", "")).startswith("self/")
    before = list[int]()
    if "messages" in record:
        return conversation_of_turns(record, number, tokenizer)
    if "text" in record:
        before, text_tokens = without_template(tokenizer, ""), without_template(tokenizer, record["text"])
        tokens, first, answer = text_tokens, max(common_prefix(before, text_tokens), 1) - 1, max(len(before), 1)
    else:
        before, empty = with_template(tokenizer, record["user"]), with_template(tokenizer, "")
        closing = answer_end(tokenizer) if record.get("ended", True) else None
        tokens = before + tokenizer(record["assistant"], add_special_tokens=False)["input_ids"]
        tokens += [] if closing is None else [closing]
        first, answer = (common_prefix(before, empty) if is_self_written else len(before)) - 1, len(before)
    about = {"id": str(record.get("id", number)), "temperature": record.get("temperature", 1.0), "answer": answer}
    return TokenizedChat(tokens[:MAX_TOKENS], first, answer, about)


def answer_end(tokenizer: Any) -> int | None:
    """The token that ends an answer: the template's, else the tokenizer's."""
    closing: int | None = closing_token(tokenizer)
    return tokenizer.eos_token_id if closing is None else closing


def without_template(tokenizer: Any, text: str) -> list[int]:
    """The tokens of a text without a template."""
    return list(tokenizer(text)["input_ids"])


def with_template(tokenizer: Any, user: str) -> list[int]:
    """The tokens before an answer."""
    if not tokenizer.chat_template:
        return without_template(tokenizer, user)
    turns = [{"role": "user", "content": user}]
    text = tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def read_texts(
    model: PreTrainedModel, conversations: Sequence[TokenizedChat], layers: Sequence[int]
) -> Iterator[tuple[int, CapturedText]]:
    """Read texts, those of about one length together; each comes with its index.

    Layer k is what `output_hidden_states` calls k: 0 is the embedding, k what layer k-1 gives.
    """
    for group, rows in in_passes(conversations):
        for index, row in zip(group, read_states(model, rows, layers), strict=True):
            states = row[: len(conversations[index].tokens)]
            text = with_distributions(model, conversations[index], states[:, -1])
            yield index, CapturedText(text, states.to("cpu", torch.bfloat16))


@torch.no_grad()
def read_states(
    model: PreTrainedModel, rows: list[list[int]], layers: Sequence[int]
) -> Float[Tensor, "rows length all width"]:
    """The states of these layers at every token, then the last ones."""
    body: Any = compat.body(model)[1]
    output = body(torch.tensor(rows, device=home(model)), use_cache=False, output_hidden_states=True)
    return torch.stack([*(output.hidden_states[layer] for layer in layers), output.last_hidden_state], 2)


def capture(
    model: PreTrainedModel, conversations: Sequence[TokenizedChat], layers: Sequence[int], out: Path, name: str
) -> Iterator[tuple[Path, int]]:
    """Write shards `name`-00000.safetensors, ...; those that are there are passed over. Each with its tokens."""
    out.mkdir(parents=True, exist_ok=True)
    fast_model: PreTrainedModel | None = None
    for first in range(0, len(conversations), TEXTS_PER_SHARD):
        group = conversations[first : first + TEXTS_PER_SHARD]
        path = out / f"{name}-{first // TEXTS_PER_SHARD:05d}.safetensors"
        if not path.exists():
            fast_model = fast_model or in_fast_dtype(model)
            captured_by_index = dict(read_texts(fast_model, group, layers))
            save(path, [captured_by_index[index] for index in range(len(group))])
        check_texts(path, group)
        yield path, sum(len(conversation.tokens) for conversation in group)


def check_texts(path: Path, conversations: Sequence[TokenizedChat]) -> None:
    """Raise unless a shard, which may be of a run before, holds these texts."""
    with safe_open(str(path), "pt") as shard:
        known = [(fields["id"], *fields["sizes"]) for fields in json.loads(shard.metadata()["texts"])]
    if known != [(text.about["id"], len(text.tokens), len(text.trained_places)) for text in conversations]:
        raise AdviceError(f"{str(path)!r} has states of other texts than these; choose another --out, or --states")


def save(path: Path, texts: Sequence[CapturedText]) -> None:
    """Write a shard, whole or not at all."""
    all_texts = [captured_text.text for captured_text in texts]
    arrays = {
        "tokens": torch.from_numpy(np.concatenate([text.tokens for text in all_texts]).astype(np.int32)),
        "places": torch.from_numpy(np.concatenate([text.places for text in all_texts]).astype(np.int32)),
        "ids": torch.from_numpy(np.concatenate([text.ids for text in all_texts]).astype(np.int32)),
        "logs": torch.from_numpy(np.concatenate([text.logs for text in all_texts]).astype(np.float16)),
        "states": torch.cat([captured_text.states for captured_text in texts]),
    }
    about = [
        captured_text.text.about | {"sizes": [len(captured_text.text.tokens), len(captured_text.text.places)]}
        for captured_text in texts
    ]
    new_path = path.with_name(NEW_PREFIX + path.name)
    save_file(arrays, new_path, {"texts": json.dumps(about)})
    new_path.replace(path)


def load(path: Path) -> Iterator[CapturedText]:
    """The texts of a shard; their states stay on disk until they are read."""
    with safe_open(str(path), "pt") as shard:
        about = json.loads(shard.metadata()["texts"])
        tensors = {name: shard.get_tensor(name) for name in ("tokens", "places", "ids", "logs", "states")}
    sizes = [fields.pop("sizes") for fields in about]
    tokens, states = (tensors[name].split([size for size, _ in sizes]) for name in ("tokens", "states"))
    places, ids, logs = (tensors[name].split([size for _, size in sizes]) for name in ("places", "ids", "logs"))
    for index, fields in enumerate(about):
        laws = ids[index].numpy(), logs[index].numpy()
        yield CapturedText(TopText(tokens[index].numpy(), places[index].numpy(), *laws, fields), states[index])


def load_all(folder: Path, name: str) -> list[CapturedText]:
    """The texts of all shards of one name; raises AdviceError where there are none."""
    paths = sorted(folder.glob(f"{name}-*.safetensors"))
    texts = [captured_text for path in paths for captured_text in load(path)]
    if not texts:
        raise AdviceError(f"there are no captured texts in {str(folder)!r}; give more text")
    return texts
