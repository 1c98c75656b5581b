"""`multidraft schemes`: every drafting law with a rule that is valid for it."""

from typing import Annotated, Any

from typer import Option

from multidraft.cli import terminal
from multidraft.errors import AdviceError

COLUMNS = ["scheme", "exact", "cost of the rule", "source"]


def schemes(
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, Option("--markdown", help="Print the table that pages show.")] = False,
) -> None:
    """List the schemes: drafting law, verification rule, whether it is exact, what it costs, where it is from."""
    import multidraft as md

    if as_json and as_markdown:
        raise AdviceError("--json and --markdown are two forms of one list; choose one")
    entries: list[dict[str, Any]] = md.schemes()
    if as_json:
        return terminal.print_json(entries)
    laws = sorted({entry["law"] for entry in entries})
    if as_markdown:
        rows = [
            [f"`{rule}` with every law" if len(names) == len(laws) else ", ".join(f"`{n}`" for n in names), *rest]
            for (rule, *rest), names in alike(entries, "; small vocabularies only").items()
        ]
        return print("\n".join(f"| {' | '.join(row)} |" for row in [COLUMNS, ["---"] * len(COLUMNS), *rows]))
    rows = [
        [name, *rest]
        for (rule, *rest), names in alike(entries, " *").items()
        for name in ([f"LAW:{rule}"] if len(names) == len(laws) else names)
    ]
    terminal.print_table(COLUMNS, rows)
    terminal.note(f"LAW is any of {', '.join(laws)}. * for small vocabularies only")


def alike(entries: list[dict[str, Any]], small: str) -> dict[tuple[str, ...], list[str]]:
    """The names of schemes that differ in their law alone, by rule, exactness, cost and source.

    With a scheme's source goes the name that it has in other papers with the deferred walk.
    """
    lines: dict[tuple[str, ...], list[str]] = {}
    for e in entries:
        cost, source = e["cost"] + small * e["small"], "; ".join(filter(None, [e["source"], e["known_as"]]))
        lines.setdefault((e["rule"], "yes" if e["exact"] else "no", cost, source), []).append(e["name"])
    return lines
