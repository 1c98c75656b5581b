"""A capture as jobs, one a prompt: each writes its shard, and its record is the shard's line in the manifest."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch

from multidraft.errors import AdviceError
from multidraft.io.journal import Record
from multidraft.zoo import Pair
from multidraft_research.captures.capturing import Manner, capture_prompt, largest, write

Load = Callable[[], Pair]


@dataclass(frozen=True)
class Passage:
    """A prompt in tokens."""

    id: str
    task: str
    tokens: list[int]


@lru_cache(maxsize=1)
def load_once(load: Load) -> Pair:
    """The models, once in a process."""
    return load()


@dataclass(frozen=True)
class Capturing:
    """The jobs of one capture."""

    load: Load
    passages: Sequence[Passage]
    manner: Manner
    folder: Path

    def __call__(self, job: int) -> Record:
        pair, passage = load_once(self.load), self.passages[job]
        shard = capture_prompt(pair.target, pair.draft, passage.tokens, job, self.manner)
        return write(shard, self.folder, job, passage.id, passage.task, self.manner.top_k)


def check_room(pair: Pair, prompts: int, manner: Manner, vocabulary: int, folder: Path) -> int:
    """The bytes that a capture takes at most; raises where the disk has no room for them."""
    dtypes = (getattr(model, "dtype", torch.float32) for model in pair[:2])  # libraries of GGUF files say float32
    bytes_of_pair = sum(dtype.itemsize for dtype in dtypes)
    needed = largest(prompts, manner, vocabulary, bytes_of_pair)
    if needed > (free := shutil.disk_usage(folder).free):
        raise AdviceError(
            f"the capture takes up to {needed / 1e9:.1f} GB, and {str(folder)!r} has room for {free / 1e9:.1f} GB; "
            "choose another --out, fewer --max-new-tokens, or --top-k"
        )
    return needed


def check_scored(passages: Sequence[Passage], manner: Manner) -> None:
    """Raise where there is no token to score."""
    for passage in passages:
        if manner.score and len(passage.tokens) < 2:
            raise AdviceError(f"prompt {passage.id!r} is one token, which leaves none to score; give it more text")
