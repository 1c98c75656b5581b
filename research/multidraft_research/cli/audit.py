"""`multidraft audit`: is a scheme lossless; with `--all`, are all of them, and is every mutant found guilty."""

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from multidraft.cli import completion, terminal
from multidraft.cli.options import SCHEME_HELP
from multidraft.errors import AdviceError
from multidraft.machine import hardware

if TYPE_CHECKING:
    from multidraft.auditing import Report
    from multidraft_research.audits.corners import Corners

LEGEND = (
    "TV: largest total variation from the target. rate, best: mean acceptance rate over the small pairs, and the "
    "largest that a lossless rule reaches. as stated: lossless within what it states. * with a fallback for the pairs "
    "on which it fails."
)
CORNERS_LEGEND = (
    "The worst error seen, in units of what rounding allows: 1e-12 in float64 and 3e-6 in float32. law: of the "
    "probability of emitting a token, summed over every tuple. total: of accept plus residual of a tuple. rest: of the "
    "residual's sum where it is computed on its own. negative: of a probability. banned: whether a token that the "
    "target never emits is emitted."
)
CORNERS_COLUMNS = ["scheme", "pairs", "tuples", "law", "total", "rest", "negative", "banned"]
SIZE_OF_ALL = 4096
MOST_DRAFTS, MOST_TOKENS = 1_000, 2**20  # beyond any tree and any vocabulary
FALLBACK = {"iid:global_resolution": ",fallback=k_sequential"}  # for the pairs on which it fails
SOMETIMES = 0.6  # the draft_probability of the second group
SCHEMES, RANDOMISED, MUTANT = "scheme", "scheme, drafting with probability 0.6", "mutant"
COLUMNS = ["verdict", "TV", "rate", "best"]


def audit(
    name: Annotated[str | None, Argument(help=SCHEME_HELP, autocompletion=completion.schemes)] = None,
    every: Annotated[
        bool, Option("--all", help="Every scheme, also with randomised drafting, and mutants, which are biased.")
    ] = False,
    corners: Annotated[
        int | None, Option(min=1, help="Instead: so many pairs that are made to break a scheme, every tuple of each.")
    ] = None,
    drafts: Annotated[int | None, Option(min=1, max=MOST_DRAFTS, help="Drafts at a node.", show_default="2")] = None,
    draft_probability: Annotated[
        float | None, Option(help="Less than 1: randomised drafting.", show_default="1")
    ] = None,
    vocabulary: Annotated[
        list[int] | None,
        Option(
            min=2, max=MOST_TOKENS, help="Sizes to draw tuples at; repeat it.", show_default="4096 and 32000, or 32"
        ),
    ] = None,
    trials: Annotated[
        int | None, Option(min=100, help="Tuples to draw at each size.", show_default="10,000, or 6,000 of many tokens")
    ] = None,
    trees: Annotated[
        list[str] | None, Option(help="Small trees to walk over; repeat it.", show_default="1x1x1, 2x1 and 2x2")
    ] = None,
    seed: Annotated[int, Option(min=0, max=2**32, help="The same seed draws the same tuples.")] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
) -> None:
    """Audit a scheme: sum its law over every tuple of drafts, draw tuples at real sizes, walk over every small tree.

    Exit code 1 where a verdict is not the expected one: lossless for a scheme, biased for a mutant; with --corners,
    where an error exceeds what rounding allows.
    """
    if (name is None) != every:
        raise AdviceError("give one scheme, as in `multidraft audit iid:lorenz`, or --all")
    unused: dict[str, object] = {"--draft-probability": draft_probability} if every or corners else {}
    unused |= {"--drafts": drafts, "--vocabulary": vocabulary, "--trials": trials, "--trees": trees} if corners else {}
    refuse_unused(unused, "--corners" if corners else "--all")
    settings: dict[str, Any] = dict(vocabulary=vocabulary, trials=trials, walks=True, trees=trees, seed=seed)
    try:
        if corners:
            ok = try_corners(name, corners, seed, as_json)
        elif every:
            ok = audit_all(2 if drafts is None else drafts, settings, as_json)
        else:
            law_settings = {} if draft_probability is None else dict(draft_probability=draft_probability)
            ok = audit_one(name or "", settings | law_settings | dict(drafts=drafts), as_json)
    except ImportError as error:
        raise AdviceError(str(error)) from None
    if not ok:
        raise typer.Exit(1)


