"""`multidraft schemes`: every drafting law with a rule that is valid for it."""

from typing import Annotated, Any

from typer import Option

from multidraft.errors import AdviceError

COLUMNS = ["scheme", "exact", "cost of the rule", "source"]


def schemes(
    as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, Option("--markdown", help="Print the table that pages show.")] = False,
) -> None:
    """List the schemes: drafting law, verification rule, whether it is exact, what it costs, where it is from."""
    import multidraft as md
    from multidraft.cli import terminal

    if as_json and as_markdown:
        raise AdviceError("--json and --markdown are two forms of one list; choose one")
    entries: list[dict[str, Any]] = md.schemes()
    if as_json:
        return terminal.print_json(entries)
    if as_markdown:
        return print(markdown(entries))
    rows: dict[str, list[str]] = {
        f"LAW:{e['rule']}" if e["small"] and laws_of(e["rule"], entries) == laws_of(None, entries) else e["name"]: [
            "yes" if e["exact"] else "no",
            e["cost"] + (" *" if e["small"] else ""),
            source(e),
        ]
        for e in entries
    }
    terminal.print_table(COLUMNS, [[name, *rest] for name, rest in rows.items()])
    terminal.note(f"LAW is any of {', '.join(sorted(laws_of(None, entries)))}. * for small vocabularies only")


def markdown(entries: list[dict[str, Any]]) -> str:
    """The table for a page: schemes that differ in their law alone share a line."""
    lines: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for e in entries:
        cost = e["cost"] + ("; small vocabularies only" if e["small"] else "")
        lines.setdefault((e["rule"], "yes" if e["exact"] else "no", cost, source(e)), []).append(e)
    rows = [
        [f"`{rule}` with every law" if len(same) == len(laws_of(None, entries)) else names(same), *rest]
        for (rule, *rest), same in lines.items()
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in [COLUMNS, ["---"] * len(COLUMNS), *rows])


def names(entries: list[dict[str, Any]]) -> str:
    """The names of some schemes as code."""
    return ", ".join(f"`{entry['name']}`" for entry in entries)


def laws_of(rule: str | None, entries: list[dict[str, Any]]) -> set[str]:
    """The laws that a rule is valid for, or all laws."""
    return {entry["law"] for entry in entries if rule in (None, entry["rule"])}


def source(entry: dict[str, Any]) -> str:
    """Where a scheme is from, and the name that it goes by with the deferred walk."""
    return f"{entry['source']}; {entry['known_as']}" if entry["known_as"] else entry["source"]
