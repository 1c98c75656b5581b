"""The command line: `multidraft generate | schemes | study | ..`. Each command is a file in `multidraft/cli`."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import typer
from multidraft_research.cli.acceptance import acceptance
from multidraft_research.cli.capture import capture
from multidraft_research.cli.distill import distill
from multidraft_research.cli.study import study
from multidraft_research.cli.train import train
from typer.core import TyperGroup

from multidraft import __version__
from multidraft.cli import terminal
from multidraft.cli.audit import audit
from multidraft.cli.checked import Checked
from multidraft.cli.generate import generate
from multidraft.cli.replay import replay
from multidraft.cli.schemes import schemes
from multidraft.cli.serve import serve
from multidraft.cli.tune import tune
from multidraft.errors import AdviceError

UsageError: Any = typer.BadParameter.__bases__[
    0
]  # typer does not export it, and where it comes from depends on the version


@contextmanager
def one_line(ctx: Any) -> Iterator[None]:
    """Whatever a user can mend ends with one line on stderr and exit code 2; Ctrl-C with one line and 130."""
    code = 2
    try:
        yield
        sys.stdout.flush()
        return
    except AdviceError as error:
        line = str(error)
    except UsageError as error:
        where = " ".join(["multidraft", *filter(None, [ctx.invoked_subcommand]), "--help"])
        line = f"{error.format_message().rstrip('.')}; see `{where}`"
    except KeyboardInterrupt as interrupt:
        line, code = str(interrupt) or "stopped", 130
    except BrokenPipeError:
        terminal.give_up()
        line = "what reads the output was closed before the end; read all of it, or write into a file"
    except OSError as error:
        terminal.give_up()
        line = f"{error.filename or 'the output'} failed: {error.strerror or error}; check the path and the room there"
    typer.echo(f"multidraft: {terminal.message(line)}", err=True)
    raise typer.Exit(code)


class OneLineErrors(TyperGroup):
    """All commands, none of which ends with a traceback over what a user can mend."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args:
            return super().parse_args(ctx, args)  # which shows the help
        with one_line(ctx):
            return super().parse_args(ctx, args)
        raise AssertionError  # for mypy: the line above returns or raises

    def invoke(self, ctx: Any) -> Any:
        with one_line(ctx):
            return super().invoke(ctx)


def show_version(asked: bool) -> bool:
    """Print the version, and end."""
    if asked:
        typer.echo(f"multidraft {__version__}")
        raise typer.Exit()
    return asked


app = typer.Typer(
    cls=OneLineErrors,
    help="Multi-draft speculative decoding: faster generation, with exactly the target model's distribution.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
for command in (acceptance, audit, capture, distill, generate, replay, schemes, serve, train, tune):
    app.command(cls=Checked)(command)
app.add_typer(study, name="study")


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Multi-draft speculative decoding: faster generation, with exactly the target model's distribution."""


def main() -> None:
    """The entry point; a polite kill ends as Ctrl-C does."""
    terminal.prepare()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    app()
