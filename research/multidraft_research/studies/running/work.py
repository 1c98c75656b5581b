"""A study as jobs, one a prompt, over a capture or over models that decode."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from multidraft.io.journal import Record
from multidraft_research.captures.folder import Capture
from multidraft_research.captures.work import Load, Passage, load_once
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Decoding

SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class OverCapture:
    """What is measured on each prompt of a capture."""

    measure: Callable[[Captured], Iterator[Cell]]
    folder: Path
    seed: int
    schemes: Sequence[str] = ()

    def __call__(self, job: int) -> Record:
        capture = Capture.open(self.folder)
        generator = torch.Generator().manual_seed(self.seed * SEEDS_APART + job)
        entry, shard = capture.entries[job], capture.shard(job)
        drawn = shard.tokens if capture.is_drawn else None
        texts = shard.prompt.tolist(), shard.tokens.tolist()
        part = Captured(shard.recording, entry.task, generator, drawn, self.schemes, *texts)
        return {"id": entry.id, "cells": list(self.measure(part))}


@dataclass(frozen=True)
class OverModels:
    """What is measured while models decode each prompt."""

    measure: Callable[[Decoding], Iterator[Cell]]
    load: Load
    passages: Sequence[Passage]
    new_tokens: int
    seed: int
    schemes: Sequence[str] = ()

    def __call__(self, job: int) -> Record:
        passage = self.passages[job]
        decoding = Decoding(load_once(self.load), passage, self.new_tokens, self.seed * SEEDS_APART + job, self.schemes)
        return {"id": passage.id, "cells": list(self.measure(decoding))}
