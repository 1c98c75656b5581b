"""`multidraft generate --workers N`: shards of the prompts, decoded by processes here or by actors on Ray.

A shard is always the same prompts, and a prompt's random numbers are its own: the texts are those of one worker.
The process that was called writes them, a file a shard, as they come.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from multidraft.commands import terminal
from multidraft.commands.chat import check_template, encode_chats
from multidraft.commands.clusters import joined
from multidraft.commands.decode import Job, context, decode
from multidraft.commands.drafters import Models, load
from multidraft.commands.prompts import Prompt, digest, encode
from multidraft.errors import AdviceError, outputs
from multidraft.errors.missing import optional

if TYPE_CHECKING:
    from multidraft.studies.journal import Journal, Record

SHARD = 16  # prompts at least, and whole batches: what a stop may cost each worker


@dataclass(frozen=True)
class Shards:
    """The prompts by shards, and how to decode one; sent to the workers, each of which loads the models once."""

    target: str | None
    draft: str | None
    chat: bool
    job: Job
    prompts: list[Prompt]

    @property
    def size(self) -> int:
        """Prompts of a shard, but for the last."""
        return -(-SHARD // self.job.batch) * self.job.batch

    def __len__(self) -> int:
        return -(-len(self.prompts) // self.size)

    def rows(self, shard: int) -> list[Prompt]:
        """The prompts of one."""
        return self.prompts[shard * self.size : (shard + 1) * self.size]

    @cached_property
    def models(self) -> Models:
        """Loaded in the process that decodes."""
        models = load(self.target, self.draft)
        if self.chat:
            check_template(models.tokenizer, self.target)
        return models

    def __call__(self, shard: int) -> "Record":
        """The texts of a shard."""
        rows, read = self.rows(shard), encode_chats if self.chat else encode
        read(rows, self.models.tokenizer, context(self.models))
        batches = [rows[first : first + self.job.batch] for first in range(0, len(rows), self.job.batch)]
        texts = [text for batch in batches for text in decode(self.models, self.job, batch)[0]]
        pairs = zip(rows, texts, strict=True)
        return {"records": [{"id": prompt.id, "task": prompt.task, "text": text} for prompt, text in pairs]}

    def journal(self, folder: Path, shard: int) -> "Journal":
        """What a shard's file holds, and where to write the rest."""
        from multidraft.studies.journal import Journal

        names = {"results": "multidraft generate", "target": self.target, "draft": self.draft, "chat": self.chat}
        own = {"batch": self.job.batch, "seed": self.job.seed, "shard": shard, "prompts": digest(self.rows(shard))}
        return Journal(folder / f"{shard:06}.jsonl", names | self.job.settings | own)


def spread(shards: Shards, folder: Path, workers: int, on_ray: bool, as_json: bool) -> None:
    """Decode all shards that the folder does not have yet."""
    outputs.make_folder(folder, "--jsonl")
    numbers = range(len(shards))
    left = [n for n in numbers if len(shards.journal(folder, n).records) < len(shards.rows(n))]
    decoded = over_ray(shards, left, workers) if on_ray else over_processes(shards, left, workers)
    done = len(shards) - len(left)
    try:
        for shard, records in tqdm(decoded, total=len(shards), initial=done, desc="decoding", unit="shard"):
            journal = shards.journal(folder, shard)
            for record in records[len(journal.records) :]:
                journal.append(record)
            done += 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped after {done} of {len(shards)} shards") from None
    if as_json:
        terminal.print_json({"folder": str(folder), "shards": len(shards), "prompts": len(shards.prompts)})
    else:
        terminal.note(f"the texts of {len(shards.prompts)} prompts are in {folder}, a file for each {shards.size}")


def over_processes(shards: Shards, left: list[int], workers: int) -> Iterator[tuple[int, list["Record"]]]:
    """Shards and their records, of processes of this machine."""
    from multidraft.studies.running import jobs

    for shard, record in zip(left, jobs.Processes(workers)(shards, left), strict=True):
        yield shard, record["records"]


def over_ray(shards: Shards, left: list[int], workers: int) -> Iterator[tuple[int, list["Record"]]]:
    """The same of actors, as they come; each has a GPU where the cluster has some."""
    optional("ray.data", "Ray", "ray")
    import ray

    with joined():
        if not left:
            return
        ray.data.DataContext.get_current().enable_progress_bars = False
        gpus = 1 if ray.cluster_resources().get("GPU") else 0
        pool = ray.data.ActorPoolStrategy(size=workers)
        wanted = ray.data.from_items([{"shard": shard} for shard in left], override_num_blocks=len(left))
        given: dict[str, Any] = {"fn_constructor_args": (shards,), "batch_size": 1, "num_gpus": gpus}
        try:
            for row in wanted.map_batches(Actor, compute=pool, **given).iter_rows():
                yield row["shard"], json.loads(row["records"])
        except ray.exceptions.RayError as error:
            raise AdviceError(f"a worker failed: {str(error.__cause__ or error).strip().splitlines()[-1]}") from error


class Actor:
    """A worker on Ray."""

    def __init__(self, shards: Shards):
        self.shards = shards

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """The records of a shard, as one text."""
        records = [json.dumps(self.shards(int(shard))["records"]) for shard in batch["shard"]]
        return {"shard": batch["shard"], "records": records}
