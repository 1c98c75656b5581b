"""`multidraft study NAME`: the measurements behind the tables and figures of the docs, one file a study."""

import typer

study = typer.Typer(help="Measure what the docs report: one study a table or figure.", rich_markup_mode="markdown")
