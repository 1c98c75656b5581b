"""`multidraft tune`: measure a pair on this machine, show which trees are fastest, and save that for `--tree auto`."""

import json
from dataclasses import asdict, astuple
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.models import load, parse
from multidraft.cli.prompts import DEMO, encode, read_prompts
from multidraft.errors import AdviceError
from multidraft.generation import DEFAULT_SCHEME
from multidraft.io import files

if TYPE_CHECKING:
    from multidraft.autotune.plans import MeasuredPair, Profile
    from multidraft.autotune.tuning import Line

STEPS, QUICK_STEPS = 240, 24  # measured for every line of the table, over all prompts in turn
BUDGET_SECONDS = 60.0
TEMPERATURES, ROWS = [0.0, 0.7, 1.0], [1, 4, 16]
BAR_FORMAT = "{desc}: {bar}| {n:.0f} of {total:.0f} s"
DRAFT_COUNTS = (1, 2, 3, 4, 8)
MAX_NODES, MAX_DRAFTS = 32, 8  # in the figure: of a tree, and at a node
COST_NAMES = (
    "a step without drafts",
    "a step with drafts, beside what follows",
    "each drafted node",
    "each level of drafts",
    "each node that the draft model reads",
)
COMPARISON_COLUMNS = ["T", "tree", "tokens a step", "predicted", "tokens a second", "predicted", "ratio"]


def tune(
    target: o.Target = None,
    draft: o.Draft = None,
    prompt: Annotated[str | None, Option(help="Text to measure with.")] = None,
    prompts: Annotated[Path | None, Option(help=o.FILE_HELP)] = None,
    limit: o.Limit = None,
    scheme: o.Scheme = DEFAULT_SCHEME,
    walk: o.Walk = "deferred",
    temperature: Annotated[list[float] | None, Option(help="May be repeated. Default: 0, 0.7, 1.")] = None,
    rows: Annotated[
        list[int] | None, Option(min=1, help="Prompts side by side; may be repeated. Default: 1, 4, 16.")
    ] = None,
    budget: Annotated[float, Option(min=0, help="Seconds to measure; the same command measures on.")] = BUDGET_SECONDS,
    quick: Annotated[bool, Option("--quick", help="Fewer steps for every line of the table.")] = False,
    out: Annotated[Path | None, Option(help="Write the plan here, for --plan.")] = None,
    plot: Annotated[Path | None, Option(help="Draw costs, acceptance, speeds: .svg, .png or .pdf.")] = None,
    wait: o.Wait = False,
    as_json: o.Json = False,
) -> None:
    """Measure the costs and acceptance of drafting for a pair on this machine, and which tree is fastest."""
    from multidraft.sampling.checks import check

    o.check_drafting(scheme, "auto", None)
    temperatures = temperature or TEMPERATURES
    files.check(out, "--out", [prompts, target, draft])
    if plot is not None:
        files.check_picture(plot, [prompts, target, draft, out])
    for value in temperatures:
        check("temperature", value)
    entries = read_prompts(prompt, prompts if prompt or prompts else DEMO, limit)

    import multidraft as md
    from multidraft.autotune.plans import MeasuredPair
    from multidraft.generation.inputs import resolve_config

    if resolve_config(scheme, "auto", walk, None, max(len(parse(draft)), 1))[1] is None:
        raise AdviceError(
            f"{scheme} allows no choice of trees; tune a scheme of one draft model and any number of drafts"
        )
    pair = load(target, draft)
    if pair.draft is None:
        raise AdviceError("--draft none leaves nothing to tune; name a draft model")
    encode(entries, pair)
    subject = MeasuredPair(pair.target, pair.draft, md.scheme(scheme), walk, [entry.tokens for entry in entries])
    with files.hold(out, wait):
        profile, lines = measure(subject, temperatures, rows or ROWS, budget, QUICK_STEPS if quick else STEPS)
        if out is not None:
            files.write(out, profile.as_json().encode())
            terminal.note(f"wrote {out}")
    if plot is not None:
        draw(profile, lines, plot)
    if as_json:
        return terminal.print_json({"plan": json.loads(profile.as_json()), "lines": [asdict(line) for line in lines]})
    show(profile, lines)


