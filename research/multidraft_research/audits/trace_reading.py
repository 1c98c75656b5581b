"""Traces read from files: what a record must have, and in which order records come."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multidraft.decoding.shapes import MAX_NODES
from multidraft.decoding.trace import FORMAT_VERSION, tokens_in
from multidraft.errors import AdviceError
from multidraft.io import fields, journal
from multidraft.io.fields import Field, Flag, Items, Number, Object, TableField, Text, Whole, exactly


@dataclass(frozen=True)
class Either(Field):
    """One kind of object where a field marks it; else another kind of value."""

    mark: str
    marked: Field
    unmarked: Field

    def read(self, value: Any, name: str) -> Any:
        """The value, as its kind."""
        return (self.marked if isinstance(value, dict) and self.mark in value else self.unmarked).read(value, name)


MANY = 2**31
COUNT, NODE, NUMBER = Whole(0, MANY), Whole(0, MAX_NODES), Number(0, 1)  # of rows, steps and tokens; a random number
MASS, SUM = Number(-1e-3, 1.001), Number(-1e-3, 1e6)  # of probability, beyond 0 and 1 by rounding; of weights
TOKENS, MASSES, TEXTS = Items(COUNT, 0, MANY), Items(MASS, 0, MANY), Items(Text(), 0, MAX_NODES, required=True)
PLACE: dict[str, Field] = {"node": NODE, "above": Whole(-1, MAX_NODES), "token": COUNT}
DRAFTS = {"drafted": TOKENS, "draft": MASSES, "target": MASSES, "numbers": Items(Items(NUMBER, 0, MANY), 0, MANY)}
COIN = exactly({"coin": MASS, "number": NUMBER, "yes": Flag()})
ACCEPT_MASSES = Items(Items(Number(-1e-6, MAX_NODES), 2, 2), 0, MAX_NODES)  # pairs of a node and its mass
VERDICT = exactly({"node": NODE, "weight": MASS, "accept_masses": ACCEPT_MASSES, "residual_mass": MASS})
NAME, KIND = Text("(?s).+", "a name"), Text("bonus|recovered", "bonus or recovered")
LAST = exactly({"token": COUNT, "kind": KIND, "number": NUMBER, "from": SUM, "to": SUM, "of": Number(1e-300, 1e6)})
TREE = exactly({"parents": Items(Whole(-1, MAX_NODES), 1, MAX_NODES + 1), "drafts": Items(NODE, 1, MAX_NODES + 1)})
CUTS = {"top_k": COUNT, "top_p": NUMBER, "min_p": NUMBER}
SAMPLING = Object({"temperature": Number(0, 1e6, required=True), "processors": TEXTS} | CUTS)
PIECES: dict[str, Field] = {"pieces": TableField(r"[0-9]{1,10}", int, Text(), MANY)}
NODES = Items(Either("drafted", exactly(PLACE | DRAFTS), exactly(PLACE)), 1, MAX_NODES + 1)
GENERATION = {"first_row": COUNT, "scheme": NAME, "settings": Object(), "tree": Either("parents", TREE, NAME)}
GENERATION |= {"walk": NAME, "sampling": SAMPLING, "draft_sampling": SAMPLING} | PIECES
STEP = {"row": COUNT, "step": COUNT, "nodes": NODES, "walk": Items(Either("coin", COIN, VERDICT), 0, MANY)} | PIECES
KINDS: dict[str, dict[str, Field]] = {  # what every record of a kind has
    "trace": {"format": Whole(1, MANY)} | dict.fromkeys(("run", "versions", "hardware"), Object(default={})),
    "generation": GENERATION | {"prompts": Items(Items(COUNT, 1, MANY), 1, MANY)},
    "step": STEP | {"path": Items(NODE, 0, MAX_NODES), "last": LAST},
    "end": {"tokens": Items(TOKENS, 1, MANY)} | PIECES,
}
HOW = "make one with `multidraft generate --trace FILE`"


def read(path: Path) -> "TraceLines":
    """A trace file's records, and what is wrong with them."""
    return TraceLines(path, *journal.read_lines(path, "the trace"))


