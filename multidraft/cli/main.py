"""The command line: its commands, those that other packages add, and one line for whatever a user can mend."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from multidraft import __version__, machine
from multidraft.cli import terminal
from multidraft.cli.generate import generate
from multidraft.cli.options import Checked, without_types
from multidraft.cli.serve import serve
from multidraft.cli.tune import tune
from multidraft.errors import AdviceError, BrokenProgram

ABOUT = "Multi-draft speculative decoding: faster generation, with exactly the target model's distribution."
COMMANDS = "multidraft.commands"  # the group of entry points: a command's function, or a typer.Typer of several
ANYTHING = {"allow_extra_args": True, "ignore_unknown_options": True}
UsageError: Any = typer.BadParameter.__bases__[0]  # typer does not export it, and its home depends on the version


@contextmanager
def one_line(ctx: Any) -> Iterator[None]:
    """What a user can mend ends with one line on stderr and exit code 2; Ctrl-C with 130, a fault of ours with 70."""
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
    except BrokenProgram as error:
        line, code = str(error), machine.BROKEN
    except KeyboardInterrupt as interrupt:
        line, code = str(interrupt) or "stopped", machine.STOPPED
    except BrokenPipeError:
        terminal.give_up()
        line = "what reads the output was closed before the end; read all of it, or write into a file"
    except OSError as error:
        terminal.give_up()
        line = f"{error.filename or 'the output'} failed: {error.strerror or error}; check the path and the room there"
    typer.echo(f"multidraft: {terminal.message(line)}", err=True)
    raise typer.Exit(code)


class Commands(TyperGroup):
    """Our commands and those of entry points, none of which ends with a traceback over what a user can mend."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with one_line(ctx) if args else nullcontext():  # without any, this shows the help
            return super().parse_args(ctx, args)
        raise AssertionError  # for mypy: the line above returns or raises

    def invoke(self, ctx: Any) -> Any:
        with one_line(ctx):
            return super().invoke(ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        return without_types(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted({*super().list_commands(ctx), *(point.name for point in entry_points(group=COMMANDS))})

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        for point in () if cmd_name in self.commands else entry_points(group=COMMANDS, name=cmd_name):
            self.commands[cmd_name] = loaded(point)
        return super().get_command(ctx, cmd_name)


def loaded(point: EntryPoint) -> Any:
    """The command of an entry point; one that cannot be loaded says so when it is called."""
    group = typer.Typer(rich_markup_mode="markdown", add_completion=False)
    try:
        found = point.load()
    except Exception as error:  # whatever happens while a module of others is imported
        reason = f"the command {point.name} cannot be loaded from {point.value} ({error}); install its package again"

        def refuse() -> None:
            raise AdviceError(reason)

        group.command(point.name, help="Cannot be loaded.", context_settings=ANYTHING)(refuse)
        return typer.main.get_command(group)
    if isinstance(found, typer.Typer):
        group.add_typer(found, name=point.name)
        return typer.main.get_group(group).commands[point.name]
    group.command(point.name, cls=Checked)(found)
    return typer.main.get_command(group)


def show_version(asked: bool) -> bool:
    """Print the version, and end."""
    if asked:
        typer.echo(f"multidraft {__version__}")
        raise typer.Exit()
    return asked


def schemes(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="Print the table that pages show.")] = False,
) -> None:
    """List the schemes: drafting law, verification rule, whether it is exact, what it costs, where it is from."""
    import multidraft as md

    if as_json and as_markdown:
        raise AdviceError("--json and --markdown are two forms of one list; choose one")
    entries: list[dict[str, Any]] = md.schemes()
    if as_json:
        return terminal.print_json(entries)
    laws, columns = sorted({entry["law"] for entry in entries}), ["scheme", "exact", "cost of the rule", "source"]
    alike: dict[tuple[str, ...], list[str]] = {}  # the names of schemes that differ in their law alone
    for e in entries:
        cost = e["cost"] + ("; small vocabularies only" if as_markdown else " *") * e["small"]
        source = "; ".join(filter(None, [e["source"], e["known_as"]]))
        alike.setdefault((e["rule"], "yes" if e["exact"] else "no", cost, source), []).append(e["name"])
    if as_markdown:
        rows = [
            [f"`{rule}` with every law" if len(names) == len(laws) else ", ".join(f"`{n}`" for n in names), *rest]
            for (rule, *rest), names in alike.items()
        ]
        return print("\n".join(f"| {' | '.join(row)} |" for row in [columns, ["---"] * len(columns), *rows]))
    rows = [
        [name, *rest]
        for (rule, *rest), names in alike.items()
        for name in ([f"LAW:{rule}"] if len(names) == len(laws) else names)
    ]
    terminal.print_table(columns, rows)
    terminal.note(f"LAW is any of {', '.join(laws)}. * for small vocabularies only")


app = typer.Typer(
    cls=Commands, help=ABOUT, no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode="markdown"
)
for command in (generate, schemes, serve, tune):
    app.command(cls=Checked)(command)


def import_all(modules: list[str] | None) -> list[str] | None:
    """Import the modules, also of the current folder, whose rules a scheme's name may then stand for."""
    for module in modules or ():
        if os.getcwd() not in sys.path:
            sys.path.append(os.getcwd())
        try:
            import_module(module)
        except Exception as error:  # whatever a module of others may do
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise AdviceError(f"--import {module} fails with {what}; give a module's name, as in my_rules") from error
    return modules


IMPORT = "Import a module of yours, also of this folder: it registers schemes, or has rules for `MODULE:rule,law=iid`."


@app.callback(help=ABOUT)
def options(
    modules: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", callback=import_all, help=IMPORT)
    ] = None,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """What all commands share."""


def main() -> None:
    """Run a command; streams take any text, and signals end it as Ctrl-C does."""
    terminal.prepare()
    machine.hear_signals()
    app()