def refuse_unused(options: dict[str, object], mode: str) -> None:
    """Raise where an option was given that has no meaning in this mode."""
    if unused := [option for option, value in options.items() if value is not None]:
        raise AdviceError(f"{', '.join(unused)} has no meaning with {mode}; leave it out")


def audit_one(name: str, settings: dict[str, Any], as_json: bool) -> bool:
    """One scheme, with all that was found; whether it is lossless."""
    import multidraft as md

    report = md.audit(name, progress=bar(name), **settings)
    if as_json:
        terminal.print_json(report.as_dict())
    else:
        details(report)
    return not report.biased


def audit_all(drafts: int, settings: dict[str, Any], as_json: bool) -> bool:
    """Every scheme, again with randomised drafting, and every mutant; whether all verdicts are the expected ones."""
    from multidraft_research.audits.mutants import MUTANTS

    calls = [(group, name) for group in (SCHEMES, RANDOMISED) for name in schemes()]
    calls += [(MUTANT, name) for name in MUTANTS]
    results = [run_or_fail(group, name, drafts, settings) for group, name in bar("audit")(calls)]
    wrong = [item["name"] for item in results if not item["as_expected"]]
    if as_json:
        terminal.print_json({"as_expected": not wrong, "audits": [item["report"] for item in results]})
        return not wrong
    for group in (SCHEMES, RANDOMISED, MUTANT):
        terminal.print_table(
            [group, *COLUMNS], [item["row"] for item in results if item["group"] == group], numbers=True
        )
    typer.echo(LEGEND)
    typer.echo(f"Not as expected: {'; '.join(wrong)}." if wrong else f"All {len(results)} verdicts are as expected.")
    return not wrong


def schemes() -> list[str]:
    """Every scheme's name, with the setting that it cannot do without."""
    import multidraft as md

    names = [str(entry["name"]) for entry in md.schemes()]
    return [name + FALLBACK.get(name, "") for name in names]


def size(name: str) -> int | None:
    """One size instead of two where there are many audits; None leaves rules of small vocabularies their own."""
    from multidraft.verification.registry import scheme

    return None if scheme(name).entry.small else SIZE_OF_ALL


