"""`multidraft study NAME`: the measurements behind the tables and figures of the docs, one file a study."""

import typer

from multidraft.commands.checked import Checked
from multidraft.commands.study.curves import curves
from multidraft.commands.study.solve_time import solve_time
from multidraft.commands.study.toys import toys
from multidraft.commands.study.walks import walks

study = typer.Typer(help="Measure what the docs report: one study a table or figure.", rich_markup_mode="markdown")
study.command("solve-time", cls=Checked)(solve_time)
study.command(cls=Checked)(curves)
study.command(cls=Checked)(toys)
study.command(cls=Checked)(walks)
