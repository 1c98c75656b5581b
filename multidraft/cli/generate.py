"""`multidraft generate`: continue prompts, show how each token came to be, and report how it went."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from multidraft.cli import compare as comparison
from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.chat import Session, check_session
from multidraft.cli.crews import crew_of
from multidraft.cli.decode import SEEDS_APART, Job, context, decode
from multidraft.cli.models import Loader, Models, load
from multidraft.cli.names import parse, usual
from multidraft.cli.prompts import Prompt, check_template, digest, encode, read_prompts
from multidraft.cli.report import Report
from multidraft.cli.terminal import Bar, Live
from multidraft.cli.workers import Shards, spread
from multidraft.errors import AdviceError
from multidraft.generation.defaults import SCHEME, TREE, TUNE_BUDGET
from multidraft.io import files
from multidraft.io.lock import hold

if TYPE_CHECKING:
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.io.journal import Journal

JSONL = (
    "Write each result as it comes; the same call goes on where one was stopped. With --workers, a folder of shards."
)
WARM_UP = 8  # tokens; the first forward passes are slow, and neither side of a comparison should pay for them


def sampling(text: str) -> Any:
    """An option of sampling."""
    return Option(help=text, rich_help_panel=o.SAMPLING)


def generate(
    target: o.Target = None,
    draft: o.Draft = None,
    engine: o.Engine = None,
    trust_remote_code: o.Trust = False,
    prompt: Annotated[str | None, Option(help="Text to continue.", rich_help_panel=o.PROMPTS)] = None,
    prompts: o.PromptFile = None,
    limit: o.Limit = None,
    chat: Annotated[
        bool,
        Option("--chat", help="Use the chat template; without a prompt, converse.", rich_help_panel=o.PROMPTS),
    ] = False,
    max_new_tokens: Annotated[int, Option(min=1, help="New tokens for each prompt.", rich_help_panel=o.SAMPLING)] = 128,
    temperature: Annotated[float, sampling("0 decodes greedily.")] = 1.0,
    top_k: Annotated[int | None, sampling("Sample from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, sampling("Sample from the smallest set that holds p.")] = None,
    min_p: Annotated[float | None, sampling("Sample from tokens at least p times as likely as the best.")] = None,
    repetition_penalty: Annotated[float | None, sampling("Above 1, tokens seen before become less likely.")] = None,
    draft_temperature: Annotated[float | None, sampling("Of the draft. Default: the temperature.")] = None,
    stop: Annotated[list[str] | None, sampling("Text that ends a row; may be repeated.")] = None,
    scheme: o.Scheme = SCHEME,
    tree: o.Tree = TREE,
    plan: o.Plan = None,
    tune_budget: o.TuneBudget = TUNE_BUDGET,
    walk: o.Walk = "deferred",
    batch: Annotated[int, Option(min=1, help="Prompts decoded side by side.", rich_help_panel=o.RUN)] = 1,
    seed: o.Seed = 0,
    compiles: Annotated[
        bool,
        Option("--compile", help="Compile both models' steps first: for long runs.", rich_help_panel=o.RUN),
    ] = False,
    workers: o.Workers = None,
    ray: o.Ray = None,
    jsonl: Annotated[Path | None, Option(help=JSONL, rich_help_panel=o.OUTPUT)] = None,
    wait: o.Wait = False,
    trace: Annotated[
        Path | None,
        Option(help="Record every draw and decision; see `multidraft replay`.", rich_help_panel=o.OUTPUT),
    ] = None,
    compare: Annotated[
        bool,
        Option(
            "--compare",
            help="Also decode plainly, and as transformers drafts.",
            rich_help_panel=o.OUTPUT,
        ),
    ] = False,
    as_json: o.Json = False,
) -> None:
    """Continue prompts by multi-draft speculative decoding, with the pair that is installed or with yours."""
    settings: dict[str, Any] = dict(scheme=scheme, tree=tree, walk=walk, max_new_tokens=max_new_tokens)
    settings |= dict(plan=plan, tune_budget=tune_budget)
    settings |= dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    settings |= dict(repetition_penalty=repetition_penalty, draft_temperature=draft_temperature, stop=stop)
    settings |= dict(compile=compiles)
    drafters = 1 if draft is None else len(parse(draft))
    job, loader = Job(batch, seed, compare, settings, drafts=drafters > 0), Loader(engine, trust_remote_code)
    talks = chat and prompt is prompts is None
    if talks:
        check_session({"--json": as_json, "--compare": compare, "--jsonl": jsonl, "--limit": limit})
    chosen = [] if talks else read_prompts(prompt, prompts, limit)
    loader.check()
    job.check(drafters)
    names = usual(target, draft)
    shards = Shards(*names, loader, chat, job, chosen)
    if (workers or 1) > 1 or ray is not None:
        folder = shared_folder(jsonl, {"a conversation": talks, "--trace": trace, "--compare": compare})
        with hold(folder, wait):
            return spread(shards, folder, crew_of(workers, ray), as_json)
    check_outputs(trace, jsonl, [prompts, target, draft, plan])
    chose = None if target or as_json else f"target {names[0]}, draft {names[1]} (--target and --draft name others)"
    with hold(jsonl, wait):
        here(shards, talks, trace, jsonl, as_json, chose)


def here(shards: Shards, talks: bool, trace: Path | None, jsonl: Path | None, as_json: bool, chose: str | None) -> None:
    """Decode in this process, and report; `chose` says which models were taken where none is named."""
    job, chosen = shards.job, shards.prompts
    names = {"target": shards.target, "draft": shards.draft}
    report = Report(names | job.settings | {"batch": job.batch, "seed": job.seed}, job.compare)
    journal = (
        None if jsonl is None else begun(jsonl, report.settings | shards.manner | {"compare": job.compare}, chosen)
    )
    if journal and journal.records and trace is not None and trace.exists():
        raise AdviceError(f"--trace {str(trace)!r} is of the prompts before, and would be lost; give another file")
    pair = load(shards.target, shards.draft, shards.loader)
    if shards.chat:
        check_template(pair.tokenizer, shards.target)
    encode(chosen, pair.tokenizer, context(pair), shards.chat)
    if chose:
        terminal.note(chose)
    if trace is not None:
        job = replace(job, trace=trace_file(trace, pair, report))
    if talks:
        return converse(pair, job)
    left = chosen[len(journal.records) if journal else 0 :]
    run(pair, job, left, report, as_json, journal)
    report.print(as_json)
    if report.interrupted:
        raise KeyboardInterrupt(f"stopped after {len(chosen) - len(left) + report.complete} of {len(chosen)} prompts")


def check_outputs(trace: Path | None, jsonl: Path | None, inputs: list[Path | str | None]) -> None:
    """Raise where a file could not be written, or would take the place of an input, before anything is loaded."""
    files.check(trace, "--trace", inputs)
    files.check(jsonl, "--jsonl", inputs)
    if trace is not None and jsonl is not None and trace.resolve() == jsonl.resolve():
        raise AdviceError("--trace and --jsonl are one file; choose two")


def shared_folder(jsonl: Path | None, others: dict[str, object]) -> Path:
    """Where several workers' shards go; raises on what they cannot do together."""
    if jsonl is None:
        raise AdviceError("--workers and --ray write shards into a folder; name it by --jsonl FOLDER")
    if wrong := [name for name, value in others.items() if value]:
        raise AdviceError(f"{wrong[0]} is of one process; leave it out, or --workers and --ray")
    return jsonl


