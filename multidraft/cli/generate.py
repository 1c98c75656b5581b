"""`multidraft generate`: continue prompts, show how each token came to be, and report how it went."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from multidraft.cli import compare, terminal
from multidraft.cli import options as o
from multidraft.cli.chat import Session, check_session
from multidraft.cli.crews import crew_of
from multidraft.cli.decode import SEEDS_APART, Decoded, Job, context, decode
from multidraft.cli.models import Loader, Models, usual
from multidraft.cli.prompts import Prompt, digest, read_prompts
from multidraft.cli.report import Report
from multidraft.cli.terminal import Live, Screen
from multidraft.cli.workers import Shards, spread
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.io.lock import hold

if TYPE_CHECKING:
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.io.journal import Journal

JSONL = (
    "Write each result as it comes; the same call goes on where one was stopped. With --workers, a folder of shards."
)
Rivals = dict[str, tuple[int, float]]  # tokens and seconds, by name
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

    def check(self, inputs: list[Path | str | None]) -> None:
        """Raise where a file could not be written, or would take the place of an input, before anything is loaded."""
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
    if asked.talks:
        told = {"--json": output.as_json, "--compare": output.compare, "--jsonl": output.jsonl}
        check_session(told | {"--limit": asked.limit})
    chosen = [] if asked.talks else read_prompts(asked.prompt, asked.prompts, asked.limit)
    loader = Loader(named.engine, named.trust)
    loader.check()
    target, draft = usual(named.target, named.draft)
    settings = asdict(drafting) | asdict(sampling) | {"compile": run.compiles}
    job = Job(draft, run.batch, run.seed, output.compare, settings)
    job.check()
    shards = Shards(target, loader, asked.chat, job, chosen)
    if (run.workers or 1) > 1 or run.ray is not None:
        folder = output.folder(asked.talks)
        with hold(folder, output.wait):
            return spread(shards, folder, crew_of(run.workers, run.ray), output.as_json)
    output.check([asked.prompts, named.target, named.draft, drafting.plan])
    with hold(output.jsonl, output.wait), hold(output.trace, output.wait):
        here(shards, asked.talks, output, named.target is None)


def here(shards: Shards, talks: bool, output: Output, unnamed: bool) -> None:
    """Decode in this process, and report; where no models were named, say which were taken."""
    job, report = shards.job, Report(shards.manner, output.compare)
    journal = None if output.jsonl is None else begun(output.jsonl, shards)
    done = len(journal.records) if journal else 0
    if done and output.trace is not None and output.trace.exists():
        raise AdviceError(
            f"--trace {str(output.trace)!r} is of the prompts before, and would be lost; give another file"
        )
    pair, chosen = shards.models, shards.read(shards.prompts)
    if unnamed and not output.as_json:
        terminal.note(f"target {shards.target}, draft {job.draft} (--target and --draft name others)")
    if output.trace is not None:
        job = replace(job, trace=trace_file(output.trace, pair, report))
    if talks:
        return Session(
            pair.tokenizer, context(pair), lambda said, screen: decode(pair, job, [said], screen=screen)
        ).run()
    run_all(pair, job, chosen[done:], report, Screen() if output.as_json else Live(), journal)
    report.print(output.as_json)
    if report.interrupted:
        raise KeyboardInterrupt(f"stopped after {done + report.complete} of {len(chosen)} prompts")


def begun(path: Path, shards: Shards) -> "Journal":
    """The results so far, and where to write the others; raises where they are of another run."""
    from multidraft.io.journal import Journal

    own = {"results": "multidraft generate", "compare": shards.job.compare, "prompts": digest(shards.prompts)}
    journal = Journal(path, shards.manner | shards.loading | own)
    if journal.records:
        terminal.note(f"{path} has {len(journal.records)} of {len(shards.prompts)} prompts; going on with the others")
    return journal


def trace_file(path: Path, pair: Models, report: Report) -> "TraceFile":
    """A trace with what there is to say of the whole run."""
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.machine import hardware, versions

    return TraceFile(path, pair.tokenizer, {"run": report.settings, "versions": versions(), "hardware": hardware()})


def run_all(
    pair: Models, job: Job, prompts: list[Prompt], report: Report, screen: Screen, journal: "Journal | None"
) -> None:
    """Decode all prompts; plain decoding takes its turn after each batch, so that a noisy machine hits both alike."""
    from tqdm import tqdm

    def keep(records: list[dict[str, object]]) -> None:
        if journal is not None:
            for record in records:
                journal.append(record)

    bar = tqdm(total=len(prompts), desc="decoding", unit="prompt", disable=isinstance(screen, Live))
    try:
        for first in range(0, len(prompts), job.batch):
            rows = prompts[first : first + job.batch]
            if not first:
                short = replace(job, settings=job.settings | {"max_new_tokens": WARM_UP}, trace=None)
                all_ways(pair, short, rows, Screen())
            report.add(rows, *all_ways(pair, job, rows, screen))
            keep(report.records[-len(rows) :])
            screen.forget()
            bar.update(len(rows))
    except KeyboardInterrupt:
        report.interrupt(screen.rows, screen.texts)
        keep(report.records[report.complete :])
    finally:
        bar.close()
        screen.close()


def all_ways(pair: Models, job: Job, rows: list[Prompt], screen: Screen) -> tuple[Decoded, Decoded | None, Rivals]:
    """A batch with drafts, plainly, and in transformers' own ways to draft: these where a comparison is wanted."""
    drafted = decode(pair, job, rows, screen=screen)
    if not job.compare:
        return drafted, None, {}
    plain, seed = decode(pair, job, rows, drafts=False), job.seed * SEEDS_APART
    ways = compare.rivals(pair, job.settings)
    return drafted, plain, {name: compare.rival(pair, rows, job.settings, seed, way) for name, way in ways.items()}
