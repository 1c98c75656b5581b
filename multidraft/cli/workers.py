"""`multidraft generate --workers N`: shards of the prompts, decoded by processes here or by those of a Ray cluster.

A shard is always the same prompts, a prompt's random numbers are its own, and trees are chosen by one plan: the texts
are those of one worker. The process that was called writes them, a file a shard, in their order.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from tqdm import tqdm

from multidraft.cli import terminal
from multidraft.cli.crews import Crew, run
from multidraft.cli.decode import Job, context, decode
from multidraft.cli.models import Loader, Models, load
from multidraft.cli.prompts import Prompt, check_template, digest, encode
from multidraft.io import files
from multidraft.io.journal import Journal, Record

if TYPE_CHECKING:
    from multidraft.autotune.store import Subject

SHARD = 16  # prompts at least, and whole batches: what a stop may cost each worker
MEASURED = 32  # prompts with which a pair is measured
CHOSEN = {"plan": None, "tune_budget": 0.0}  # settings where this process has adopted a plan


@dataclass(frozen=True)
class Shards:
    """The prompts by shards, and how to decode one; sent to the workers, each of which loads the models once."""

    target: str
    loader: Loader
    chat: bool
    job: Job
    prompts: list[Prompt]
    plan: str | None = None  # in JSON, where trees are chosen by one

    @property
    def manner(self) -> dict[str, object]:
        """What the texts depend on beside the prompts."""
        job, names = self.job, {"target": self.target, "draft": self.job.draft}
        return names | job.settings | {"batch": job.batch, "seed": job.seed}

    @property
    def loading(self) -> dict[str, object]:
        """And how models were loaded and prompts written."""
        return {"chat": self.chat, "engine": self.loader.engine}

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
        from multidraft.autotune import store

        models = load(self.target, self.job.draft, self.loader)
        if self.chat:
            check_template(models.tokenizer, self.target)
        if self.plan is not None:
            store.adopt(subject(models, self.job, []), self.plan)
        return models

    def read(self, rows: list[Prompt]) -> list[Prompt]:
        """Prompts with their tokens."""
        encode(rows, self.models.tokenizer, context(self.models), self.chat)
        return rows

    def __call__(self, shard: int) -> Record:
        """The texts of a shard."""
        rows = self.read(self.rows(shard))
        job = self.job if self.plan is None else replace(self.job, settings=self.job.settings | CHOSEN)
        batches = [rows[first : first + job.batch] for first in range(0, len(rows), job.batch)]
        texts = [text for batch in batches for text in decode(self.models, job, batch)[0]]
        pairs = zip(rows, texts, strict=True)
        return {"records": [{"id": prompt.id, "task": prompt.task, "text": text} for prompt, text in pairs]}

    def journal(self, folder: Path, shard: int | None) -> Journal:
        """What a shard's file holds, and where to write the rest; that of the plan for None."""
        rows = self.prompts if shard is None else self.rows(shard)
        own = {"results": "multidraft generate", "shard": shard, "prompts": digest(rows)}
        file = "plan.jsonl" if shard is None else f"{shard:06}.jsonl"
        return Journal(folder / file, self.manner | self.loading | own)


@dataclass(frozen=True)
class Planning:
    """The one job before all others: what trees are chosen by, measured where the shards are decoded."""

    shards: Shards

    def __call__(self, job: int) -> Record:
        """The plan, as the text of a file: of what is kept, or measured with the prompts if there is nothing yet."""
        from multidraft.autotune.store import profile_for
        from multidraft.autotune.tuning import measure
        from multidraft.generation.inputs import plan_file

        asked = self.shards.job
        own = subject(self.shards.models, asked, self.shards.read(self.shards.prompts[:MEASURED]))
        profile = profile_for(own, plan_file(asked.settings["plan"], asked.limits))
        if not profile.known:
            measure(own, profile, asked.settings["tune_budget"], [asked.settings["temperature"]], [asked.batch])
        return {"plan": profile.as_json()}


def subject(pair: Models, job: Job, prompts: list[Prompt]) -> "Subject":
    """What is measured."""
    from multidraft.autotune.store import Subject
    from multidraft.verification.registry import scheme

    assert pair.draft is not None  # trees are chosen only where there is one
    texts = [prompt.tokens for prompt in prompts]
    return Subject(pair.target, pair.draft, scheme(job.settings["scheme"]), job.settings["walk"], texts)


def planned(shards: Shards, folder: Path, crew: Crew) -> Shards:
    """The shards with the plan that the folder has, or gets now, where trees are to be chosen."""
    if shards.job.limits is None:
        return shards
    journal = shards.journal(folder, None)
    run(Planning(shards), 1, journal, crew, "measuring the pair")
    return replace(shards, plan=journal.records[0]["plan"])


def spread(shards: Shards, folder: Path, crew: Crew, as_json: bool) -> None:
    """Decode all shards that the folder does not have yet."""
    files.make_folder(folder, "--jsonl")
    numbers = range(len(shards))
    left = [n for n in numbers if len(shards.journal(folder, n).records) < len(shards.rows(n))]
    done = len(shards) - len(left)
    try:
        decoded = crew(planned(shards, folder, crew), left) if left else []
        bar = tqdm(decoded, total=len(shards), initial=done, desc="decoding", unit="shard")
        for shard, record in zip(left, bar, strict=True):
            journal = shards.journal(folder, shard)
            for text in record["records"][len(journal.records) :]:
                journal.append(text)
            done += 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped after {done} of {len(shards)} shards") from None
    if as_json:
        return terminal.print_json({"folder": str(folder), "shards": len(shards), "prompts": len(shards.prompts)})
    terminal.note(f"the texts of {len(shards.prompts)} prompts are in {folder}, a file for each {shards.size}")
