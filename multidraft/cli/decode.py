"""Prompts decoded batch by batch: in this process, or in shards by processes here or by those of a Ray cluster.

A shard is always the same prompts, a prompt's random numbers are its own, and trees are chosen by one plan: the texts
are those of one worker. The process that was called writes them, a file a shard, in their order.
"""

from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from multidraft.cli import terminal
from multidraft.cli.crews import Crew, run
from multidraft.cli.models import Loader, Models, load, parse
from multidraft.cli.prompts import Prompt, check_template, digest, encode
from multidraft.io import files
from multidraft.io.journal import Journal, Record

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.autotune.controller import Limits
    from multidraft.autotune.plans import Subject
    from multidraft.decoding.metrics import Info
    from multidraft.decoding.record import Emitted
    from multidraft.decoding.trace import TraceFile
    from multidraft.zoo import Pair

SEEDS_APART = 1_000_003
LARGEST_PLAN = 2**24  # bytes
SHARD = 16  # prompts at least, and whole batches: what a stop may cost each worker
MEASURED = 32  # prompts with which a pair is measured
CHOSEN = {"plan": None, "tune_budget": 0.0}  # settings where this process has adopted a plan
Decoded = tuple[list[str], "Info"]  # texts, and how it went


@dataclass(frozen=True)
class Job:
    """How to decode, with which models; `settings` is what `multidraft.generate` takes as it is."""

    target: str
    draft: str
    loader: Loader
    chat: bool
    batch: int
    seed: int
    settings: dict[str, Any]
    trace: "TraceFile | None" = None

    @cached_property
    def limits(self) -> "Limits | None":
        """Of the trees that are chosen while decoding; None where one is given, or nothing is drafted."""
        from multidraft.generation.inputs import configured

        s = self.settings
        return configured(s["scheme"], s["tree"], s["walk"], s["plan"], len(parse(self.draft)))[1]

    @property
    def manner(self) -> dict[str, object]:
        """What texts depend on beside the prompts, as far as it is reported."""
        return {"target": self.target, "draft": self.draft} | self.settings | {"batch": self.batch, "seed": self.seed}

    @property
    def identity(self) -> dict[str, object]:
        """All that texts depend on beside the prompts: another run's are not gone on with."""
        return {"results": "multidraft generate"} | self.manner | {"chat": self.chat, "engine": self.loader.engine}

    def check(self) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.sampling.settings import SETTINGS, check, check_stops

        s = self.settings
        for name in SETTINGS.keys() & s.keys():
            if s[name] is not None:
                check(name, s[name], f"--{name.replace('_', '-')}")
        check_stops("--stop", s["stop"] or [])
        if s["plan"] is not None:
            files.content(Path(s["plan"]), "the plan", LARGEST_PLAN)
        _ = self.limits  # looking for them checks what is drafted, and how

    def load(self) -> Models:
        """The models; raises where they cannot converse, and are to."""
        models = load(self.target, self.draft, self.loader)
        if self.chat:
            check_template(models.tokenizer, self.target)
        return models

    def subject(self, pair: Models, prompts: list[Prompt]) -> "Subject":
        """What is measured to choose trees by."""
        from multidraft.autotune.plans import Subject
        from multidraft.verification.registry import scheme

        assert pair.draft is not None  # trees are chosen only where there is one
        texts = [prompt.tokens for prompt in prompts]
        return Subject(pair.target, pair.draft, scheme(self.settings["scheme"]), self.settings["walk"], texts)


class Texts:
    """The texts of a batch as they grow.

    `shows`: on stdout, too, that of a single prompt as it comes, those of several when they are done; with `heads`
    below their prompts.
    """

    def __init__(self, shows: bool = False, heads: bool = False):
        self.shows, self.heads = shows, heads
        self.rows: list[Prompt] = []
        self.pieces: list[list[tuple[str, str]]] = []  # of every row, each with what it came to be by

    @property
    def whole(self) -> list[str]:
        """The texts so far."""
        return ["".join(piece for piece, _ in own) for own in self.pieces]

    def forget(self) -> None:
        """The batch is kept elsewhere."""
        self.rows, self.pieces = [], []

    def begin(self, rows: list[Prompt], tokenizer: "PreTrainedTokenizerBase") -> None:
        """A batch is about to be decoded."""
        from multidraft.generation.text import IncrementalDetokenizer

        self.rows, self.pieces = rows, [[] for _ in rows]
        self.readers = [IncrementalDetokenizer(tokenizer, prompt.tokens) for prompt in rows]
        if self.shows and self.heads and len(rows) == 1:
            terminal.heading(rows[0].id, rows[0].text)

    def __call__(self, row: int, emitted: "Emitted") -> None:
        for token, kind in zip(emitted.tokens, emitted.kinds, strict=True):
            self.add(row, self.readers[row].add(token), kind)

    def add(self, row: int, piece: str, kind: str) -> None:
        """A row has a new piece."""
        if piece:
            self.pieces[row].append((piece, kind))
            if self.shows and len(self.rows) == 1:
                terminal.show(piece, kind)

    def close(self) -> list[str]:
        """All texts, with what was held back."""
        for row, reader in enumerate(self.readers):
            self.add(row, reader.close(), "corrected")
        for prompt, pieces in zip(self.rows, self.pieces, strict=True) if self.shows and self.heads else ():
            if len(self.rows) > 1:
                terminal.heading(prompt.id, prompt.text)
                for piece in pieces:
                    terminal.show(*piece)
            typer.echo("\n")
        return self.whole


