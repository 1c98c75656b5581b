"""`multidraft study acceptance | temperature | ..`: the papers' tables and figures on your pair, a command each."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from multidraft.cli import completion, terminal
from multidraft.cli import options as o
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.machine import hardware, versions
from multidraft_research.cli.capture import DEMO, PROMPTS, SHIPPED, Source, digest, make_capture
from multidraft_research.cli.executors import RAY_HELP, WORKERS_HELP, executor_of
from multidraft_research.cli.pretrained import TargetOption
from multidraft_research.studies import pictures
from multidraft_research.studies.listed import LISTED

if TYPE_CHECKING:
    from multidraft.io.journal import Journal, Record
    from multidraft_research.captures.folder import Capture
    from multidraft_research.cli.executors import Executor
    from multidraft_research.studies.running.results import Results
    from multidraft_research.studies.running.study import Study

DRAFT = "Draft model: a folder, hub name or GGUF file; several are compared, in the order given. Default: embedded."
RUN = "Folder of the run, runs/NAME by default; the same command goes on where it was stopped."
SCHEME = "A scheme to compare beside those of the study, as in mine:rule or module:rule,law=iid; may be repeated."
CAPTURE = "A folder of `multidraft capture`. Default: capture now, into the folder of the run."
QUICK = "A few tokens of each prompt: minutes with the embedded pair."
TOKENS, QUICK_TOKENS = 64, 8  # of each prompt
UNFIT, LONGEST = re.compile(r"[^\w.-]+"), 100  # in names of folders: characters, and how many


@dataclass(frozen=True)
class StudyRequest:
    """What all studies are told."""

    out: Path
    source: Source
    new_tokens: int
    seed: int
    executor: "Executor"
    capture: Path | None = None
    quick: bool = False
    drafts: Sequence[str] = ()  # where there are several, the source has the first of them
    schemes: Sequence[str] = ()  # beside those that a study compares
    wait: bool = False  # for another run that writes to the same place

    def check(self) -> None:
        """Raise on two sources, and where nothing can be written."""
        if self.capture is not None and (self.source.target or self.source.draft):
            raise AdviceError("--capture and --target or --draft are two sources; give one")
        if len(self.drafts) > 1 and self.source.target is None:
            raise AdviceError("several drafts come without --target; name it, too (`--target embedded` is one)")
        check_schemes(self.schemes)
        files.make_folder(self.out, "--out")
        pictures.check(self.out / "picture.png")

    def of(self, draft: str) -> "StudyRequest":
        """What is asked of one draft alone, in a folder of its own."""
        out = self.out / UNFIT.sub("-", draft)[-LONGEST:].strip("-.")
        files.make_folder(out, "--out")
        return replace(self, out=out, source=replace(self.source, draft=draft), drafts=())


def command(name: str, about: str, do: Callable[[StudyRequest, bool], None]) -> Callable[..., None]:
    """A command that has the options of all studies."""

    def study(
        out: Annotated[Path | None, Option(help=RUN)] = None,
        capture: Annotated[Path | None, Option(help=CAPTURE)] = None,
        target: TargetOption = None,
        draft: Annotated[list[str] | None, Option(help=DRAFT, autocompletion=completion.drafts)] = None,
        scheme: Annotated[list[str] | None, Option(help=SCHEME, autocompletion=completion.schemes)] = None,
        prompts: Annotated[Path, Option(help=PROMPTS, show_default=SHIPPED)] = DEMO,
        limit: Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.")] = None,
        max_new_tokens: Annotated[int | None, Option(min=1, help=f"Of each prompt. Default: {TOKENS}.")] = None,
        seed: Annotated[int, Option(min=0, max=2**32)] = 0,
        workers: Annotated[int | None, Option(min=1, max=1024, help=WORKERS_HELP)] = None,
        ray: Annotated[str | None, Option(help=RAY_HELP)] = None,
        quick: Annotated[bool, Option("--quick", help=QUICK)] = False,
        wait: o.Wait = False,
        as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
    ) -> None:
        drafts = list(dict.fromkeys(draft or []))
        source = Source(target, drafts[0] if drafts else None, prompts, limit)
        tokens = max_new_tokens or (QUICK_TOKENS if quick else TOKENS)
        executor, schemes = executor_of(workers, ray), list(dict.fromkeys(scheme or []))
        request = StudyRequest(
            out or Path("runs") / name, source, tokens, seed, executor, capture, quick, drafts, schemes, wait
        )
        request.check()
        do(request, as_json)

    study.__doc__ = about
    return study


def command_of_study(name: str) -> Callable[..., None]:
    """The command of one study."""

    def measure_and_print(request: StudyRequest, as_json: bool) -> None:
        if request.schemes and not LISTED[name].study().compares:
            raise AdviceError(f"the study {name} compares no schemes; leave out --scheme")
        show(compare_drafts(name, request), as_json)

    return command(name, LISTED[name].about, measure_and_print)


def check_schemes(names: Sequence[str]) -> None:
    """Raise, before anything is measured, on a scheme that is none."""
    if names:
        from multidraft.verification.registry import scheme

        for name in names:
            scheme(name)


def schemes_for(name: str, request: StudyRequest) -> list[str]:
    """The schemes that a study is to compare beside its own; none for one that compares no schemes."""
    return list(request.schemes) if LISTED[name].study().compares else []


def compare_drafts(name: str, request: StudyRequest) -> "Results":
    """The results; of several drafts, those of each are in folders of their own, and all of them in one table."""
    from multidraft_research.studies.running.side_by_side import join_results

    if len(request.drafts) < 2:
        return measure_study(name, request)
    return write_results(
        name, join_results({draft: measure_study(name, request.of(draft)) for draft in request.drafts}), request.out
    )


def measure_study(name: str, request: StudyRequest) -> "Results":
    """Measure what is missing, and write the tables and the picture."""
    study = LISTED[name].study()
    measure = study.on_models or study.on_capture
    work, jobs, journal = (on_models if study.on_models else on_capture)(name, measure, request)
    finish(name, work, jobs, journal, request)
    return write_records(name, LISTED[name].about, study, journal.records, journal.settings, request.out)


def finish(name: str, work: Any, jobs: int, journal: "Journal", request: StudyRequest) -> None:
    """Do the jobs that a journal has not."""
    from multidraft_research.cli.executors import run

    try:
        run(work, jobs, journal, request.executor, name)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"stopped; {journal.path} keeps what is done, and the same command goes on") from None


def write_records(
    name: str, about: str, study: "Study", records: "list[Record]", settings: dict[str, Any], folder: Path
) -> "Results":
    """What the records of a study say, as files too."""
    from multidraft_research.studies.running.results import Results

    return write_results(
        name, Results.of(study, records, {"name": name, "about": about, "paper": study.paper} | settings), folder
    )


def write_results(name: str, results: "Results", folder: Path) -> "Results":
    """The results, written: their numbers and their picture."""
    terminal.write_json(folder / f"{name}.json", results.as_data())
    results.draw(folder, name)
    return results


def on_capture(name: str, measure: Any, request: StudyRequest) -> "tuple[Any, int, Journal]":
    """The jobs of a study that needs no more than logits, one for each prompt of a capture."""
    from multidraft.io.journal import Journal
    from multidraft_research.studies.running.work import OverCapture

    capture = captured_for(request)
    check_drafts(name, capture)
    facts: dict[str, Any] = {"study": name, "capture": capture.fingerprint, "positions": capture.positions}
    facts |= {part: capture.settings.get(part) for part in ("target", "draft", "top_k")}
    facts |= {"seed": request.seed} | further(name, request) | versions("scipy", "ortools")
    journal = Journal(request.out / f"{name}.jsonl", facts, request.wait)
    work = OverCapture(measure, capture.folder.absolute(), request.seed, schemes_for(name, request))
    return work, len(capture.entries), journal


def further(name: str, request: StudyRequest) -> dict[str, Any]:
    """What the results depend on, too, where schemes were added."""
    schemes = schemes_for(name, request)
    return {"schemes": schemes} if schemes else {}


def check_drafts(name: str, capture: "Capture") -> None:
    """Raise where a study drafts more tokens at a node than a capture has kept there."""
    needed, kept = LISTED[name].study().drafts, capture.settings.get("top_k") or capture.vocabulary
    if needed > kept:
        raise AdviceError(
            f"the study {name} makes up to {needed} drafts at a node, and the capture has {kept} tokens there; "
            f"capture with --top-k {needed} or more, or with a larger vocabulary"
        )


def captured_for(request: StudyRequest) -> "Capture":
    """The capture that was given, or one in the folder of the run."""
    from multidraft_research.captures.capturing import Manner
    from multidraft_research.captures.folder import Capture

    if request.capture is not None:
        return Capture.open(request.capture)
    manner = Manner(request.new_tokens, seed=request.seed)
    return make_capture(request.source, manner, request.out / "capture", request.executor, request.wait)


def on_models(name: str, measure: Any, request: StudyRequest) -> "tuple[Any, int, Journal]":
    """The jobs of a study that decodes, one for each prompt."""
    from multidraft.io.journal import Journal
    from multidraft_research.captures.work import Passage
    from multidraft_research.studies.running.work import OverModels

    if request.capture is not None:
        raise AdviceError(f"the study {name} decodes with models; give --target and --draft instead of --capture")
    _, chosen = request.source.read()
    facts: dict[str, Any] = {"study": name} | request.source.names
    facts |= {"prompts": len(chosen), "prompts_digest": digest(chosen)}
    facts |= {"new_tokens": request.new_tokens, "seed": request.seed} | further(name, request) | versions() | hardware()
    journal = Journal(request.out / f"{name}.jsonl", facts, request.wait)
    passages = [Passage(prompt.id, prompt.task, prompt.tokens) for prompt in chosen]
    schemes = schemes_for(name, request)
    work = OverModels(measure, request.source.load, passages, request.new_tokens, request.seed, schemes)
    return work, len(passages), journal


def show(results: "Results", as_json: bool) -> None:
    """Tables for people, or one JSON object."""
    if as_json:
        return terminal.print_json(results.as_data())
    for title, head, rows in results.printed_tables():
        typer.echo(title)
        terminal.print_table(head, rows, numbers=True)
