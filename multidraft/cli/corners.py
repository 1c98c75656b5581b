"""`multidraft audit --corners`: schemes tried on thousands of pairs that are made to break them."""

from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

from multidraft.cli import terminal
from multidraft.errors import AdviceError
from multidraft.machine.identity import hardware

if TYPE_CHECKING:
    from multidraft.auditing.corners import Corners

LEGEND = (
    "The worst error seen, in units of what rounding allows: 1e-12 in float64 and 3e-6 in float32. law: of the "
    "probability of emitting a token, summed over every tuple. total: of accept plus residual of a tuple. rest: of the "
    "residual's sum where it is computed on its own. negative: of a probability. banned: whether a token that the "
    "target never emits is emitted."
)
COLUMNS = ["scheme", "pairs", "tuples", "law", "total", "rest", "negative", "banned"]


def corners(name: str | None, pairs: int, seed: int, as_json: bool) -> bool:
    """One scheme or all; whether no error exceeds what rounding allows."""
    from tqdm import tqdm

    from multidraft.auditing.corners import exact_schemes, try_corners

    names = exact_schemes() if name is None else [checked(name, exact_schemes())]
    found = {each: try_corners(each, pairs, seed) for each in tqdm(names, desc="corners", unit="scheme", leave=False)}
    ok = all(tried.worst <= 1 for tried in found.values())
    if as_json:
        tried = {each: asdict(tried) | {"worst": tried.worst} for each, tried in found.items()}
        terminal.print_json({"as_expected": ok, "seed": seed, "corners": tried})
        return ok
    terminal.print_table(COLUMNS, [cells(each, tried) for each, tried in found.items()], numbers=True)
    typer.echo(LEGEND)
    typer.echo(f"Seed {seed}; {hardware()['cpu']}.")
    return ok


def checked(name: str, exact: list[str]) -> str:
    """The scheme's name, if it is one of those that are tried."""
    from multidraft.verification.registry import scheme

    if scheme(name).name not in exact:
        raise AdviceError(f"{name} is for small vocabularies only, and not tried in corners; try {', '.join(exact)}")
    return name


def cells(name: str, tried: "Corners") -> list[str]:
    """One scheme's line."""
    worst = [tried.law, tried.total, tried.rest, tried.negative, tried.banned]
    return [name, f"{tried.pairs:,}", f"{tried.tuples:,}", *(f"{error:.2g}" for error in worst)]
