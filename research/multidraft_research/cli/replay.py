"""`multidraft replay`: a trace as trees, one a step, with what was drawn, what was decided, and why."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from multidraft.cli import terminal
from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.io.journal import Record

if TYPE_CHECKING:
    from rich.text import Text
    from rich.tree import Tree

    from multidraft_research.audits.trace_reading import TraceLines

WIDTH = 160  # of what goes into a file
SHOWN_OF_TEXT = 12  # tokens before a step


def replay(
    file: Annotated[Path, Argument(help="What `multidraft generate --trace FILE` has written.")],
    step: Annotated[int | None, Option(min=0, help="Only this step of each row, counted from 0.")] = None,
    row: Annotated[int | None, Option(min=0, help="Only this row, counted from 0.")] = None,
    check: Annotated[
        bool, Option("--check", help="Take every walk again; exit code 1 if one decides otherwise.")
    ] = False,
    svg: Annotated[Path | None, Option(help="Draw the step into this file, as an SVG of the tree.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print the records, or what --check finds, as JSON.")] = False,
) -> None:
    """Show the steps of a trace as trees, or check that its numbers lead to its decisions and tokens."""
    from multidraft_research.audits.trace_reading import read

    files.check(svg, "--svg", [file])
    trace = read(file)
    if trace.cut:
        terminal.note("The last line is cut off: the run was stopped while it was written.")
    if check:
        report_check(trace, as_json)
        return
    trace.check()
    records = list(trace.steps(row, step))
    if not records:
        raise AdviceError(f"{file} has no such step; it has {extent(trace)}")
    if svg is not None:
        return draw(trace, records, svg)
    if as_json:
        for record in records:
            typer.echo(json.dumps(record, ensure_ascii=False))
    else:
        show(trace, records)


def draw(trace: "TraceLines", records: list[Record], path: Path) -> None:
    """One step as a picture in a file."""
    from multidraft_research.cli.tree_picture import picture

    if len(records) > 1:
        raise AdviceError(f"--svg draws one step, not {len(records)}; name it by --row and --step")
    record = records[0]
    files.write(path, picture(trace.pieces, record, texts(trace)[record["row"], record["step"]]))
    terminal.note(f"wrote {path}")


def extent(trace: "TraceLines") -> str:
    """How much there is in a trace."""
    steps = list(trace.steps(None, None))
    rows = {record["row"] for record in steps}
    return f"{len(steps)} steps of {len(rows)} rows"


def report_check(trace: "TraceLines", as_json: bool) -> None:
    """All that is wrong with a trace; exit code 1 if anything is."""
    from multidraft_research.audits.replay import check

    problems = [f"line {line}: {flaw}" for line, flaw in trace.flaws]
    problems += [f"{where(record)}: {reason}" for record, reason in check(trace.records)]
    if as_json:
        terminal.print_json({"ok": not problems, "checked": extent(trace), "problems": problems})
    else:
        for problem in problems:
            typer.echo(problem)
        typer.echo(f"{extent(trace)}: " + ("NOT what was written" if problems else "every decision follows"))
    if problems:
        raise typer.Exit(1)


def where(record: Record) -> str:
    """What to find a record by."""
    return f"row {record['row']}, step {record['step']}" if record["record"] == "step" else str(record["record"])


def show(trace: "TraceLines", records: list[Record]) -> None:
    """Every step as a tree."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, width=None if sys.stdout.isatty() else WIDTH)
    before = texts(trace)
    for record in records:
        text = terminal.visible(before[record["row"], record["step"]])
        console.print(f"── {where(record)} ──\n{text}", style="dim", soft_wrap=True)
        console.print(Drawing(trace.pieces, record).tree())
        console.print()


def texts(trace: "TraceLines") -> dict[tuple[int, int], str]:
    """The end of the text that each step continues, without the root."""
    rows: dict[int, list[int]] = {}
    texts_by_token = {}
    for record in trace.records:
        if record["record"] == "generation":
            rows |= {record["first_row"] + row: list(tokens) for row, tokens in enumerate(record["prompts"])}
        elif record["record"] == "step":
            tokens, token = rows[record["row"]], {node["node"]: node["token"] for node in record["nodes"]}
            text = "".join(trace.pieces[t] for t in tokens[-1 - SHOWN_OF_TEXT : -1])
            texts_by_token[record["row"], record["step"]] = "… " * (len(tokens) > SHOWN_OF_TEXT + 1) + text
            tokens += [*(token[slot] for slot in record["path"]), record["last"]["token"]]
    return texts_by_token


