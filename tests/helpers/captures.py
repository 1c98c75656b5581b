"""Captures of no models, written as `multidraft capture` writes them."""

from pathlib import Path

import torch
from multidraft_research.captures.capturing import write
from multidraft_research.captures.folder import FORMAT, MANIFEST
from multidraft_research.captures.recording import Recording
from multidraft_research.captures.shard import Shard

from multidraft.io.journal import Journal


def keep(folder: Path, *recordings: Recording, top_k: int | None = None) -> Path:
    """A capture with a prompt for each recording; the prompts belong to the tasks `even` and `odd` by turns."""
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = recordings[0].target.shape[-1]
    first = {"capture": FORMAT, "target": "a", "draft": "b", "vocabulary": vocabulary, "prompts": len(recordings)}
    journal = Journal(folder / MANIFEST, first)
    for index, recording in enumerate(recordings):
        shard = Shard(torch.tensor([1]), torch.zeros(len(recording), dtype=torch.long), recording)
        journal.append(write(shard, folder, index, f"p{index}", ("even", "odd")[index % 2], top_k))
    return folder
