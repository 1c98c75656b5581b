"""Decode prompts batch by batch in this process, or in shards by local processes or a Ray cluster.

Shards do not depend on the number of workers, each prompt has its own random numbers, and all workers use one plan.
So the texts equal those of one worker. The calling process writes one file per shard, in order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from multidraft.cli import terminal
from multidraft.cli.executors import Executor, run
from multidraft.cli.models import Loader, Models, load, parse
from multidraft.cli.options import check_drafting
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
    from multidraft.models.huggingface import Model
    from multidraft.sampling.grammar import Grammar

SEED_STRIDE = 1_000_003
MIN_SHARD_PROMPTS = 16  # rounded up to whole batches; a stop loses at most one shard per worker
MEASURED_PROMPTS = 32  # to measure a pair with
ADOPTED_PLAN = {"plan": None, "tune_budget": 0.0}  # settings of a process that has adopted a plan
Decoded = tuple[list[str], "Info"]  # texts, and metrics


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
    plan: str | None = None  # in JSON; shared by several processes
    schema: str | None = None  # a JSON schema that texts must follow

    def stops(self, pair: Models) -> list[str]:
        """The strings that end a text, in a chat also the one that the tokenizer has no token for."""
        from multidraft.generation.text import closing_texts

        return [*(self.settings.get("stop") or []), *(closing_texts(pair.tokenizer) if self.chat else [])]

    @property
    def reported_settings(self) -> dict[str, Any]:
        """The settings that the report lists: all that texts depend on, except the prompts."""
        form = {} if self.schema is None else {"json_schema": self.schema}
        models = {"target": self.target, "draft": self.draft}
        return models | self.settings | form | {"batch": self.batch, "seed": self.seed}

    def journal(self, path: Path, prompts: list[Prompt], **extra: object) -> Journal:
        """The journal of the prompts' texts; it is continued only if its settings, with `extra`, are the same."""
        settings = {"results": "multidraft generate"} | self.reported_settings | {"chat": self.chat}
        return Journal(path, settings | {"engine": self.loader.engine} | extra | {"prompts": digest(prompts)})

    @cached_property
    def limits(self) -> "Limits | None":
        """The limits of trees that are chosen while decoding; None for a fixed tree, or without a draft."""
        from multidraft.generation.inputs import resolve_config

        settings = self.settings
        scheme, tree, walk, plan = (settings[name] for name in ("scheme", "tree", "walk", "plan"))
        return resolve_config(scheme, tree, walk, plan, len(parse(self.draft)))[1]

    def check(self) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.sampling.checks import check_all

        settings = self.settings
        check_all(settings, called=lambda name: f"--{name.replace('_', '-')}")
        check_drafting(settings["scheme"], settings["tree"], settings["plan"])
        _ = self.limits  # computing them checks the scheme and the tree

    @cached_property
    def models(self) -> Models:
        """The models, loaded in the process that decodes; raises if --chat needs a chat template and there is none."""
        from multidraft.autotune import plans

        models = load(self.target, self.draft, self.loader)
        if self.chat:
            check_template(models.tokenizer, self.target)
        if self.plan is not None:
            plans.adopt(self.subject(models, []), self.plan)
        return models

    def subject(self, pair: Models, prompts: list[Prompt]) -> "MeasuredPair":
        """The pair, scheme and prompts that a plan is measured with."""
        from multidraft.autotune.plans import MeasuredPair
        from multidraft.verification.registry import scheme

        assert pair.draft is not None  # trees are chosen only for a draft
        texts = [prompt.tokens for prompt in prompts]
        return MeasuredPair(pair.target, pair.draft, scheme(self.settings["scheme"]), self.settings["walk"], texts)

    def settings_for(self, target: "Model") -> dict[str, Any]:
        """The settings with those that the target's configuration recommends in place of what is left open."""
        from multidraft.sampling.generation_config import model_defaults

        defaults = {"temperature": 1.0} | model_defaults(target)
        return self.settings | {name: value for name, value in defaults.items() if self.settings.get(name) is None}

    def ends(self, pair: Models) -> list[int]:
        """The tokens that end a text."""
        from multidraft.generation.text import text_ends

        return sorted(text_ends(pair.target, pair.tokenizer, self.chat))

    def grammar(self, tokenizer: "PreTrainedTokenizerBase", prompt: Prompt) -> "Grammar | None":
        """The form of the texts, if there is one; a chat may think before it."""
        from multidraft.generation.text import thinking_of
        from multidraft.sampling.grammar import Grammar

        if self.schema is None:
            return None
        thinking = thinking_of(tokenizer, prompt.tokens, str(tokenizer.chat_template)) if self.chat else None
        return Grammar(tokenizer, self.schema, thinking=thinking)

    def encoded(self, prompts: list[Prompt]) -> list[Prompt]:
        """The prompts, with their tokens filled in."""
        encode(prompts, self.models, self.chat)
        return prompts