class TraceLines:
    """The lines of a trace file; a last one without its end was cut off when the run was killed."""

    def __init__(self, path: Path, lines: list[bytes], torn: bytes):
        self.path, self.cut = path, bool(torn)
        self.records = [parse_line(line, f"{path} line {number}") for number, line in enumerate(lines, 1)]
        if not self.records or self.records[0]["record"] != "trace" or self.records[0].get("format") != FORMAT_VERSION:
            raise AdviceError(f"{path} is not a trace of format {FORMAT_VERSION}; {HOW}")
        self.pieces = {int(t): text for record in self.records for t, text in record.get("pieces", {}).items()}
        order, self.flaws = Order(), list[tuple[int, str]]()
        for number, record in enumerate(self.records, 1):
            self.flaws += [(number, "out of its place")] * (not order.fits(record))
            self.flaws += [(number, flaw) for flaw in flaws(record, self.pieces)]

    def steps(self, row: int | None, step: int | None) -> Iterator[dict[str, Any]]:
        """The steps asked for."""
        for record in self.records:
            if record["record"] == "step" and row in (None, record["row"]) and step in (None, record["step"]):
                yield record

    def check(self) -> None:
        """Raise unless every line is in its place, and all that it names is there."""
        for number, flaw in self.flaws:
            raise AdviceError(f"{self.path} line {number}: {flaw}; `replay --check` finds the rest")


def parse_line(line: bytes, where: str) -> dict[str, Any]:
    """One line's record."""
    record = journal.parse(line, where, HOW)
    kind = record.get("record") if isinstance(record, dict) else None
    if not isinstance(kind, str) or kind not in KINDS:
        raise AdviceError(f"{where} is no record of a trace; {HOW}")
    fields.read(exactly(KINDS[kind]) if kind != "trace" else Object(KINDS[kind]), record, where, HOW)
    return {name: value for name, value in record.items() if name == "record" or name in KINDS[kind]}


def flaws(record: dict[str, Any], pieces: dict[int, str]) -> Iterator[str]:
    """What a record names that is not there."""
    nodes, tree = record.get("nodes", []), record.get("tree")
    for index, node in enumerate(nodes):
        above = nodes[node["above"]].get("drafted", ()) if 0 <= node["above"] < index else ()
        if node["node"] != index or (node["token"] not in above if index else node["above"] != -1):
            yield f"nodes[{index}] is no draft of a node before it"
        if "drafted" in node and not len(node["drafted"]) == len(node["draft"]) == len(node["target"]):
            yield f"nodes[{index}] has another number of drafts than of probabilities"
    visits = [event for event in record["walk"] if "coin" not in event] if nodes else []
    slots = [slot for visit in visits for slot in (visit["node"], *(slot for slot, _ in visit["accept_masses"]))]
    if any(slot not in range(len(nodes)) for slot in (*slots, *record.get("path", ()))):
        yield "its walk or path has a node that the tree lacks"
    if isinstance(tree, dict) and tree["parents"] != [-1, *(i for i, n in enumerate(tree["drafts"]) for _ in range(n))]:
        yield "tree.parents and tree.drafts are of no tree"
    if lacking := sorted(tokens_in(record) - pieces.keys()):
        yield f"token {lacking[0]} has no text in pieces"


class Order:
    """Records come in an order: a generation, the steps of its rows one by one, and its end."""

    def __init__(self) -> None:
        self.next_step: dict[int, int] = {}
        self.rows = 0  # of the latest generation

    def fits(self, record: dict[str, Any]) -> bool:
        """Whether a record can come after those before it."""
        if record["record"] == "generation":
            self.rows = len(record["prompts"])
            self.next_step |= {record["first_row"] + row: 0 for row in range(self.rows)}
        if record["record"] != "step":
            return record["record"] != "end" or len(record["tokens"]) == self.rows
        expected = self.next_step.get(record["row"])
        self.next_step[record["row"]] = record["step"] + 1
        return record["step"] == expected
