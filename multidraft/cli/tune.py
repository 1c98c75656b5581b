"""`multidraft tune`: measure a pair on this machine, show what pays, and keep it for `--tree auto`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from multidraft.cli import terminal
from multidraft.cli.decode import context
from multidraft.cli.models import Models, load
from multidraft.cli.names import DRAFT, TARGET, parse
from multidraft.cli.prompts import DEMO, encode, read_prompts
from multidraft.errors import AdviceError
from multidraft.generation.defaults import SCHEME
from multidraft.io import files

if TYPE_CHECKING:
    from multidraft_research.studies.tuning import Line

    from multidraft.autotune.pair_plan import PairPlan

STEPS, QUICK = 240, 24  # steps of every line that is measured, from prompts by turns
DEFAULT = [0.0, 0.7, 1.0]


def tune(
    target: Annotated[str | None, Option(help=TARGET)] = None,
    draft: Annotated[str | None, Option(help=DRAFT)] = None,
    prompt: Annotated[str | None, Option(help="Text to measure with.")] = None,
    prompts: Annotated[Path | None, Option(help='File with one {"id", "task", "prompt"} a line.')] = None,
    limit: Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.")] = None,
    scheme: Annotated[str, Option(help="Drafting law and rule; see `multidraft schemes`.")] = SCHEME,
    walk: Annotated[str, Option(help="How a tree is traversed: deferred, or commit as in the papers.")] = "deferred",
    temperature: Annotated[list[float] | None, Option(help="May be repeated. Default: 0, 0.7, 1.")] = None,
    quick: Annotated[bool, Option("--quick", help="Fewer steps for every line of the table.")] = False,
    out: Annotated[Path | None, Option(help="Write the plan here, for --plan.")] = None,
    plot: Annotated[Path | None, Option(help="Draw costs, acceptance, speeds: .svg, .png or .pdf.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
) -> None:
    """Measure what drafting costs and gives for a pair on this machine, and which tree pays."""
    checked(out, plot, [prompts, target, draft], temperature or [], scheme, walk, len(parse(draft)))
    chosen = read_prompts(prompt, prompts if prompt or prompts else DEMO, limit)
    pair = load(target, draft)
    if pair.draft is None:
        raise AdviceError("--draft none leaves nothing to tune; name a draft model")
    encode(chosen, pair.tokenizer, context(pair))
    plan, lines = measure(pair, [one.tokens for one in chosen], scheme, walk, temperature or DEFAULT, quick)
    if out is not None:
        files.write(out, plan.as_json().encode())
        terminal.note(f"wrote {out}")
    if plot is not None:
        from multidraft_research.studies.tuning_picture import draw

        draw(plan, lines, plot)
    terminal.print_json(as_data(plan, lines)) if as_json else show(plan, lines)


def checked(
    out: Path | None,
    plot: Path | None,
    inputs: list[Any],
    temperatures: list[float],
    scheme: str,
    walk: str,
    drafters: int,
) -> None:
    """Raise on what cannot work, before anything is loaded."""
    from multidraft_research.studies import pictures

    from multidraft.generation.inputs import check_drafters, limits_of, make_plan
    from multidraft.sampling.settings import Sampling

    files.check(out, "--out", inputs)
    if plot is not None:
        pictures.check(plot, [*inputs, out])
    for temperature in temperatures:
        Sampling(temperature)
    check_drafters(make_plan(scheme, "1", walk, Sampling(), False).scheme, drafters > 1)
    if limits_of("auto", scheme) is None:
        raise AdviceError(
            f"{scheme} leaves no choice of trees; tune a scheme of one draft model and any number of drafts"
        )


def measure(
    pair: Models, prompts: list[list[int]], scheme: str, walk: str, temperatures: list[float], quick: bool
) -> "tuple[PairPlan, list[Line]]":
    """The plan, made anew and kept, and what it predicts beside what is measured."""
    from multidraft_research.studies.tuning import compare, work
    from tqdm import tqdm

    import multidraft as md
    from multidraft.autotune.keeping import made_and_kept, place
    from multidraft.autotune.subject import Subject

    assert pair.draft is not None  # `tune` has checked
    subject = Subject(pair.target, pair.draft, prompts, md.scheme(scheme), walk)
    plan = made_and_kept(subject, place(subject.identity))
    steps = QUICK if quick else STEPS
    with tqdm(total=work(plan, temperatures, steps), desc="comparing", leave=False) as bar:
        return plan, compare(subject, plan, temperatures, steps, bar.update)


def show(plan: "PairPlan", lines: "list[Line]") -> None:
    """Tables for people."""
    one = plan.costs.at(1)
    sizes = (1, 2, 4, 8, 16, 32)
    terminal.print_table(
        ["milliseconds of", *map(str, sizes)],
        [
            ["a target pass over so many tokens", *(f"{1e3 * one.target(size):.2f}" for size in sizes)],
            ["a level of drafts at so many nodes", *(f"{1e3 * (one.level(size) + one.draw):.2f}" for size in sizes)],
        ],
    )
    terminal.print_table(
        ["acceptance at T", *(f"{n} drafts" for n in (1, 2, 3, 4, 8)), "by depth beyond that", "growing over fixed"],
        [
            [
                f"{own.temperature:g}",
                *(f"{own.rates.acceptance[n][0]:.3f}" for n in (1, 2, 3, 4, 8)),
                " ".join(f"{factor:.2f}" for factor in own.rates.factors),
                f"{own.growing:.3f} ± {own.noise:.3f}",
            ]
            for own in plan.acceptance
        ],
    )
    terminal.print_table(
        ["best draft_probability of one draft, at T", *(f"{rows} rows (tokens a second)" for rows in plan.costs.rows)],
        [
            [f"{own.temperature:g}", *(best(plan, own.temperature, rows) for rows in plan.costs.rows)]
            for own in plan.acceptance
        ],
    )
    terminal.print_table(
        ["T", "tree", "tokens a step", "predicted", "tokens a second", "predicted", "ratio"],
        [
            [
                f"{line.temperature:g}",
                line.tree,
                *(f"{value:.2f}" for value in (line.tokens, line.predicted_tokens)),
                *(f"{value:.1f}" for value in (line.speed, line.predicted_speed)),
                f"{line.speed / line.predicted_speed:.2f}",
            ]
            for line in lines
        ],
    )
    terminal.note(f"{plan.threads} threads; `multidraft generate --tree auto` will go by this")


def best(plan: "PairPlan", temperature: float, rows: int) -> str:
    """The best draft probability and what it gives, in words."""
    probability, speed = plan.best_draft_probability(temperature, rows)
    return f"{probability:g} ({speed:.0f})"


def as_data(plan: "PairPlan", lines: "list[Line]") -> dict[str, object]:
    """The same for machines."""
    return {"plan": json.loads(plan.as_json()), "lines": [asdict(line) for line in lines]}
