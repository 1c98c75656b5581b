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
    from multidraft.autotune.profile import Profile
    from multidraft.autotune.tuning import Line

STEPS, QUICK = 240, 24  # steps of every line that is measured, from prompts by turns
BUDGET = 60.0  # seconds
TEMPERATURES, ROWS = [0.0, 0.7, 1.0], [1, 4, 16]
BAR = "{desc}: {bar}| {n:.0f} of {total:.0f} s"
SIZES = (1, 2, 4, 8, 16, 32)
COUNTS = (1, 2, 3, 4, 8)


def tune(
    target: Annotated[str | None, Option(help=TARGET)] = None,
    draft: Annotated[str | None, Option(help=DRAFT)] = None,
    prompt: Annotated[str | None, Option(help="Text to measure with.")] = None,
    prompts: Annotated[Path | None, Option(help='File with one {"id", "task", "prompt"} a line.')] = None,
    limit: Annotated[int | None, Option(min=1, help="Only the first N prompts of the file.")] = None,
    scheme: Annotated[str, Option(help="Drafting law and rule; see `multidraft schemes`.")] = SCHEME,
    walk: Annotated[str, Option(help="How a tree is traversed: deferred, or commit as in the papers.")] = "deferred",
    temperature: Annotated[list[float] | None, Option(help="May be repeated. Default: 0, 0.7, 1.")] = None,
    rows: Annotated[
        list[int] | None, Option(min=1, help="Prompts side by side; may be repeated. Default: 1, 4, 16.")
    ] = None,
    budget: Annotated[float, Option(min=0, help="Seconds to measure; the same call goes on where one ended.")] = BUDGET,
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
    tokens, temperatures = [one.tokens for one in chosen], temperature or TEMPERATURES
    profile, lines = measure(
        pair, tokens, scheme, walk, temperatures, rows or ROWS, budget, STEPS if not quick else QUICK
    )
    if out is not None:
        files.write(out, profile.as_json().encode())
        terminal.note(f"wrote {out}")
    if plot is not None:
        from multidraft.cli.tune_picture import draw

        draw(profile, lines, plot)
    terminal.print_json(as_data(profile, lines)) if as_json else show(profile, lines)


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
    from multidraft.generation.inputs import check_drafters, limits_of, make_config
    from multidraft.sampling.settings import Sampling

    files.check(out, "--out", inputs)
    if plot is not None:
        from multidraft.cli.tune_picture import check

        check(plot, [*inputs, out])
    for temperature in temperatures:
        Sampling(temperature)
    check_drafters(make_config(scheme, "1", walk, False).scheme, drafters > 1)
    if limits_of("auto", scheme) is None:
        raise AdviceError(
            f"{scheme} leaves no choice of trees; tune a scheme of one draft model and any number of drafts"
        )


def measure(
    pair: Models,
    prompts: list[list[int]],
    scheme: str,
    walk: str,
    temperatures: list[float],
    rows: list[int],
    budget: float,
    steps: int,
) -> "tuple[Profile, list[Line]]":
    """The profile, filled further and kept, and what it predicts beside what is measured."""
    from tqdm import tqdm

    import multidraft as md
    from multidraft.autotune.identity import Subject
    from multidraft.autotune.tuning import compare, measured, work

    assert pair.draft is not None  # `tune` has checked
    subject = Subject(pair.target, pair.draft, md.scheme(scheme), walk, prompts)
    with tqdm(total=budget, desc="measuring", bar_format=BAR, leave=False) as bar:
        tick = lambda spent: bar.update(min(spent, budget - bar.n))  # noqa: E731
        profile = measured(subject, budget, temperatures, rows, tick)
    if not profile.known:
        raise AdviceError("nothing has been measured; give a larger --budget")
    with tqdm(total=work(profile, temperatures, steps), desc="comparing", leave=False) as bar:
        return profile, compare(subject, profile, temperatures, steps, bar.update)


def show(profile: "Profile", lines: "list[Line]") -> None:
    """Tables for people."""
    show_costs(profile)
    show_acceptance(profile)
    numbers = [
        [
            f"{line.temperature:g}",
            line.tree,
            *(f"{value:.2f}" for value in (line.tokens, line.predicted_tokens)),
            *(f"{value:.1f}" for value in (line.speed, line.predicted_speed)),
            f"{line.speed / line.predicted_speed:.2f}",
        ]
        for line in lines
    ]
    terminal.print_table(["T", "tree", "tokens a step", "predicted", "tokens a second", "predicted", "ratio"], numbers)
    terminal.note("`multidraft generate --tree auto` goes by this")


def show_costs(profile: "Profile") -> None:
    """Milliseconds of passes, of one row."""
    one = profile.costs(1)
    passes = {"a target pass over so many tokens": one.target, "a level of drafts at so many nodes": one.level}
    terminal.print_table(
        ["milliseconds of", *map(str, SIZES)],
        [[name, *(f"{1e3 * curve(size):.2f}" for size in SIZES)] for name, curve in passes.items()],
    )


def show_acceptance(profile: "Profile") -> None:
    """Acceptance by temperature, at the root and by depth, and what trees that grow give."""
    rows = []
    for temperature in sorted(profile.acceptance):
        rates, grown = profile.rates(temperature), profile.growth_at(temperature)
        depths = " ".join(f"{rates.accepted(1, depth):.2f}" for depth in range(5))
        gain = f"{grown.gain(0.0, 0.0):.2f}" if all(grown.seconds) else ""
        rows.append([f"{temperature:g}", *(f"{rates.accepted(count, 0):.3f}" for count in COUNTS), depths, gain])
    names = [f"{count} draft{'s' * (count > 1)}" for count in COUNTS]
    terminal.print_table(["acceptance at T", *names, "one draft by depth", "growing over fixed"], rows)


def as_data(profile: "Profile", lines: "list[Line]") -> dict[str, object]:
    """What machines read."""
    return {"plan": json.loads(profile.as_json()), "lines": [asdict(line) for line in lines]}
