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
    from multidraft.autotune.plans import MeasuredPair
    from multidraft.decoding.metrics import Info
    from multidraft.decoding.record import Emitted
    from multidraft.decoding.trace import TraceFile

SEEDS_APART = 1_000_003
LARGEST_PLAN = 2**24  # bytes
SHARD = 16  # prompts at least, and whole batches: what a stop may cost each worker
MEASURED = 32  # prompts with which a pair is measured
CHOSEN = {"plan": None, "tune_budget": 0.0}  # settings where this process has adopted a plan
Decoded = tuple[list[str], "Info"]  # texts, and how it went


@dataclass(frozen=True)
class Job:
    """What to decode, how, and with which models; `settings` is what `multidraft.generate` takes as it is."""

    target: str
    draft: str
    loader: Loader
    prompts: list[Prompt]
    chat: bool
    batch: int
    seed: int
    settings: dict[str, Any]
    trace: "TraceFile | None" = None
    plan: str | None = None  # in JSON, where several processes choose trees by it

    @property
    def manner(self) -> dict[str, Any]:
        """What texts depend on beside the prompts, as far as it is reported."""
        return {"target": self.target, "draft": self.draft} | self.settings | {"batch": self.batch, "seed": self.seed}

    def journal(self, path: Path, prompts: list[Prompt], **more: object) -> Journal:
        """The texts of prompts; those that depend on other settings, and on `more`, are not gone on with."""
        settings = {"results": "multidraft generate"} | self.manner | {"chat": self.chat, "engine": self.loader.engine}
        return Journal(path, settings | more | {"prompts": digest(prompts)})

    @cached_property
    def limits(self) -> "Limits | None":
        """Of the trees that are chosen while decoding; None where one is given, or nothing is drafted."""
        from multidraft.generation.inputs import configured

        s = self.settings
        return configured(s["scheme"], s["tree"], s["walk"], s["plan"], len(parse(self.draft)))[1]

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

    @cached_property
    def models(self) -> Models:
        """Loaded in the process that decodes; raises where they cannot converse, and are to."""
        from multidraft.autotune import plans

        models = load(self.target, self.draft, self.loader)
        if self.chat:
            check_template(models.tokenizer, self.target)
        if self.plan is not None:
            plans.adopt(self.subject(models, []), self.plan)
        return models

    def subject(self, pair: Models, prompts: list[Prompt]) -> "MeasuredPair":
        """What is measured to choose trees by."""
        from multidraft.autotune.plans import MeasuredPair
        from multidraft.verification.registry import scheme

        assert pair.draft is not None  # trees are chosen only where there is one
        texts = [prompt.tokens for prompt in prompts]
        return MeasuredPair(pair.target, pair.draft, scheme(self.settings["scheme"]), self.settings["walk"], texts)

    def read(self, prompts: list[Prompt]) -> list[Prompt]:
        """Prompts with their tokens."""
        encode(prompts, self.models, self.chat)
        return prompts


class Texts:
    """The texts of a batch as they grow; `shows` them: one as it comes, several when they are done.

    `heads`: below their prompts.
    """

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", rows: list[Prompt], shows: bool = False, heads: bool = True
    ):
        from multidraft.generation.text import IncrementalDetokenizer

        self.rows, self.live, self.heads = rows, shows and len(rows) == 1, shows and heads
        self.readers = [IncrementalDetokenizer(tokenizer, prompt.tokens) for prompt in rows]
        self.pieces: list[list[tuple[str, str]]] = [[] for _ in rows]  # each with what it came to be by
        if self.live and self.heads:
            terminal.heading(rows[0].id, rows[0].text)

    @property
    def whole(self) -> list[str]:
        """The texts so far."""
        return ["".join(piece for piece, _ in own) for own in self.pieces]

    def __call__(self, row: int, emitted: "Emitted") -> None:
        for token, kind in zip(emitted.tokens, emitted.kinds, strict=True):
            self.add(row, self.readers[row].add(token), kind)

    def add(self, row: int, piece: str, kind: str) -> None:
        """A row has a new piece."""
        if piece:
            self.pieces[row].append((piece, kind))
            if self.live:
                terminal.show(piece, kind)

    def close(self) -> list[str]:
        """All texts, with what was held back."""
        for row, reader in enumerate(self.readers):
            self.add(row, reader.close(), "corrected")
        for prompt, pieces in zip(self.rows, self.pieces, strict=True) if self.heads else ():
            if not self.live:
                terminal.heading(prompt.id, prompt.text)
                for piece in pieces:
                    terminal.show(*piece)
            typer.echo("\n")
        return self.whole


