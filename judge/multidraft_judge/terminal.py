"""What the command shows: progress on stderr while it works, and tables."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

FILE_COLUMNS = 1000  # of a table in a file or a pipe, so that nothing wraps


@contextmanager
def progress_bar(unit: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar of what is done, which the function sets; none where nobody looks."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task(unit, total=total)
        yield lambda done: progress.update(bar, completed=min(done, total))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table."""
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else FILE_COLUMNS).print(table)