def measure(
    subject: "MeasuredPair", temperatures: list[float], rows: list[int], budget: float, steps: int
) -> "tuple[Profile, list[Line]]":
    """Measure on, and save the profile; return it with predicted and measured speeds."""
    from tqdm import tqdm

    from multidraft.autotune import tuning
    from multidraft.autotune.plans import profile_for

    with tqdm(total=budget, desc="measuring", bar_format=BAR_FORMAT, leave=False) as bar:
        tick = lambda spent: bar.update(min(spent, budget - bar.n))  # noqa: E731
        profile = tuning.measure(subject, profile_for(subject), budget, temperatures, rows, tick)
    if not profile.known:
        raise AdviceError("nothing has been measured; give a larger --budget")
    return profile, tuning.compare(subject, profile, temperatures, steps, partial(tqdm, desc="comparing", leave=False))


def show(profile: "Profile", lines: "list[Line]") -> None:
    """Print the costs of a step of one row, acceptance at a node, and predicted and measured speeds."""
    costs = [[name, f"{1e3 * value:.2f}"] for name, value in zip(COST_NAMES, astuple(profile.costs(1)), strict=True)]
    terminal.print_table(["one row", "milliseconds"], costs)
    rates = {temperature: profile.rates(temperature).average for temperature in sorted(profile.acceptance)}
    columns = ["acceptance at T", *(f"{count} draft{'s' * (count > 1)}" for count in DRAFT_COUNTS)]
    acceptance = [[f"{t:g}", *(f"{average[count]:.3f}" for count in DRAFT_COUNTS)] for t, average in rates.items()]
    terminal.print_table(columns, acceptance)
    numbers = [
        [
            f"{line.temperature:g}",
            line.tree,
            f"{line.tokens:.2f}",
            f"{line.predicted_tokens:.2f}",
            f"{line.speed:.1f}",
            f"{line.predicted_speed:.1f}",
            f"{line.speed / line.predicted_speed:.2f}",
        ]
        for line in lines
    ]
    terminal.print_table(COMPARISON_COLUMNS, numbers)
    terminal.note("`multidraft generate --tree auto` uses these numbers")


def draw(profile: "Profile", lines: "list[Line]", path: Path) -> None:
    """Draw three panels: the costs of passes, acceptance by drafts, predicted and measured speeds."""
    from matplotlib.figure import Figure

    from multidraft.autotune.estimates import Work

    figure = Figure(figsize=(13.5, 3.2), layout="constrained", dpi=110)
    costs, rates, speeds = axes = figure.subplots(1, 3)
    sizes, counts = range(MAX_NODES + 1), range(1, MAX_DRAFTS + 1)
    for rows in profile.known:
        costs.plot(sizes, [1e3 * profile.costs(rows).seconds(Work(0, 0, size)) for size in sizes], label=f"{rows} rows")
    costs.set(xlabel="drafted nodes a row", ylabel="ms of a step, beside drafting", ylim=(0, None))
    for temperature in sorted({line.temperature for line in lines}):
        name, acceptance = f"T = {temperature:g}", profile.rates(temperature)
        rates.plot(counts, [acceptance.average[count] for count in counts], marker="o", ms=4, label=name)
        pairs = [(line.predicted_speed, line.speed) for line in lines if line.temperature == temperature]
        speeds.plot(*map(list, zip(*pairs, strict=True)), "o", ms=5, label=name)
    rates.set(xlabel="drafts at a node", ylabel="acceptance", ylim=(None, 1))
    max_speed = 1.05 * max(max(line.speed, line.predicted_speed) for line in lines)
    speeds.plot([0, max_speed], [0, max_speed], "--", color="#888888", lw=1)
    speeds.set(xlabel="predicted tokens a second", ylabel="measured", xlim=(0, max_speed), ylim=(0, max_speed))
    for axis in axes:
        axis.legend(frameon=False, fontsize="small")
    figure.savefig(path)
