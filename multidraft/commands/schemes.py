"""`multidraft schemes`: every drafting law with a rule that is valid for it."""

from typing import Annotated

from typer import Option


def schemes(as_json: Annotated[bool, Option("--json", help="Print JSON.")] = False) -> None:
    """List the schemes: drafting law, verification rule, whether it is exact, what it costs, where it is from."""
    import multidraft as md
    from multidraft.commands import terminal

    entries = md.schemes()
    if as_json:
        return terminal.print_json(entries)
    laws = {entry["law"] for entry in entries}
    for_all = {
        rule for rule in {e["rule"] for e in entries} if laws == {e["law"] for e in entries if e["rule"] == rule}
    }
    rows = {
        f"LAW:{e['rule']}" if e["rule"] in for_all and e["small"] else str(e["name"]): [
            "yes" if e["exact"] else "no",
            str(e["cost"]) + (" *" if e["small"] else ""),
            source(e),
        ]
        for e in entries
    }
    terminal.print_table(
        ["scheme", "exact", "cost of the rule", "source"], [[name, *rest] for name, rest in rows.items()]
    )
    terminal.note(f"LAW is any of {', '.join(sorted(map(str, laws)))}. * for small vocabularies only")


def source(entry: dict[str, str | bool]) -> str:
    """Where a scheme is from, and the name that it goes by with the deferred walk."""
    return f"{entry['source']} ({entry['known_as']})" if entry["known_as"] else str(entry["source"])
