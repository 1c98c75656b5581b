"""`multidraft schemes`: every drafting law with a rule that is valid for it."""

from typing import Annotated

from typer import Option


def schemes(as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False) -> None:
    """List the schemes: drafting law, verification rule, whether it is exact, what it costs, where it is from."""
    import multidraft as md
    from multidraft import terminal

    entries = md.schemes()
    if as_json:
        return terminal.print_json(entries)
    rows = [[str(e["name"]), "yes" if e["exact"] else "no", str(e["cost"]), source(e)] for e in entries]
    terminal.print_table(["scheme", "exact", "cost of the rule", "source"], rows)


def source(entry: dict[str, str | bool]) -> str:
    """Where a scheme is from, and the name that it goes by with the deferred walk."""
    return f"{entry['source']} ({entry['known_as']})" if entry["known_as"] else str(entry["source"])
