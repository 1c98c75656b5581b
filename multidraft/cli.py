"""The command line: `multidraft generate | schemes | study | ..`. Each command is a file in `multidraft/commands`."""

from typing import Any

import typer
from typer.core import TyperGroup

from multidraft.commands.acceptance import acceptance, capture
from multidraft.commands.audit import audit
from multidraft.commands.generate import generate
from multidraft.commands.replay import replay
from multidraft.commands.schemes import schemes
from multidraft.commands.study import study
from multidraft.commands.train import train
from multidraft.errors import AdviceError

UsageError: Any = typer.BadParameter.__bases__[
    0
]  # typer does not export it, and where it comes from depends on the version


class OneLineErrors(TyperGroup):
    """Whatever a user can mend ends with one line on stderr and exit code 2; Ctrl-C with one line and 130."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except AdviceError as error:
            line, code = f"multidraft: {' '.join(str(error).split())}", 2
        except UsageError as error:
            where = " ".join(["multidraft", *filter(None, [ctx.invoked_subcommand]), "--help"])
            line, code = f"multidraft: {' '.join(error.format_message().split()).rstrip('.')}; see `{where}`", 2
        except KeyboardInterrupt as interrupt:
            line, code = f"multidraft: {str(interrupt) or 'stopped'}", 130
        typer.echo(line, err=True)
        raise typer.Exit(code)


app = typer.Typer(
    cls=OneLineErrors,
    help="Multi-draft speculative decoding: faster generation, with exactly the target model's distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for command in (acceptance, audit, capture, generate, replay, schemes, train):
    app.command()(command)
app.add_typer(study, name="study")


def main() -> None:
    """The entry point."""
    app()