def begun(path: Path, settings: dict[str, object], prompts: list[Prompt]) -> "Journal":
    """The results so far, and where to write the others; raises where they are of another run."""
    from multidraft.io.journal import Journal

    journal = Journal(path, {"results": "multidraft generate"} | settings | {"prompts": digest(prompts)})
    if journal.records:
        terminal.note(f"{path} has {len(journal.records)} of {len(prompts)} prompts; going on with the others")
    return journal


def converse(pair: Models, job: Job) -> None:
    """Answer what is said in the terminal."""
    Session(pair.tokenizer, context(pair), lambda said, screen: decode(pair, job, [said], screen=screen)).run()


def trace_file(path: Path, pair: Models, report: Report) -> "TraceFile":
    """A trace with what there is to say of the whole run."""
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.machine.identity import hardware, versions

    settings = {"run": report.settings, "versions": versions(), "hardware": hardware()}
    return TraceFile(path, pair.tokenizer, settings)


def run(
    pair: Models, job: Job, prompts: list[Prompt], report: Report, as_json: bool, journal: "Journal | None" = None
) -> None:
    """Decode all prompts; plain decoding takes its turn after each batch, so that a noisy machine hits both alike."""
    batches = [prompts[i : i + job.batch] for i in range(0, len(prompts), job.batch)]
    screen = Bar(len(prompts)) if as_json else Live()
    try:
        if batches:
            warm_up(pair, job, batches[0])
        for rows in batches:
            drafted = decode(pair, job, rows, screen=screen)
            plain = decode(pair, job, rows, drafts=False) if job.compare else None
            report.add(rows, drafted, plain, rivals(pair, job, rows))
            write(journal, report.records[-len(rows) :])
            screen.forget()
    except KeyboardInterrupt:
        report.interrupt(screen.rows, screen.texts)
        write(journal, report.records[report.complete :])
    finally:
        screen.close()


def write(journal: "Journal | None", records: list[dict[str, object]]) -> None:
    """A line for each of the results."""
    if journal is not None:
        for record in records:
            journal.append(record)


def warm_up(pair: Models, job: Job, rows: list[Prompt]) -> None:
    """Decode a few tokens on each side and throw them away."""
    short = replace(job, settings=job.settings | {"max_new_tokens": WARM_UP}, trace=None)
    decode(pair, short, rows)
    if job.compare:
        decode(pair, short, rows, drafts=False)
        rivals(pair, short, rows)


def rivals(pair: Models, job: Job, rows: list[Prompt]) -> dict[str, tuple[int, float]]:
    """Tokens and seconds of transformers' own ways to draft, where a comparison is wanted and it can be made."""
    ways = comparison.rivals(pair, job.settings) if job.compare else {}
    seed = job.seed * SEEDS_APART
    return {name: comparison.rival(pair, rows, job.settings, seed, way) for name, way in ways.items()}
