"""`multidraft study toys`: SpecTr's Figures 4 to 6."""

from pathlib import Path
from typing import Annotated

from typer import Option

from multidraft.cli import terminal
from multidraft_research.studies import pictures


def toys(
    out: Annotated[Path, Option(help="The picture to write: .svg, .png or .pdf.")],
    as_json: Annotated[bool, Option("--json", help="Print the curves as JSON.")] = False,
) -> None:
    """Draw SpecTr's Figures 4 to 6: acceptance by number of drafts for toy pairs, with the optimum of each."""
    from multidraft_research.studies.toys import draw, figures

    pictures.check(out)
    curves = figures()
    draw(curves, out)
    if as_json:
        return terminal.print_json({"file": str(out), "figures": curves})
    terminal.note(f"wrote {out}")
