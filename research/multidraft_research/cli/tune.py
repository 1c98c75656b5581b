"""`multidraft tune`: measure a pair on this machine, show which trees are fastest, and save that for `--tree auto`."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.drafter_names import NONE, parse
from multidraft.cli.engines import Loader
from multidraft.cli.pair import check_names, default_engine, default_pair, load
from multidraft.cli.prompts import DEMO, encode, read_prompts
from multidraft.cli.run_report import BUSY_NOTE
from multidraft.errors import AdviceError
from multidraft.generation import DEFAULT_SCHEME
from multidraft.io import files
from multidraft.machine import is_busy
from multidraft_research.cli import what_if
from multidraft_research.tuning.plan_picture import Speeds, draw
from multidraft_research.tuning.tree_speeds import tree_speeds, what_pays

if TYPE_CHECKING:
    from multidraft.autotune.plans import MeasuredPair, Profile
    from multidraft_research.tuning.measuring import TreeLine

STEPS, QUICK_STEPS = 240, 24  # measured for every line of the table, over all prompts in turn
BUDGET_SECONDS, MEASURING_SHARE = 60.0, 0.5  # of the budget; the rest is for the table
TEMPERATURES, ROWS = [0.0, 0.7, 1.0], [1, 4, 16]
DRAFTER_SHARE = 0.02
DRAFT_COUNTS = (1, 2, 3, 4, 8)
COST_NAMES = (
    "a step without drafts",
    "a step with drafts, beside what follows",
    "each drafted node",
    "each level of drafts",
    "each node that the draft model reads",
)
COMPARISON_COLUMNS = ["T", "tree", "tokens a step", "predicted", "tokens a second", "predicted", "times plain"]
WHAT_IF_HELP = (
    "Without a drafter: time the target's passes, and print which tree would pay if a draft were accepted so often, "
    "from 0 to 1. May be repeated."
)
DRAFTER_SHARE_HELP = "For --what-if: what a level of drafts costs, as a share of the target's pass."


@o.flatten_options
def tune(
    models: o.ModelOptions,
    prompt: Annotated[str | None, Option(help="Text to measure with.")] = None,
    prompts: Annotated[Path | None, Option(help=o.FILE_HELP)] = None,
    limit: o.Limit = None,
    scheme: o.SchemeName = DEFAULT_SCHEME,
    walk: o.WalkName = "deferred",
    temperature: Annotated[list[float] | None, Option(help="May be repeated. Default: 0, 0.7, 1.")] = None,
    rows: Annotated[
        list[int] | None, Option(min=1, help="Prompts side by side; may be repeated. Default: 1, 4, 16.")
    ] = None,
    budget: Annotated[
        float, Option(min=0, help="Seconds for all of it; the same command measures on.")
    ] = BUDGET_SECONDS,
    quick: Annotated[bool, Option("--quick", help="Fewer steps for every line of the table.")] = False,
    out: Annotated[Path | None, Option(help="Write the plan here, for --plan.")] = None,
    plot: Annotated[Path | None, Option(help="Draw costs, acceptance, speeds: .svg, .png or .pdf.")] = None,
    wait: o.Wait = False,
    as_json: o.JsonFlag = False,
    acceptances: Annotated[list[float] | None, Option("--what-if", help=WHAT_IF_HELP)] = None,
    drafter_share: Annotated[float, Option(help=DRAFTER_SHARE_HELP)] = DRAFTER_SHARE,
) -> None:
    """Measure the costs and acceptance of drafting for a pair on this machine, and which tree is fastest."""
    from multidraft.sampling.params import check

    engine = models.named_engine or default_engine(models.target, models.draft)
    loader = Loader(engine, models.trust, models.revision, models.corpus)
    loader.check()
    if acceptances:
        needs_drafter = {
            "--draft": models.draft,
            "--corpus": models.corpus,
            "--prompt": prompt,
            "--prompts": prompts,
            "--out": out,
            "--plot": plot,
        }
        what_if.check(acceptances, drafter_share, needs_drafter)
        target = default_pair(models.target, NONE)[0]
        return what_if.tell(target, loader, acceptances, drafter_share, budget, as_json)
    o.check_drafting(scheme, "auto", None)
    temperatures = temperature or TEMPERATURES
    files.check(out, "--out", [prompts, models.target, models.draft])
    if plot is not None:
        files.check_picture(plot, [prompts, models.target, models.draft, out])
    for value in temperatures:
        check("temperature", value)
    check_names(*default_pair(models.target, models.draft, loader.heads_pay), engine, models.corpus)
    entries = read_prompts(prompt, prompts if prompt or prompts else DEMO, limit)

    import multidraft as md
    from multidraft.autotune.plans import MeasuredPair, profile_for
    from multidraft.generation.inputs import resolve_config
    from multidraft.models.user_models import as_reader

    if resolve_config(scheme, "auto", walk, None, max(len(parse(models.draft)), 1))[2] is None:
        raise AdviceError(
            f"{scheme} allows no choice of trees; tune a scheme of one draft model and any number of drafts"
        )
    pair = load(models.target, models.draft, loader)
    if pair.draft is None:
        raise AdviceError("--draft none leaves nothing to tune; name a draft model")
    encode(entries, pair)
    readers = as_reader(pair.target), as_reader(pair.draft)
    subject = MeasuredPair(*readers, md.scheme(scheme), walk, [entry.tokens for entry in entries])
    with files.hold(out, wait):
        profile, was_busy = profile_for(subject), is_busy()
        try:
            measure(subject, profile, temperatures, rows or ROWS, MEASURING_SHARE * budget)
        finally:  # also of a run that is stopped
            keep(profile, {}, out, plot)
        if not profile.timed_rows:
            raise AdviceError("nothing has been measured; give a larger --budget")
        steps = QUICK_STEPS if quick else STEPS
        speeds = tree_speeds(compare(subject, profile, temperatures, steps, (1 - MEASURING_SHARE) * budget))
        keep(profile, speeds, None, plot)
    was_busy |= is_busy()
    if as_json:
        measured = [speed.as_dict(was_busy) for group in speeds.values() for speed in group]
        return terminal.print_json({"plan": json.loads(profile.as_json()), "busy": was_busy, "lines": measured})
    show(profile, speeds, was_busy)


def measure(
    subject: "MeasuredPair", profile: "Profile", temperatures: list[float], rows: list[int], budget: float
) -> None:
    """Measure on, and save the profile."""
    from tqdm import tqdm

    from multidraft_research.tuning import measuring

    with tqdm(total=budget, desc="measuring", bar_format=what_if.BAR_FORMAT, leave=False) as bar:
        tick = lambda spent: bar.update(min(spent, budget - bar.n))  # noqa: E731
        measuring.measure(subject, profile, budget, temperatures, rows, tick)


def compare(
    subject: "MeasuredPair", profile: "Profile", temperatures: list[float], steps: int, budget: float
) -> "list[TreeLine]":
    """Predicted and measured speeds."""
    from tqdm import tqdm

    from multidraft_research.tuning import measuring

    track = partial(tqdm, desc="comparing", leave=False)
    return measuring.compare(subject, profile, budget, temperatures, steps, track)


def keep(profile: "Profile", speeds: Speeds, out: Path | None, plot: Path | None) -> None:
    """Write the plan and the picture, if anything was measured."""
    if not profile.timed_rows:
        return
    if out is not None:
        files.write(out, profile.as_json().encode())
        terminal.note(f"wrote {out}")
    if plot is not None:
        draw(profile, speeds, plot)


def show(profile: "Profile", speeds: Speeds, is_busy: bool) -> None:
    """Print the costs of a step of one row, acceptance at a node, speeds, and the tree that pays."""
    from multidraft.autotune.estimates import Work

    costs = profile.costs(1)
    seconds = dict(zip(COST_NAMES, (costs.plain, costs.first, costs.node, costs.level, costs.read), strict=True))
    seconds |= {
        f"a step with {nodes:g} looked-up tokens, as timed": costs.seconds(Work(0, 0, nodes))
        for nodes, _ in costs.beside_line
    }
    terminal.print_table(["one row", "milliseconds"], [[name, f"{1e3 * value:.2f}"] for name, value in seconds.items()])
    rates = {temperature: profile.rates(temperature).average for temperature in sorted(profile.acceptance)}
    columns = ["acceptance at T", *(f"{count} draft{'s' * (count > 1)}" for count in DRAFT_COUNTS)]
    acceptance = [[f"{t:g}", *(f"{average[count]:.3f}" for count in DRAFT_COUNTS)] for t, average in rates.items()]
    terminal.print_table(columns, acceptance)
    terminal.print_table(COMPARISON_COLUMNS, [speed.cells(is_busy) for group in speeds.values() for speed in group])
    if is_busy:
        terminal.note(BUSY_NOTE)
    else:
        typer.echo("\n".join(f"T = {temperature:g}: {what_pays(group)}" for temperature, group in speeds.items()))
    terminal.note("`multidraft generate --tree auto` uses these numbers")