def decode(pair: Models, job: Job, texts: Texts, drafts: bool = True) -> Decoded:
    """One batch's texts and its report."""
    import torch

    import multidraft as md

    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in texts.rows],
        generator=[torch.Generator().manual_seed(job.seed * SEEDS_APART + prompt.index) for prompt in texts.rows],
        stream=texts,
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        **job.settings,
    )
    return texts.close(), info


def decode_shard(job: Job, shards: list[list[Prompt]], shard: int) -> Record:
    """The texts of a shard; done by a worker, whose `job` keeps its models."""
    rows, records = job.read(shards[shard]), list[Record]()
    own = job if job.plan is None else replace(job, settings=job.settings | CHOSEN)
    for first in range(0, len(rows), job.batch):
        texts = Texts(job.models.tokenizer, rows[first : first + job.batch])
        pairs = zip(texts.rows, decode(job.models, own, texts)[0], strict=True)
        records += [{"id": prompt.id, "task": prompt.task, "text": text} for prompt, text in pairs]
    return {"records": records}


def make_plan(job: Job, _: int) -> Record:
    """The one job before all others: what trees are chosen by, measured where the shards are decoded.

    It is the text of a file: of what is kept, or measured with the prompts if there is nothing yet.
    """
    from multidraft.autotune.plans import profile_for
    from multidraft.autotune.tuning import measure
    from multidraft.generation.inputs import plan_file

    own = job.subject(job.models, job.read(job.prompts[:MEASURED]))
    profile = profile_for(own, plan_file(job.settings["plan"], job.limits))
    if not profile.known:
        measure(own, profile, job.settings["tune_budget"], [job.settings["temperature"]], [job.batch])
    return {"plan": profile.as_json()}


def spread(job: Job, folder: Path, crew: Crew, as_json: bool) -> None:
    """Decode all shards that the folder does not have yet."""
    from tqdm import tqdm

    files.make_folder(folder, "--jsonl")
    size = -(-SHARD // job.batch) * job.batch
    shards = [job.prompts[first : first + size] for first in range(0, len(job.prompts), size)]

    def journal(shard: int) -> Journal:
        return job.journal(folder / f"{shard:06}.jsonl", shards[shard], shard=shard)

    left = [shard for shard, rows in enumerate(shards) if len(journal(shard).records) < len(rows)]
    done = len(shards) - len(left)
    try:
        if left and job.limits is not None:  # with the plan that the folder has, or gets now
            plan = job.journal(folder / "plan.jsonl", job.prompts, shard=None)
            run(partial(make_plan, job), 1, plan, crew, "measuring the pair")
            job = replace(job, plan=plan.records[0]["plan"])
        decoded = crew(partial(decode_shard, job, shards), left) if left else []
        bar = tqdm(decoded, total=len(shards), initial=done, desc="decoding", unit="shard")
        for shard, record in zip(left, bar, strict=True):
            texts = journal(shard)
            for text in record["records"][len(texts.records) :]:
                texts.append(text)
            done += 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped after {done} of {len(shards)} shards") from None
    if as_json:
        return terminal.print_json({"folder": str(folder), "shards": len(shards), "prompts": len(job.prompts)})
    terminal.note(f"the texts of {len(job.prompts)} prompts are in {folder}, a file for each {size}")
