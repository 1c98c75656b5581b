"""`multidraft study NAME`: the measurements behind the tables and figures of the docs, one file a study."""

import typer

from multidraft.cli.options import CheckedCommand
from multidraft_research.cli import curves, everything, measured, solve_time, toys, walks
from multidraft_research.studies.listed import LISTED

ABOUT = """Measure what the docs report: one study a table or figure.

Pictures need matplotlib (the extra `plot`), some solvers of the optimal transport problem need SciPy and OR-Tools
(`transport`). Where one is missing, the error says how to install it.
"""

study = typer.Typer(help=ABOUT, short_help=ABOUT.partition("\n")[0], rich_markup_mode="markdown")
study.command("solve-time", cls=CheckedCommand)(solve_time.solve_time)
study.command(cls=CheckedCommand)(curves.curves)
study.command(cls=CheckedCommand)(toys.toys)
study.command(cls=CheckedCommand)(walks.walks)
for name in LISTED:
    study.command(name, cls=CheckedCommand)(measured.command_of_study(name))
study.command("all", cls=CheckedCommand)(measured.command("all", everything.ABOUT, everything.everything))
