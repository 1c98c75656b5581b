"""`multidraft generate`: continue prompts, show how each token came to be, and report how it went."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from multidraft import machine
from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.crews import crew_of
from multidraft.cli.decode import SEEDS_APART, Decoded, Job, Texts, decode, spread
from multidraft.cli.models import Loader, Models, usual
from multidraft.cli.prompts import Prompt, converse, read_prompts
from multidraft.cli.report import Report, rival, rivals
from multidraft.errors import AdviceError
from multidraft.io import files

JSONL = (
    "Write each result as it comes; the same call goes on where one was stopped. With --workers, a folder of shards."
)
WARM_UP = 8  # tokens; the first forward passes are slow, and neither side of a comparison should pay for them


@dataclass(frozen=True)
class Asked:
    """What to continue."""

    prompt: Annotated[str | None, o.asked("Text to continue.", o.PROMPTS)] = None
    prompts: Annotated[Path | None, o.asked(o.FILE, o.PROMPTS)] = None
    limit: o.Limit = None
    chat: Annotated[bool, o.asked("Use the chat template; without a prompt, converse.", o.PROMPTS, "--chat")] = False

    @property
    def talks(self) -> bool:
        """Whether it is a conversation."""
        return self.chat and self.prompt is self.prompts is None


@dataclass(frozen=True)
class Sampling:
    """What the text is drawn from; by the names of `multidraft.generate`."""

    max_new_tokens: Annotated[int, o.asked("New tokens for each prompt.", o.SAMPLING, min=1)] = 128
    temperature: Annotated[float, o.asked("0 decodes greedily.", o.SAMPLING)] = 1.0
    top_k: Annotated[int | None, o.asked("Sample from the k most likely tokens.", o.SAMPLING)] = None
    top_p: Annotated[float | None, o.asked("Sample from the smallest set that holds p.", o.SAMPLING)] = None
    min_p: Annotated[
        float | None, o.asked("Sample from tokens at least p times as likely as the best.", o.SAMPLING)
    ] = None
    repetition_penalty: Annotated[
        float | None, o.asked("Above 1, tokens seen before become less likely.", o.SAMPLING)
    ] = None
    draft_temperature: Annotated[float | None, o.asked("Of the draft. Default: the temperature.", o.SAMPLING)] = None
    stop: Annotated[list[str] | None, o.asked("Text that ends a row; may be repeated.", o.SAMPLING)] = None


@dataclass(frozen=True)
class Run:
    """How the work is done."""

    batch: Annotated[int, o.asked("Prompts decoded side by side.", o.RUN, min=1)] = 1
    seed: o.Seed = 0
    compiles: Annotated[bool, o.asked("Compile both models' steps first: for long runs.", o.RUN, "--compile")] = False
    workers: o.Workers = None
    ray: o.Ray = None


@dataclass(frozen=True)
class Output:
    """What is written, and where."""

    jsonl: Annotated[Path | None, o.asked(JSONL, o.OUTPUT)] = None
    wait: o.Wait = False
    trace: Annotated[Path | None, o.asked("Record every draw and decision; see `multidraft replay`.", o.OUTPUT)] = None
    compare: Annotated[bool, o.asked("Also decode plainly, and as transformers drafts.", o.OUTPUT, "--compare")] = False
    as_json: o.Json = False

    def check(self, asked: Asked, *inputs: Path | str | None) -> None:
        """Raise on what a conversation cannot do, and where a file could not be written, or would replace an input."""
        told = {"--json": self.as_json, "--compare": self.compare, "--jsonl": self.jsonl, "--limit": asked.limit}
        for name in (name for name, given in told.items() if given and asked.talks):
            raise AdviceError(f"a conversation has no {name}; leave it out, or give --prompt or --prompts")
        files.check(self.trace, "--trace", inputs)
        files.check(self.jsonl, "--jsonl", inputs)
        if self.trace is not None and self.jsonl is not None and self.trace.resolve() == self.jsonl.resolve():
            raise AdviceError("--trace and --jsonl are one file; choose two")

    def folder(self, talks: bool) -> Path:
        """Where several workers' shards go; raises on what they cannot do together."""
        if self.jsonl is None:
            raise AdviceError("--workers and --ray write shards into a folder; name it by --jsonl FOLDER")
        for name, value in {"a conversation": talks, "--trace": self.trace, "--compare": self.compare}.items():
            if value:
                raise AdviceError(f"{name} is of one process; leave it out, or --workers and --ray")
        return self.jsonl


