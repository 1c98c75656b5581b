"""`multidraft acceptance`: how often drafts are accepted, beside the best that is possible."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from multidraft.cli import completion, terminal
from multidraft.errors import AdviceError
from multidraft_research.cli.capture import DEMO, PROMPTS, SHIPPED, Source, record_pair
from multidraft_research.cli.pretrained import DraftOption, TargetOption

if TYPE_CHECKING:
    from multidraft_research.captures.recording import Recording
    from multidraft_research.studies.acceptance import RateLine

SCHEME = "Only this scheme, of the list or of yours, as in module:rule,law=iid; may be repeated. Default: all."


def acceptance(
    capture: Annotated[Path | None, Option(help="A folder of `multidraft capture`. Default: record now.")] = None,
    random: Annotated[int, Option(min=0, max=10_000, help="Use N random pairs of 4096 tokens instead.")] = 0,
    target: TargetOption = None,
    draft: DraftOption = None,
    prompts: Annotated[Path, Option(help=PROMPTS, show_default=SHIPPED)] = DEMO,
    limit: Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.")] = None,
    max_new_tokens: Annotated[int, Option(min=1, help="Positions for each prompt.")] = 64,
    temperature: Annotated[list[float] | None, Option(min=0, help="May be repeated. Default: 0.3, 0.7, 1.")] = None,
    drafts: Annotated[list[int] | None, Option(min=1, max=64, help="May be repeated. Default: 2, 3, 4, 8.")] = None,
    scheme: Annotated[list[str] | None, Option(help=SCHEME, autocompletion=completion.schemes)] = None,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
) -> None:
    """Compare the acceptance rate of every scheme with the optimum of its drafts."""
    from multidraft_research.captures.folder import Capture
    from multidraft_research.studies.acceptance import cases, random_pairs

    temperatures, counts = temperature or [0.3, 0.7, 1.0], drafts or [2, 3, 4, 8]
    check(random, capture, target or draft, temperatures)
    jobs = cases(temperatures, counts, scheme or [])
    if not jobs:
        raise AdviceError("no scheme is left: it takes another number of drafts, or several draft models")
    if random:
        pairs, source = random_pairs(random, 4096, seed), f"{random} random pairs"
    elif capture is not None:
        pairs, source = Capture.open(capture).recording(), str(capture)
    else:
        pairs, source = (
            record_pair(Source(target, draft, prompts, limit), max_new_tokens, seed),
            target or "embedded pair",
        )
    report(
        measure_lines(pairs, jobs, seed),
        temperatures,
        counts,
        source,
        len(pairs.target),
        as_json,
    )


def check(random: int, capture: Path | None, model: str | None, temperatures: list[float]) -> None:
    """Raise on temperatures that make no distribution, and unless there is one source of pairs."""
    from multidraft.sampling.params import check as check_setting

    named = {"--random": random, "--capture": capture, "--target or --draft": model}
    named_options = [name for name, value in named.items() if value]
    if len(named_options) > 1:
        raise AdviceError(f"{' and '.join(named_options)} are two sources of distributions; give one")
    for temperature in temperatures:
        check_setting("temperature", temperature, "--temperature")


def measure_lines(pairs: "Recording", jobs: list[tuple[str, float, int]], seed: int) -> "list[RateLine]":
    """All lines of the table, with a progress bar; a scheme that fails is left out, unless there is no other."""
    from tqdm import tqdm

    from multidraft_research.studies.acceptance import RateLine, measure

    lines, failures = list[RateLine](), dict[str, AdviceError]()
    for job in tqdm(jobs, desc="measuring", unit="case"):
        try:
            lines += [] if job[0] in failures else measure(pairs, [job], seed)
        except AdviceError as error:
            failures[job[0]] = error
    for name, failure in failures.items():
        if not lines:
            raise failure
        terminal.note(f"{name} is left out: {failure}")
    return lines


def report(
    lines: "list[RateLine]", temperatures: list[float], counts: list[int], source: str, positions: int, as_json: bool
) -> None:
    """A table with a scheme a row, `acceptance / optimum` in percent; or JSON."""
    if as_json:
        return terminal.print_json(
            {"source": source, "positions": positions, "results": [asdict(line) for line in lines]}
        )
    cells = {(li.scheme, li.temperature, li.drafts): li for li in lines}
    columns = [(t, n) for t in temperatures for n in counts]
    rows = [[name, *(cell(cells.get((name, t, n))) for t, n in columns)] for name in dict.fromkeys(c[0] for c in cells)]
    terminal.note(f"acceptance / optimum of the drafts in percent, {positions} positions of {source}")
    terminal.print_table(["scheme", *(f"T={t:g} n={n}" for t, n in columns)], rows)


def cell(line: "RateLine | None") -> str:
    """One entry of the table."""
    if line is None:
        return ""
    optimum = line.optimal_acceptance_rate
    return f"{100 * line.acceptance_rate:.1f} / {'unknown' if optimum is None else f'{100 * optimum:.1f}'}"
