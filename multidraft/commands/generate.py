"""`multidraft generate`: continue prompts, show how each token came to be, and report how it went."""

import json
import time
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from multidraft.commands import compare as comparison
from multidraft.commands import terminal
from multidraft.commands.chat import Session, check_session, check_template, encode_chats
from multidraft.commands.drafters import HELP, Models, load, parse
from multidraft.commands.prompts import Prompt, encode, read_prompts
from multidraft.commands.report import Report
from multidraft.commands.screens import Bar, Live, Screen
from multidraft.errors import AdviceError, outputs
from multidraft.generation.defaults import SCHEME, TREE
from multidraft.generation.pieces import Pieces

if TYPE_CHECKING:
    from multidraft.decoding.metrics import Info
    from multidraft.decoding.state import Emitted
    from multidraft.studies.journal import Journal
    from multidraft.tracing.file import TraceFile
    from multidraft.zoo import Pair

MEASURED = 32  # prompts after which a pair is measured
WARM_UP = 8  # tokens; the first forward passes are slow, and neither side of a comparison should pay for them
SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class Job:
    """How to decode, and the part of it that `multidraft.generate` takes as it is."""

    batch: int
    seed: int
    compare: bool
    settings: dict[str, Any]
    trace: "TraceFile | None" = None

    def check(self, drafters: int) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.generation.inputs import check_drafters, limits_of, make_plan, plan_file, tree_or_fixed
        from multidraft.sampling.generation_config import check_settings
        from multidraft.sampling.settings import Sampling

        s, names = self.settings, ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        draft = s["draft_temperature"]
        if "" in (s["stop"] or ()):
            raise AdviceError("--stop is empty, which would end every row at once; give some text, or leave it out")
        plan_file(s["plan"], limits_of(s["tree"], s["scheme"]))
        tree = tree_or_fixed(s["tree"])
        plan = make_plan(s["scheme"], tree, s["walk"], Sampling(1.0 if draft is None else draft), False)
        check_drafters(plan.scheme, drafters > 1)
        check_settings({name: s[name] for name in names})


