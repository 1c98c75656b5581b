"""Texts that a target has written, with its most likely tokens at every place: what small drafts are trained on."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Integer

from multidraft.errors import AdviceError
from multidraft.io.files import NEW_PREFIX

TEXTS_TOGETHER = 8  # of about one length, in one pass
TEXTS_PER_SHARD = 64
SORTED_TEXTS = 64  # by length; more would put texts of one length into one batch
TOP_TOKENS = 64  # that are kept of each distribution; the others' probability is told as a whole


@dataclass
class TopText:
    """A text, and for the token at each of `places` the most likely `ids` with their natural `logs`, at T = 1."""

    tokens: Integer[np.ndarray, " length"]
    places: Integer[np.ndarray, " places"]
    ids: Integer[np.ndarray, "places top"]
    logs: Float[np.ndarray, "places top"]
    about: dict[str, Any] = field(default_factory=dict)  # id, temperature; where the answer begins, if that is known


def save(path: Path, texts: Sequence[TopText]) -> None:
    """Write a shard, whole or not at all."""
    starts = np.cumsum([0, *(len(text.tokens) for text in texts)])
    arrays = {
        "tokens": np.concatenate([text.tokens for text in texts]).astype(np.uint16),
        "starts": starts[:-1].astype(np.int32),
        "places": np.concatenate([text.places + start for text, start in zip(texts, starts, strict=False)]),
        "ids": np.concatenate([text.ids for text in texts]).astype(np.uint16),
        "logs": np.concatenate([text.logs for text in texts]).astype(np.float16),
        "meta": np.array(json.dumps([text.about for text in texts])),
    }
    new_path = path.with_name(NEW_PREFIX + path.name)
    with new_path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]  # its keywords are the arrays
    new_path.replace(path)


def load(path: Path) -> Iterator[TopText]:
    """The texts of a shard."""
    with np.load(path) as shard:
        tokens, starts, places, ids, logs = (shard[name] for name in ("tokens", "starts", "places", "ids", "logs"))
        about = json.loads(str(shard["meta"]))
    bounds = np.append(starts, len(tokens))
    cuts = np.searchsorted(places, bounds)
    for number, record in enumerate(about):
        first, last = bounds[number : number + 2]
        part = slice(cuts[number], cuts[number + 1])
        yield TopText(tokens[first:last], places[part] - first, ids[part], logs[part], record)


def load_all(folder: Path) -> list[TopText]:
    """The texts of all shards of a folder; raises AdviceError where there are none."""
    texts = [text for path in sorted(folder.glob("*.npz")) for text in load(path) if len(text.places)]
    if not texts:
        raise AdviceError(f"there are no texts in {str(folder)!r}; write some first")
    return texts


def frequent(texts: Sequence[TopText], size: int, vocabulary: int) -> list[int]:
    """The tokens that the target expects most, by their probability in all texts, in rising order.

    >>> text = TopText(np.array([0, 2]), np.array([1]), np.array([[2, 1]]), np.log([[0.6, 0.4]]))
    >>> frequent([text], 1, 3)
    [2]
    """
    mass = np.zeros(vocabulary)
    for text in texts:
        np.add.at(mass, text.ids.astype(np.int64), np.exp(text.logs.astype(np.float64)))
    return sorted(np.argsort(-mass, kind="stable")[:size].tolist())


def in_batches(sizes: Sequence[int], batch: int, seed: int) -> Iterator[list[int]]:
    """Texts of some `batch` tokens without an end, by their numbers; neighbours are of about one length."""
    random, group = np.random.default_rng(seed), list[int]()
    while True:
        order = random.permutation(len(sizes))
        parts = np.array_split(order, max(len(order) // SORTED_TEXTS, 1))
        near = [sorted(part.tolist(), key=lambda index: sizes[index]) for part in parts]
        groups = [part[i : i + TEXTS_TOGETHER] for part in near for i in range(0, len(part), TEXTS_TOGETHER)]
        for number in random.permutation(len(groups)):
            group += groups[number]
            if sum(sizes[index] for index in group) >= batch:
                yield group
                group = []