def context(pair: "Models | Pair") -> int | None:
    """The longest sequence that target and draft can read."""
    from multidraft.generation.inputs import context_of

    return context_of(pair.target, pair.draft)


def decode(pair: Models, job: Job, rows: list[Prompt], drafts: bool = True, texts: Texts | None = None) -> Decoded:
    """One batch's texts and its report."""
    import torch

    import multidraft as md

    texts = texts or Texts()
    texts.begin(rows, pair.tokenizer)
    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in rows],
        generator=[torch.Generator().manual_seed(job.seed * SEEDS_APART + prompt.index) for prompt in rows],
        stream=texts,
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        **job.settings,
    )
    return texts.close(), info


@dataclass(frozen=True)
class Shards:
    """The prompts by shards, and how to decode one; sent to the workers, each of which loads the models once."""

    job: Job
    prompts: list[Prompt]
    plan: str | None = None  # in JSON, where trees are chosen by one

    @property
    def size(self) -> int:
        """Prompts of a shard, but for the last."""
        return -(-SHARD // self.job.batch) * self.job.batch

    def __len__(self) -> int:
        return -(-len(self.prompts) // self.size)

    @cached_property
    def models(self) -> Models:
        """Loaded in the process that decodes."""
        from multidraft.autotune import plans

        models = self.job.load()
        if self.plan is not None:
            plans.adopt(self.job.subject(models, []), self.plan)
        return models

    def read(self, rows: list[Prompt]) -> list[Prompt]:
        """Prompts with their tokens."""
        encode(rows, self.models.tokenizer, context(self.models), self.job.chat)
        return rows

    def rows(self, shard: int) -> list[Prompt]:
        """The prompts of one."""
        return self.prompts[shard * self.size : (shard + 1) * self.size]

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
        file, rows = ("plan", self.prompts) if shard is None else (f"{shard:06}", self.rows(shard))
        return Journal(folder / f"{file}.jsonl", self.job.identity | {"shard": shard, "prompts": digest(rows)})

    def planned(self, folder: Path, crew: Crew) -> "Shards":
        """With the plan that the folder has, or gets now, where trees are to be chosen."""
        if self.job.limits is None:
            return self
        journal = self.journal(folder, None)
        run(partial(plan, self), 1, journal, crew, "measuring the pair")
        return replace(self, plan=journal.records[0]["plan"])


def plan(shards: Shards, job: int) -> Record:
    """The one job before all others: what trees are chosen by, measured where the shards are decoded.

    It is the text of a file: of what is kept, or measured with the prompts if there is nothing yet.
    """
    from multidraft.autotune.plans import profile_for
    from multidraft.autotune.tuning import measure
    from multidraft.generation.inputs import plan_file

    asked = shards.job
    own = asked.subject(shards.models, shards.read(shards.prompts[:MEASURED]))
    profile = profile_for(own, plan_file(asked.settings["plan"], asked.limits))
    if not profile.known:
        measure(own, profile, asked.settings["tune_budget"], [asked.settings["temperature"]], [asked.batch])
    return {"plan": profile.as_json()}


def spread(shards: Shards, folder: Path, crew: Crew, as_json: bool) -> None:
    """Decode all shards that the folder does not have yet."""
    from tqdm import tqdm

    files.make_folder(folder, "--jsonl")
    numbers = range(len(shards))
    left = [n for n in numbers if len(shards.journal(folder, n).records) < len(shards.rows(n))]
    done = len(shards) - len(left)
    try:
        decoded = crew(shards.planned(folder, crew), left) if left else []
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
