"""Checking a trace: its walks are taken again with the recorded random numbers, and must decide as they did.

What the rules said (masses, weights, what is left) is taken from the record: a rule needs whole distributions, which a
trace does not keep.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from multidraft.decoding.walks import WALKS, Child, Residual, Verdict, Walker, drive
from multidraft.errors import AdviceError
from multidraft.io.journal import Record


class Mismatch(Exception):
    """What a record says cannot have happened."""


def check(records: Iterable[Record], walk: Walker | None = None) -> Iterator[tuple[Record, str]]:
    """The records that cannot be true, each with the reason; `walk` where a trace was made with one of your own."""
    rows: dict[int, ReplayRow] = {}
    first, start = 0, walk
    for record in records:
        try:
            if record["record"] == "generation":
                first, start = record["first_row"], walk or walker_of(record)
                rows |= {first + row: ReplayRow(prompt[-1]) for row, prompt in enumerate(record["prompts"])}
            elif record["record"] == "step":
                if start is None or record["row"] not in rows:
                    raise Mismatch("it comes before its generation")
                rows[record["row"]].follow(record, start)
            elif record["record"] == "end":
                for row, tokens in enumerate(record["tokens"], first):
                    rows[row].end(tokens)
        except Mismatch as mismatch:
            yield record, str(mismatch)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, AdviceError):
                raise
            yield record, f"it is not what a trace holds ({type(error).__name__}: {error})"


def walker_of(record: Record) -> Walker:
    """The walk of a generation, by its name."""
    if record["walk"] not in WALKS:
        raise AdviceError(f"the trace was made with a walk of yours, {record['walk']}; call check(records, walk=...)")
    return WALKS[record["walk"]]


class ReplayRow:
    """One row's tokens so far: every step begins where the one before it ended."""

    def __init__(self, root: int):
        self.root, self.step, self.tokens = root, 0, list[int]()

    def follow(self, record: Record, start: Walker) -> None:
        """Check one step."""
        root, self.root = self.root, record["last"]["token"]
        step, self.step = self.step, record["step"] + 1
        self.tokens += [*tokens_of(record), self.root]
        agree("step", record["step"], step)
        agree("token of the root", record["nodes"][0]["token"], root)
        check_tree(record)
        check_walk(record, start)
        check_last(record["last"])

    def end(self, tokens: list[int]) -> None:
        """Check what was returned, which may be shorter by what the last step had to cut."""
        agree("returned tokens", tokens, self.tokens[: len(tokens)])


def tokens_of(record: Record) -> list[int]:
    """The accepted tokens."""
    token = {node["node"]: node["token"] for node in record["nodes"]}
    return [token[node] for node in record["path"]]


def check_tree(record: Record) -> None:
    """Every node holds a token that was drafted at the node above it."""
    nodes = {node["node"]: node for node in record["nodes"]}
    for node in record["nodes"][1:]:
        if node["token"] not in nodes[node["above"]].get("drafted", ()):
            raise Mismatch(f"token {node['token']} of node {node['node']} was not drafted at node {node['above']}")
    for above, slot in zip((0, *record["path"]), record["path"], strict=False):
        agree(f"node above {slot}, which is on the path,", nodes[slot]["above"], above)


def check_walk(record: Record, start: Walker) -> None:
    """The walk asks and flips what the record says, and ends where it says."""
    recorded = RecordedWalk(record["walk"])
    draws = {node["node"] for node in record["nodes"] if "drafted" in node}
    (walk_result,) = drive([start(0, 1.0, draws.__contains__, recorded.coin)], recorded.verdicts)
    if recorded.events:
        raise Mismatch(f"the walk ends before {recorded.events[0]}")
    agree("path", record["path"], walk_result.path)
    agree("kind of the last token", record["last"]["kind"], "bonus" if walk_result.residual is None else "recovered")


def check_last(last: Record) -> None:
    """The last token is where its random number points."""
    point = min(last["number"] * last["of"], math.nextafter(last["of"], 0.0))
    if not last["from"] <= point < last["to"]:
        raise Mismatch(f"number {last['number']} does not draw the last token, from {last['from']} to {last['to']}")


class RecordedWalk:
    """A recorded walk's events, which a walk that is taken again must ask for one by one."""

    def __init__(self, events: list[Record]):
        self.events = list(events)

    def take(self, name: str) -> Record:
        """The next event, of this kind."""
        if not self.events or name not in self.events[0]:
            event = self.events[0] if self.events else "no more"
            raise Mismatch(f"the walk needs a {name}, and the record has {event}")
        return self.events.pop(0)

    def coin(self, probability: float) -> bool:
        """The answer to a coin, which its number must give too."""
        event = self.take("coin")
        agree("probability of a coin", event["coin"], probability)
        number = event["number"]
        agree(f"coin of probability {probability} with number {number}", event["yes"], number < probability)
        return bool(event["yes"])

    def verdicts(self, queries: dict[int, tuple[int, float]]) -> dict[int, Verdict]:
        """What the rule said."""
        node, weight = queries[0]
        event = self.take("node")
        agree("node", event["node"], node)
        agree(f"weight at node {node}", event["weight"], weight)
        children = tuple(Child(*mass) for mass in event["accept_masses"])
        return {0: Verdict(children, RecordedResidual(event["residual_mass"]))}


@dataclass(frozen=True)
class RecordedResidual(Residual):
    """What a rule left, of which a record has the sum alone."""

    left: float

    @property
    def mass(self) -> float:
        return self.left

    def token_weights(self) -> Tensor:
        raise Mismatch("a record does not hold whole laws")

    def draw(self, number: float) -> int:
        raise Mismatch("a record does not hold whole laws")


def agree(what: str, recorded: object, expected: object) -> None:
    """Raise unless they are the same."""
    if recorded != expected:
        raise Mismatch(f"{what}: recorded {recorded}, but it must be {expected}")