class Texts:
    """The texts of a batch as they grow, up to the first stop string in each.

    `show` prints them: a single text as it comes, several when they are done. `headings` prints each prompt first.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        prompts: list[Prompt],
        stops: Sequence[str],
        show: bool = False,
        headings: bool = True,
    ):
        from multidraft.generation.text import TextReader

        self.prompts, self.streams, self.headings = prompts, show and len(prompts) == 1, show and headings
        self.readers = [TextReader[str](tokenizer, prompt.tokens, stops) for prompt in prompts]
        self.is_printed = False  # whole
        self.pieces: list[list[tuple[str, str]]] = [[] for _ in prompts]  # text and kind
        if self.streams and self.headings:
            terminal.heading(prompts[0].id, prompts[0].text)

    @property
    def full_texts(self) -> list[str]:
        """The texts so far."""
        return ["".join(piece for piece, _ in pieces) for pieces in self.pieces]

    def __call__(self, row: int, emitted: "Emitted") -> None:
        kinds = [terminal.UNDRAFTED_KIND] if emitted.kinds == ["bonus"] else emitted.kinds  # a bonus follows a draft
        for token, kind in zip(emitted.tokens, kinds, strict=True):
            self.add(row, self.readers[row].add(token, kind))

    def add(self, row: int, pieces: "Sequence[tuple[str | None, str]]") -> None:
        """Add pieces to a row, and print them if the text is streamed."""
        for tag, piece in pieces:
            kind = tag or (self.pieces[row][-1][1] if self.pieces[row] else terminal.UNDRAFTED_KIND)
            if piece:
                self.pieces[row].append((piece, kind))
                if self.streams:
                    terminal.show(piece, kind)

    def close(self) -> list[str]:
        """Add what was held back, print what is not printed yet, and return all texts."""
        for row, reader in enumerate(self.readers):
            self.add(row, reader.close())
        return self.print()

    def print(self) -> list[str]:
        """Print what is not printed yet, and return all texts so far."""
        headings, self.is_printed = self.headings and not self.is_printed, True
        for prompt, pieces in zip(self.prompts, self.pieces, strict=True) if headings else ():
            if not self.streams:
                terminal.heading(prompt.id, prompt.text)
                for piece in pieces:
                    terminal.show(*piece)
            typer.echo("\n")
        return self.full_texts


def decode(pair: Models, job: Job, texts: Texts, drafts: bool = True) -> Decoded:
    """Decode a batch; return its texts and metrics."""
    import torch

    import multidraft as md

    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in texts.prompts],
        generator=[torch.Generator().manual_seed(job.seed * SEED_STRIDE + prompt.index) for prompt in texts.prompts],
        stream=texts,
        eos_token_id=job.ends(pair),
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        grammar=job.grammar(pair.tokenizer, texts.prompts[0]),
        **job.settings_for(pair.target) | {"stop": job.stops(pair)},
    )
    return texts.close(), info


def decode_shard(job: Job, shards: list[list[Prompt]], shard: int) -> Record:
    """Decode a shard in a worker; `job` caches its models."""
    prompts, records = job.encoded(shards[shard]), list[Record]()
    decoding_job = job if job.plan is None else replace(job, settings=job.settings | ADOPTED_PLAN)
    for first in range(0, len(prompts), job.batch):
        texts = Texts(job.models.tokenizer, prompts[first : first + job.batch], job.stops(job.models))
        pairs = zip(texts.prompts, decode(job.models, decoding_job, texts)[0], strict=True)
        records += [{"id": prompt.id, "task": prompt.task, "text": text} for prompt, text in pairs]
    return {"records": records}


def make_plan(job: Job, _: int) -> Record:
    """Make the plan that all shards choose trees by, before they are decoded, on a machine that decodes them.

    The record holds the plan as JSON: a known one, or one that is measured with the prompts.
    """
    from multidraft.autotune.plans import profile_for
    from multidraft.autotune.tuning import measure
    from multidraft.generation.inputs import plan_file

    subject = job.subject(job.models, job.encoded(job.prompts[:MEASURED_PROMPTS]))
    profile = profile_for(subject, plan_file(job.settings["plan"], job.limits))
    budget = job.settings["tune_budget"]
    if budget and not profile.known:
        measure(subject, profile, budget, [job.settings_for(job.models.target)["temperature"]], [job.batch])
    return {"plan": profile.as_json()}


def decode_in_shards(job: Job, folder: Path, executor: Executor, as_json: bool) -> None:
    """Decode the shards that the folder does not have yet."""
    from tqdm import tqdm

    files.make_folder(folder, "--jsonl")
    size = -(-MIN_SHARD_PROMPTS // job.batch) * job.batch
    shards = [job.prompts[first : first + size] for first in range(0, len(job.prompts), size)]

    def journal(shard: int) -> Journal:
        return job.journal(folder / f"{shard:06}.jsonl", shards[shard], shard=shard)

    shards_left = [shard for shard, prompts in enumerate(shards) if len(journal(shard).records) < len(prompts)]
    shards_done = len(shards) - len(shards_left)
    try:
        if shards_left and job.limits is not None:  # reads the folder's plan, or makes one
            plan = job.journal(folder / "plan.jsonl", job.prompts, shard=None)
            run(partial(make_plan, job), 1, plan, executor, "measuring the pair")
            job = replace(job, plan=plan.records[0]["plan"])
        decoded = executor(partial(decode_shard, job, shards), shards_left) if shards_left else []
        bar = tqdm(decoded, total=len(shards), initial=shards_done, desc="decoding", unit="shard")
        for shard, record in zip(shards_left, bar, strict=True):
            texts = journal(shard)
            for text in record["records"][len(texts.records) :]:
                texts.append(text)
            shards_done += 1
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped after {shards_done} of {len(shards)} shards") from None
    if as_json:
        return terminal.print_json({"folder": str(folder), "shards": len(shards), "prompts": len(job.prompts)})
    terminal.note(f"the texts of {len(job.prompts)} prompts are in {folder}, a file for each {size}")