def generate(
    target: Annotated[str | None, Option(help="Target model: a folder or a hub name. Default: embedded.")] = None,
    draft: Annotated[str | None, Option(help=HELP)] = None,
    prompt: Annotated[str | None, Option(help="Text to continue.")] = None,
    prompts: Annotated[Path | None, Option(help='File with one {"id", "task", "prompt"} a line.')] = None,
    limit: Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.")] = None,
    jsonl: Annotated[
        Path | None, Option(help="Write each result as it comes; the same call goes on where one was stopped.")
    ] = None,
    scheme: Annotated[str, Option(help="Drafting law and rule; see `multidraft schemes`.")] = SCHEME,
    tree: Annotated[str, Option(help="auto: what pays; or 4x2x2x1, '8 paths of 4', a JSON list of paths.")] = TREE,
    plan: Annotated[str | None, Option(help="What `multidraft tune --out` has written, for --tree auto.")] = None,
    walk: Annotated[str, Option(help="How a tree is traversed: deferred, or commit as in the papers.")] = "deferred",
    temperature: Annotated[float, Option(help="0 decodes greedily.")] = 1.0,
    top_k: Annotated[int | None, Option(help="Sample from the k most likely tokens.")] = None,
    top_p: Annotated[float | None, Option(help="Sample from the smallest set that holds p.")] = None,
    min_p: Annotated[float | None, Option(help="Sample from tokens at least p times as likely as the best.")] = None,
    repetition_penalty: Annotated[float | None, Option(help="Above 1, tokens seen before become less likely.")] = None,
    draft_temperature: Annotated[float | None, Option(help="Default: the temperature.")] = None,
    stop: Annotated[list[str] | None, Option(help="Text that ends a row; may be repeated.")] = None,
    compile_draft: Annotated[
        bool, Option("--compile-draft", help="Compile the draft model's steps first: for long runs.")
    ] = False,
    max_new_tokens: Annotated[int, Option(min=1, help="New tokens for each prompt.")] = 128,
    batch: Annotated[int, Option(min=1, help="Prompts decoded side by side.")] = 1,
    seed: Annotated[int, Option(min=0, max=2**32, help="The same seed gives the same output.")] = 0,
    chat: Annotated[bool, Option("--chat", help="Use the chat template; without a prompt, converse.")] = False,
    trace: Annotated[Path | None, Option(help="Record every draw and decision; see `multidraft replay`.")] = None,
    compare: Annotated[bool, Option("--compare", help="Also decode plainly, and by assisted generation.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
) -> None:
    """Continue prompts by multi-draft speculative decoding, with the embedded pair of models or with yours."""
    settings: dict[str, Any] = dict(scheme=scheme, tree=tree, walk=walk, plan=plan, max_new_tokens=max_new_tokens)
    settings |= dict(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    settings |= dict(repetition_penalty=repetition_penalty, draft_temperature=draft_temperature, stop=stop)
    settings |= dict(compile_draft=compile_draft)
    job = Job(batch, seed, compare, settings)
    talks = chat and prompt is prompts is None
    if talks:
        check_session({"--json": as_json, "--compare": compare, "--jsonl": jsonl, "--limit": limit})
    chosen = [] if talks else read_prompts(prompt, prompts, limit)
    check_outputs(trace, jsonl, [prompts, target, draft, plan])
    job.check(len(parse(draft)))
    names = {"target": target or "embedded", "draft": draft or "embedded"}
    report = Report(names | settings | {"batch": batch, "seed": seed}, compare)
    journal = None if jsonl is None else begun(jsonl, report.settings | {"chat": chat, "compare": compare}, chosen)
    if journal and journal.records and trace is not None and trace.exists():
        raise AdviceError(f"--trace {str(trace)!r} is of the prompts before, and would be lost; give another file")
    pair = load(target, draft)
    if chat:
        check_template(pair.tokenizer, target)
        encode_chats(chosen, pair.tokenizer, context(pair))
    else:
        encode(chosen, pair.tokenizer, context(pair))
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
    outputs.check(trace, "--trace", inputs)
    outputs.check(jsonl, "--jsonl", inputs)
    if trace is not None and jsonl is not None and trace.resolve() == jsonl.resolve():
        raise AdviceError("--trace and --jsonl are one file; choose two")


def begun(path: Path, settings: dict[str, object], prompts: list[Prompt]) -> "Journal":
    """The results so far, and where to write the others; raises where they are of another run."""
    from multidraft.studies.journal import Journal

    asked = json.dumps([(prompt.id, prompt.task, prompt.text) for prompt in prompts])
    digest = sha256(asked.encode()).hexdigest()[:16]
    journal = Journal(path, {"results": "multidraft generate"} | settings | {"prompts": digest})
    if journal.records:
        terminal.note(f"{path} has {len(journal.records)} of {len(prompts)} prompts; going on with the others")
    return journal


def converse(pair: Models, job: Job) -> None:
    """Answer what is said in the terminal."""
    Session(pair.tokenizer, context(pair), lambda said, screen: decode(pair, job, [said], screen=screen)).run()


def trace_file(path: Path, pair: Models, report: Report) -> "TraceFile":
    """A trace with what there is to say of the whole run."""
    from multidraft.planning.machine import hardware, versions
    from multidraft.tracing.file import TraceFile

    settings = {"run": report.settings, "versions": versions(), "hardware": hardware()}
    return TraceFile(path, pair.tokenizer, settings)


def context(pair: "Models | Pair") -> int | None:
    """The longest sequence that both models can read."""
    from multidraft.generation.inputs import context_of

    return min((c for c in map(context_of, (pair.target, pair.draft)) if c is not None), default=None)


def run(
    pair: Models, job: Job, prompts: list[Prompt], report: Report, as_json: bool, journal: "Journal | None" = None
) -> None:
    """Decode all prompts; plain decoding takes its turn after each batch, so that a noisy machine hits both alike."""
    from multidraft.planning.making import using

    batches, threads = [prompts[i : i + job.batch] for i in range(0, len(prompts), job.batch)], None
    screen = Bar(len(prompts)) if as_json else Live()
    try:
        if batches:
            threads = threads_of(pair, job, prompts)
            warm_up(pair, job, batches[0])
        for rows in batches:
            drafted = decode(pair, job, rows, screen=screen)
            with using(threads):
                plain = decode(pair, job, rows, drafts=False) if job.compare else None
                report.add(rows, drafted, plain, assisted(pair, job, rows))
            write(journal, report.records[-len(rows) :])
            screen.forget()
    except KeyboardInterrupt:
        report.interrupt(screen.rows, screen.texts)
        write(journal, report.records[report.complete :])
    finally:
        screen.close()


def threads_of(pair: Models, job: Job, prompts: list[Prompt]) -> int | None:
    """The threads with which drafts are chosen, so that all sides decode with as many; measured after all prompts."""
    from multidraft.catalogue import scheme as scheme_named
    from multidraft.generation.inputs import as_drafter, limits_of, plan_file
    from multidraft.planning.keeping import plan_for
    from multidraft.planning.subject import Subject

    limits, draft = limits_of(job.settings["tree"], job.settings["scheme"]), as_drafter(pair.draft)
    if limits is None or draft is None:
        return None
    scheme, texts = scheme_named(job.settings["scheme"]), [prompt.tokens for prompt in prompts[:MEASURED]]
    subject = Subject(pair.target, draft, texts, scheme, job.settings["walk"])
    return plan_for(subject, plan_file(job.settings["plan"], limits)).threads


def write(journal: "Journal | None", records: list[dict[str, object]]) -> None:
    """A line for each of the results."""
    if journal is not None:
        for record in records:
            journal.append(record)


def warm_up(pair: Models, job: Job, rows: list[Prompt]) -> None:
    """Decode a few tokens on each side and throw them away."""
    short = Job(job.batch, job.seed, job.compare, job.settings | {"max_new_tokens": WARM_UP})
    decode(pair, short, rows)
    if job.compare:
        decode(pair, short, rows, drafts=False)
        assisted(pair, short, rows)


def assisted(pair: Models, job: Job, rows: list[Prompt]) -> tuple[int, float] | None:
    """Tokens and seconds of transformers' assisted generation, where a comparison is wanted and it can be made."""
    if not job.compare or not comparison.can_assist(pair, job.settings):
        return None
    return comparison.assisted(pair, rows, job.settings, job.seed * SEEDS_APART)


def decode(
    pair: Models, job: Job, rows: list[Prompt], drafts: bool = True, screen: Screen | None = None
) -> tuple[list[str], "Info"]:
    """One batch's texts and its report; the time that showing text takes is not counted as decoding."""
    import torch

    import multidraft as md

    screen = screen or Screen()
    texts = Texts(pair, rows, screen)
    generators = [torch.Generator().manual_seed(job.seed * SEEDS_APART + prompt.index) for prompt in rows]
    screen.begin(rows)
    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in rows],
        generator=generators,
        stream=texts,
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        **job.settings | {"compile_draft": drafts and job.settings["compile_draft"]},
    )
    info.watch.move(texts.seconds, "rest", "measuring")
    texts.close()
    screen.end(rows)
    return ["".join(pieces) for pieces in texts.texts], info


class Texts:
    """The text of every row of a batch, passed on to a screen as it grows."""

    def __init__(self, pair: Models, rows: list[Prompt], screen: Screen):
        self.readers = [Pieces(pair.tokenizer, prompt.tokens) for prompt in rows]
        self.texts: list[list[str]] = [[] for _ in rows]
        self.screen, self.seconds = screen, 0.0

    def __call__(self, row: int, emitted: "Emitted") -> None:
        start = time.perf_counter()
        for token, kind in zip(emitted.tokens, emitted.kinds, strict=True):
            self.put(row, self.readers[row].add(token), kind)
        self.seconds += time.perf_counter() - start

    def put(self, row: int, piece: str, kind: str) -> None:
        """Keep a piece and show it."""
        self.texts[row].append(piece)
        if piece:
            self.screen.show(row, piece, kind)

    def close(self) -> None:
        """Pass on what was held back."""
        for row, reader in enumerate(self.readers):
            self.put(row, reader.close(), "corrected")
