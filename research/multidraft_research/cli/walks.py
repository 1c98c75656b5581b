"""`multidraft study walks`: what each walk makes of whole trees, beside the most that is possible."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from multidraft.cli import completion, terminal

if TYPE_CHECKING:
    from multidraft_research.studies.walks import WalkLine


def walks(
    scheme: Annotated[
        list[str] | None,
        Option(help="May be repeated.", show_default="five of them", autocompletion=completion.schemes),
    ] = None,
    tree: Annotated[
        list[str] | None, Option(help="May be repeated.", show_default="1x1, 1x1x1, 2x1, 3x1 and 2x2")
    ] = None,
    vocabulary: Annotated[int, Option(min=2, help="Tokens; 2 or 3.")] = 3,
    cases: Annotated[int, Option(min=1, help="Random pairs of models to average over.")] = 6,
    seed: Annotated[int, Option(min=0, max=2**32)] = 0,
    as_json: Annotated[bool, Option("--json", help="Print JSON, and progress on stderr.")] = False,
) -> None:
    """Accepted tokens of every walk over tiny trees, exactly, beside the most that any lossless use could accept."""
    from tqdm import tqdm

    from multidraft_research.studies.walks import SCHEMES, TREES, jobs, measure

    chosen_jobs = jobs(scheme or SCHEMES, tree or TREES, vocabulary)
    lines = [measure(s, shape, vocabulary, cases, seed) for s, shape in tqdm(chosen_jobs, desc="walking", unit="line")]
    if as_json:
        return terminal.print_json([asdict(line) for line in lines])
    terminal.note(f"accepted tokens a target pass, {vocabulary} tokens, mean of {cases} random cases, seed {seed}")
    columns = [name.removeprefix("deferred, ") for name in lines[0].walks]
    for name in dict.fromkeys(line.scheme for line in lines):
        typer.echo(name)
        rows = [cells(line) for line in lines if line.scheme == name]
        terminal.print_table(["tree", *columns, "bound"], rows, numbers=True)


def cells(line: "WalkLine") -> list[str]:
    """One row of a scheme's table."""
    return [line.tree, *(f"{value:.4f}" for value in (*line.walks.values(), line.bound))]