@o.grouped
def generate(named: o.Named, asked: Asked, sampling: Sampling, drafting: o.Drafting, run: Run, output: Output) -> None:
    """Continue prompts by multi-draft speculative decoding, with the pair that is installed or with yours."""
    chosen = [] if asked.talks else read_prompts(asked.prompt, asked.prompts, asked.limit)
    loader = Loader(named.engine, named.trust)
    loader.check()
    target, draft = usual(named.target, named.draft, loader.tells and not run.compiles)
    settings = asdict(drafting) | asdict(sampling) | {"compile": run.compiles}
    job = Job(target, draft, loader, chosen, asked.chat, run.batch, run.seed, settings)
    job.check()
    if (run.workers or 1) > 1 or run.ray is not None:
        folder = output.folder(asked.talks)
        with files.hold(folder, output.wait):
            return spread(job, folder, crew_of(run.workers, run.ray), output.as_json)
    output.check(asked, asked.prompts, named.target, named.draft, drafting.plan)
    with files.hold(output.jsonl, output.wait), files.hold(output.trace, output.wait):
        here(job, asked.talks, output, None in (named.target, named.draft))


def here(job: Job, talks: bool, output: Output, unnamed: bool) -> None:
    """Decode in this process, and report; where no models were named, say which were taken."""
    from multidraft.decoding.trace import TraceFile

    journal = job.journal(output.jsonl, job.prompts, compare=output.compare) if output.jsonl else None
    done, count = len(journal.records) if journal else 0, len(job.prompts)
    if done:
        terminal.note(f"{output.jsonl} has {done} of {count} prompts; going on with the others")
    if done and output.trace is not None and output.trace.exists():
        raise AdviceError(
            f"--trace {str(output.trace)!r} is of the prompts before, and would be lost; give another file"
        )
    pair, chosen, report = job.models, job.read(job.prompts), Report(job.manner, journal)
    if unnamed and not output.as_json:
        terminal.note(f"target {job.target}, draft {job.draft} (--target and --draft name others)")
    if output.trace is not None:
        facts = {"run": job.manner, "versions": machine.versions(), "hardware": machine.hardware()}
        job = replace(job, trace=TraceFile(output.trace, pair.tokenizer, facts))
    if talks:
        return converse(pair, lambda prompt: answer(pair, job, prompt))
    decode_all(pair, job, chosen[done:], report, output)
    report.print(output.as_json)
    if report.interrupted:
        raise KeyboardInterrupt(f"stopped after {done + report.complete} of {count} prompts")


def answer(pair: Models, job: Job, prompt: Prompt) -> tuple[str, str]:
    """An answer in a conversation, shown as it comes, and a summary."""
    texts = Texts(pair.tokenizer, [prompt], shows=True, heads=False)
    try:
        info = decode(pair, job, texts)[1]
    except KeyboardInterrupt:
        return texts.whole[0], "stopped"
    pace = f"{info.block_efficiency:.2f} a pass, {info.tokens_per_second:.1f} per second"
    return texts.whole[0], f"{info.tokens} tokens, {pace}"


def decode_all(pair: Models, job: Job, prompts: list[Prompt], report: Report, output: Output) -> None:
    """Decode all prompts; ways that are compared take turns, so that a noisy machine hits all alike."""
    from tqdm import tqdm

    shows, texts = not output.as_json, Texts(pair.tokenizer, [])
    if shows:
        terminal.legend()
    try:
        with tqdm(total=len(prompts), desc="decoding", unit="prompt", disable=shows) as bar:
            for first in range(0, len(prompts), job.batch):
                rows = prompts[first : first + job.batch]
                if not first:
                    short = replace(job, settings=job.settings | {"max_new_tokens": WARM_UP}, trace=None)
                    all_ways(pair, short, Texts(pair.tokenizer, rows), output.compare)
                texts = Texts(pair.tokenizer, rows, shows)
                report.add(rows, *all_ways(pair, job, texts, output.compare))
                texts = Texts(pair.tokenizer, [])
                bar.update(len(rows))
    except KeyboardInterrupt:
        report.interrupt(texts.rows, texts.whole)
    finally:
        if shows:
            terminal.show("\n")


def all_ways(
    pair: Models, job: Job, texts: Texts, compares: bool
) -> tuple[Decoded, Decoded | None, dict[str, tuple[int, float]]]:
    """A batch with drafts; to compare, plainly and in transformers' own ways to draft, too."""
    drafted = decode(pair, job, texts)
    if not compares:
        return drafted, None, {}
    plain, seed = decode(pair, job, Texts(pair.tokenizer, texts.rows), drafts=False), job.seed * SEEDS_APART
    ways = rivals(pair, job.settings, job.target)
    return drafted, plain, {name: rival(pair, texts.rows, job.settings, seed, way) for name, way in ways.items()}
