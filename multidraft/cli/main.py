"""The command line: our commands, those of other packages, and one-line messages for errors that a user can fix."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from multidraft import __version__, machine
from multidraft.cli import terminal
from multidraft.cli.export_head import export_head
from multidraft.cli.generate import generate
from multidraft.cli.imports import import_modules
from multidraft.cli.options import CheckedCommand, without_types
from multidraft.cli.serve import serve
from multidraft.errors import AdviceError, BrokenProgram, judge_package

DESCRIPTION = "Multi-draft speculative decoding: faster generation, with exactly the target model's distribution."
COMMANDS = "multidraft.commands"  # the group of entry points: a command's function, or a typer.Typer of several
ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}
EXIT_BROKEN = machine.EXIT_BROKEN
UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export it, and its home depends on the version


@contextmanager
def one_line_errors(ctx: Any) -> Iterator[None]:
    """Print errors on one line of stderr; exit with 2 for a user's errors, 130 or 143 for signals, 70 for faults."""
    code = 2
    machine.SIGNALS.clear()  # of a command before, in the same process
    try:
        yield
        sys.stdout.flush()
        return
    except AdviceError as error:
        line = str(error)
    except UsageError as error:
        where = " ".join(["multidraft", *filter(None, [ctx.invoked_subcommand]), "--help"])
        line = f"{error.format_message().rstrip('.')}; see `{where}`"
    except BrokenProgram as error:
        line, code = str(error), EXIT_BROKEN
    except KeyboardInterrupt as interrupt:
        line, code = str(interrupt) or "stopped", machine.exit_interrupted()
    except BrokenPipeError:
        terminal.drop_stdout()
        if "--help" in sys.argv:
            raise typer.Exit(0) from None  # `--help | head`: nothing is lost
        line = "the reader of the output has closed it; read all of it, or write into a file"
    except OSError as error:
        terminal.drop_stdout()
        line = f"{error.filename or 'the output'} failed: {error.strerror or error}; check the path and the room there"
    except (typer.Exit, typer.Abort):
        raise
    except Exception:  # 1, Python's own code, is a verdict of `judge` and `audit`
        traceback.print_exc()
        line, code = "this is a fault of the program, not of your input; report it with the lines above", EXIT_BROKEN
    typer.echo(f"multidraft: {terminal.message(line)}", err=True)
    raise typer.Exit(code)


class Commands(TyperGroup):
    """Our commands and those of entry points; a user's errors never print a traceback."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with one_line_errors(ctx) if args else nullcontext():  # without arguments this shows the help
            return super().parse_args(ctx, args)
        raise AssertionError  # for mypy: the line above returns or raises

    def invoke(self, ctx: Any) -> Any:
        with one_line_errors(ctx):
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        names = (entry_point.name for entry_point in entry_points(group=COMMANDS))
        return sorted({*super().list_commands(ctx), *names})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for entry_point in () if cmd_name in self.commands else entry_points(group=COMMANDS, name=cmd_name):
            self.commands[cmd_name] = load_command(entry_point)
        if cmd_name == "judge" and cmd_name not in self.commands:
            judge_package()  # says how to install it
        return super().get_command(ctx, cmd_name)


def load_command(entry_point: EntryPoint) -> Any:
    """The command of an entry point; if it cannot be loaded, a command that says so."""
    group = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    try:
        command = entry_point.load()
    except Exception as error:  # importing it may raise anything
        what = f"the command {entry_point.name} cannot be loaded from {entry_point.value} ({error})"

        def refuse() -> None:
            raise AdviceError(f"{what}; install its package again")

        group.command(entry_point.name, help="Cannot be loaded.", context_settings=ANY_ARGUMENTS)(refuse)
        return typer.main.get_command(group)
    if isinstance(command, typer.Typer):
        group.add_typer(command, name=entry_point.name)
        return typer.main.get_group(group).commands[entry_point.name]
    group.command(entry_point.name, cls=CheckedCommand)(command)
    return typer.main.get_command(group)


def show_version(requested: bool) -> bool:
    """Print the version, and end."""
    if requested:
        typer.echo(f"multidraft {__version__}")
        raise typer.Exit()
    return requested


def schemes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table that pages show.")] = False,
) -> None:
    """List the schemes: drafting law, verification rule, whether it is exact, what it costs, its source."""
    import multidraft as md

    if as_json and as_markdown:
        raise AdviceError("--json and --markdown are two forms of one list; choose one")
    entries: list[dict[str, Any]] = md.schemes()
    if as_json:
        return terminal.print_json(entries)
    laws, columns = sorted({entry["law"] for entry in entries}), ["scheme", "exact", "cost of the rule", "source"]
    names_of_row: dict[tuple[str, ...], list[str]] = {}  # of schemes that differ only in their law
    for entry in entries:
        cost = entry["cost"] + ("; small vocabularies only" if as_markdown else " *") * entry["small"]
        source = "; ".join(filter(None, [entry["source"], entry["known_as"]]))
        exact = ("not audited" if entry["registered"] else "yes") if entry["exact"] else "no"
        row = (entry["rule"], exact, cost, source)
        names_of_row.setdefault(row, []).append(entry["name"])
    if as_markdown:
        rows = [
            [f"`{rule}` with every law" if len(names) == len(laws) else ", ".join(f"`{name}`" for name in names), *rest]
            for (rule, *rest), names in names_of_row.items()
        ]
        return print("\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows]))
    rows = [
        [name, *rest]
        for (rule, *rest), names in names_of_row.items()
        for name in ([f"LAW:{rule}"] if len(names) == len(laws) else names)
    ]
    terminal.print_table(columns, rows)
    terminal.note(f"LAW is any of {', '.join(laws)}. * for small vocabularies only")


app = typer.Typer(
    cls=Commands, help=DESCRIPTION, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
for command in (export_head, generate, schemes, serve):
    app.command(cls=CheckedCommand)(command)


def import_all(modules: list[str] | None) -> list[str] | None:
    """Import modules, also from the current folder, so that scheme names can refer to their rules."""
    import_modules(modules or ())
    return modules


IMPORT = "Import a module of yours, also of this folder: it registers schemes, or has rules for `MODULE:rule,law=iid`."


@app.callback(help=DESCRIPTION)
def options(
    modules: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", callback=import_all, help=IMPORT)
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options of all commands."""


def main() -> None:
    """Run a command; its streams take any text, and SIGTERM ends it as Ctrl-C does."""
    terminal.prepare()
    machine.handle_signals()
    app()