def distinct_digits(*numbers: float | int) -> list[str]:
    """Numbers with three digits, or as many as tell them from each other.

    >>> distinct_digits(0.6541, 0.65423, 0.6543), distinct_digits(0.5, 0.5)
    (['0.6541', '0.6542', '0.6543'], ['0.5', '0.5'])
    """
    for digits in range(3, 18):
        texts = [f"{number:.{digits}g}" for number in numbers]
        if len(set(texts)) == len(set(numbers)):
            break
    return texts


class Drawing:
    """One step as a tree for the terminal."""

    def __init__(self, pieces: dict[int, str], record: Record):
        self.pieces, self.record = pieces, record
        self.nodes = {node["node"]: node for node in record["nodes"]}
        self.visits = {event["node"]: event for event in record["walk"] if "coin" not in event}
        self.path = [0, *record["path"]]

    def tree(self) -> "Tree":
        """The tree, with the walk and the last token below it."""
        from rich.tree import Tree

        root = Tree(self.text(self.nodes[0]["token"]), guide_style="dim")
        self.grow(root, 0)
        walk = root.add("walk", style="dim")
        for event in self.record["walk"]:
            walk.add(self.event_text(event))
        root.add(self.last())
        return root

    def grow(self, branch: "Tree", node: int) -> None:
        """A node's children, in the order in which they were drawn."""
        entry = self.nodes[node]
        below = {self.nodes[n]["token"]: n for n in self.nodes if self.nodes[n]["above"] == node}
        for token in dict.fromkeys(entry.get("drafted", ())):
            if token in below:
                self.grow(branch.add(self.child(entry, token, below[token])), below[token])

    def child(self, entry: Record, token: int, node: int) -> "Text":
        """A drafted token with its probabilities, and what became of it."""
        from rich.text import Text

        place, times = entry["drafted"].index(token), entry["drafted"].count(token)
        line = f"{self.text(token)}{f' x{times}' if times > 1 else ''}"
        line += f"  draft {entry['draft'][place]:.3g}, target {entry['target'][place]:.3g}"
        if entry["node"] not in self.visits:
            return Text(f"{line}, not looked at", style="dim")
        masses = {slot: mass for slot, mass in self.visits[entry["node"]]["accept_masses"]}
        line += f", acceptance {masses.get(node, 0):.3g}: "
        if node in self.path:
            return Text(f"{line}accepted", style=terminal.COLOURS["accepted"])
        return Text(f"{line}not taken")

    def event_text(self, event: Record) -> str:
        """One event of the walk in words."""
        if "coin" in event:
            coin, number = distinct_digits(event["coin"], event["number"])
            return f"coin of {coin}, number {number}: {'yes' if event['yes'] else 'no'}"
        names = {slot: self.text(self.nodes[slot]["token"]) for slot, _ in event["accept_masses"]}
        masses = [f"{names[slot]} {mass:.3g}" for slot, mass in event["accept_masses"]]
        at = self.text(self.nodes[event["node"]]["token"])
        return (
            f"at {at} with weight {event['weight']:.3g}: {', '.join([*masses, 'others'])} {event['residual_mass']:.3g}"
        )

    def last(self) -> "Text":
        """The last token, and how it came."""
        from rich.text import Text

        last = self.record["last"]
        source = "the target at the leaf" if last["kind"] == "bonus" else "what is left of the target"
        low, high = (last[end] / last["of"] for end in ("from", "to"))
        low_text, number, high_text = distinct_digits(low, last["number"], high)
        line = f"{last['kind']}: {self.text(last['token'])} from {source}, number {number} in {low_text} to {high_text}"
        return Text(line, style=terminal.COLOURS[last["kind"]])

    def text(self, token: int) -> str:
        """A token, with its white space visible."""
        return terminal.visible(json.dumps(self.pieces[token], ensure_ascii=False))
