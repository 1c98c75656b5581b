"""Tables as the papers print them, for their own models and hardware; never to be mixed up with ours.

Each is a file of tab-separated values beside this one: where it stands, its columns, its rows.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Printed:
    """A table, every entry as it stands there."""

    where: str
    columns: list[str]
    rows: list[list[str]]


def printed_table(name: str) -> Printed:
    """A table by the name of its file.

    >>> printed_table("spectr_table_1").rows[-1]
    ['SpecTr', '8', '8', '4.0', '2.13']
    """
    where, *lines = Path(__file__).with_name(f"{name}.tsv").read_text(encoding="utf-8").splitlines()
    columns, *rows = (line.split("\t") for line in lines)
    return Printed(where, columns, rows)