def run_or_fail(group: str, name: str, drafts: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The same for a rule that may be broken, which does not stop the audits of others."""
    try:
        return run(group, name, drafts, settings)
    except AdviceError as error:
        terminal.note(f"{name}: {error}")
        numbers = {"name": name, "group": group, "as_expected": False, "error": str(error)}
        return dict(
            group=group, name=name, as_expected=False, row=[short_name(name), "fails (!)", "", "", ""], report=numbers
        )


def run(group: str, name: str, drafts: int, settings: dict[str, Any]) -> dict[str, Any]:
    """The audit of one line."""
    import multidraft as md
    from multidraft.verification.registry import scheme
    from multidraft_research.audits.mutants import MUTANTS, audit_mutant

    expected: list[str] = []
    settings = settings | dict(vocabulary=settings["vocabulary"] or (SIZE_OF_ALL if group == MUTANT else size(name)))
    if group == MUTANT:
        report, expected = audit_mutant(name, **settings), list(MUTANTS[name].guilty)
    else:
        probability = SOMETIMES if group == RANDOMISED else 1.0
        count = scheme(name).law.fixed_drafts or drafts
        report = md.audit(name, count, draft_probability=probability, **settings)
    ok = report.guilty() == expected
    numbers = report.as_dict() | {"name": name, "group": group, "expected": expected, "as_expected": ok}
    return dict(group=group, name=name, as_expected=ok, row=[short_name(name), *cells(report, ok)], report=numbers)


def short_name(name: str) -> str:
    """A name without its settings, which are too long for a table."""
    return name.split(",")[0] + (" *" if "," in name else "")


def bar(label: str) -> Any:
    """A progress bar on stderr around a list of jobs."""
    from functools import partial

    from tqdm import tqdm

    return partial(tqdm, desc=label, file=sys.stderr, leave=False, dynamic_ncols=True)


def cells(report: "Report", as_expected: bool) -> list[str]:
    """The columns after the name."""
    exact = report.exact
    return [
        ("as stated" if "within" in report.verdict else report.verdict) + ("" if as_expected else " (!)"),
        f"{report.total_variation:.0e}",
        f"{exact.acceptance:.3f}" if exact else "",
        f"{exact.optimum:.3f}" if exact and exact.optimum is not None else "",
    ]


def details(report: "Report") -> None:
    """All parts of one audit, and the verdict below."""
    exact = report.exact
    if exact:
        rows = [[f"{exact.pairs} pairs, {exact.tuples:,} tuples", *exact_cells(exact)]]
        terminal.print_table(["exact", "off by", "TV", "rate", "best"], rows, numbers=True)
    if report.sampled:
        columns = ["statistical", "p, fine", "p, coarse", "alarm", "bias seen", "rate", "best"]
        terminal.print_table(columns, [sampled_cells(part) for part in report.sampled], numbers=True)
    if report.walks:
        terminal.print_table(["walks", "off by", "TV", "accepted"], list(map(walk_cells, report.walks)), numbers=True)
    typer.echo(report.sentence)
    if report.sampled:
        typer.echo(
            f"A lossless verifier raises the alarm with probability {report.odds:.0e} in all. Bias seen: the smallest "
            "total variation (TV), from the target towards the draft distribution, that raises it with 99 %."
        )


def walk_cells(part: Any) -> list[str]:
    """One walk over one tree."""
    label = f"{part.walk}, {part.tree}, {part.vocabulary} tokens, {part.kind}"
    return [label, f"{part.deviation:.1e}", f"{part.total_variation:.1e}", f"{part.accepted:.4f}"]


def exact_cells(exact: Any) -> list[str]:
    """The exact part's numbers."""
    optimum = "" if exact.optimum is None else f"{exact.optimum:.4f}"
    return [f"{exact.deviation:.1e}", f"{exact.total_variation:.1e}", f"{exact.acceptance:.4f}", optimum]


def sampled_cells(part: Any) -> list[str]:
    """One vocabulary size."""
    return [
        f"{part.trials:,} of {part.vocabulary:,}, {part.draft}",
        *(f"{part.p_values[test]:.2g}" for test in ("fine", "coarse")),
        f"{part.alarm:.2g}",
        "none" if part.smallest_bias is None else f"{part.smallest_bias:.2%}",
        f"{part.acceptance:.3f}",
        "" if part.optimum is None else f"{part.optimum:.3f}",
    ]


def try_corners(name: str | None, pairs: int, seed: int, as_json: bool) -> bool:
    """One scheme or all; whether no error exceeds what rounding allows."""
    from tqdm import tqdm

    from multidraft_research.audits.corners import exact_schemes
    from multidraft_research.audits.corners import try_corners as tried_in

    names = exact_schemes() if name is None else [exactly(name, exact_schemes())]
    results = {
        scheme_name: tried_in(scheme_name, pairs, seed)
        for scheme_name in tqdm(names, desc="corners", unit="scheme", leave=False)
    }
    ok = all(tried.worst <= 1 for tried in results.values())
    if as_json:
        tried = {scheme_name: asdict(tried) | {"worst": tried.worst} for scheme_name, tried in results.items()}
        terminal.print_json({"as_expected": ok, "seed": seed, "corners": tried})
        return ok
    terminal.print_table(
        CORNERS_COLUMNS, [corner_cells(scheme_name, tried) for scheme_name, tried in results.items()], numbers=True
    )
    typer.echo(CORNERS_LEGEND)
    typer.echo(f"Seed {seed}; {hardware()['cpu']}.")
    return ok


def exactly(name: str, exact: list[str]) -> str:
    """The scheme's name, if it is one of those that are tried."""
    from multidraft.verification.registry import scheme

    if scheme(name).name not in exact:
        raise AdviceError(f"{name} is for small vocabularies only, and not tried in corners; try {', '.join(exact)}")
    return name


def corner_cells(name: str, tried: "Corners") -> list[str]:
    """One scheme's line."""
    worst = [tried.law, tried.total, tried.rest, tried.negative, tried.banned]
    return [name, f"{tried.pairs:,}", f"{tried.tuples:,}", *(f"{error:.2g}" for error in worst)]
