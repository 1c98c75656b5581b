"""`tree="auto"`: at every step the tree that pays best by what was measured and by what has been accepted since."""

import re
from dataclasses import dataclass

from multidraft.autotune.candidates import MARGIN
from multidraft.autotune.ease import Ease
from multidraft.autotune.pair_plan import PairPlan
from multidraft.autotune.pilot import Pilot
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.shapes import Fixed, Outlook
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Verdict
from multidraft.errors import AdviceError

AGAIN = 2  # steps after which the choice is made anew
PAUSE, LONGEST = 16, 256  # steps without drafts before a probe: the first pause, and the longest


@dataclass(frozen=True)
class Limits:
    """How large trees may become, so that their memory is known."""

    nodes: int = 32
    depth: int = 8

    @classmethod
    def parse(cls, text: str) -> "Limits":
        """What follows `auto`, such as `auto,nodes=24,depth=6`.

        >>> Limits.parse("auto,nodes=24")
        Limits(nodes=24, depth=8)
        """
        found = re.fullmatch(r"auto((?:,(?:nodes|depth)=[1-9]\d{0,3})*)", text.replace(" ", "").lower())
        if not found:
            raise AdviceError(f"tree {text!r} does not parse; write auto, or auto,nodes=24,depth=6")
        given = dict(part.split("=") for part in found[1].split(",")[1:])
        return cls(**{name: int(value) for name, value in given.items()})


class Auto:
    """A shape that decides anew every few steps; it learns from this call alone, so that a run repeats itself.

    All candidates are compared by predicted tokens a second. How much easier than predicted real drafts are found is
    one number for all nodes; a belief in it is learnt, and fades. Where trees that grow were faster when the plan was
    made, one of them takes the place of the best fixed tree, as long as there is one row.
    """

    def __init__(self, plan: PairPlan, temperature: float | int, limits: Limits, tempers: bool = True):
        measured, self.candidates = plan.at(temperature), plan.choice(temperature)
        self.rates, self.tempers = measured.rates, measured.tempers if tempers else [1.0]
        self.allowed = (self.candidates.nodes <= limits.nodes) & (self.candidates.depths <= limits.depth)
        shapes: list[Fixed | Pilot] = [self.candidates.shapes[index] for index in self.allowed.nonzero()[0]]
        self.pilot, self.growing = None, False
        if measured.grows:
            costs = plan.costs.looking(measured.look)
            self.pilot = Pilot(costs, measured.predictions, limits.nodes, limits.depth, self.tempers)
            shapes.append(self.pilot)
        self.most_drafts = max(shape.most_drafts for shape in shapes)
        self.most_slots = max(shape.most_slots for shape in shapes)
        self.counts_drawn = sorted({count for shape in shapes for count in shape.counts_drawn})
        self.ease = Ease()
        self.choice, self.rows, self.age = 0, 0, 0  # the first candidate has no drafts
        self.pause, self.probing = PAUSE, False
        self.expected = Outlook(0.0, 0.0)
        self.reading = plan.costs.at(1).reading  # seconds of the draft model for a prompt's token
        self.toll = 0.0  # seconds of that for every new token, where rows come and go

    @property
    def rests(self) -> bool:
        """Whether nothing is drafted at present, so that what the draft model has not read can wait."""
        return bool(self.rows) and not self.choice and not self.probing

    @property
    def shape(self) -> Fixed | Pilot:
        """The tree that was chosen, or what grows in its place."""
        return self.pilot if self.pilot and self.growing else self.candidates.shapes[self.choice]

    @property
    def is_known(self) -> bool:
        """Whether none of its trees grows."""
        return self.pilot is None

    def charge(self, prompt_tokens: int, new_tokens: int) -> None:
        """Count what the draft model reads of prompts as a price of the new tokens, so far so many."""
        self.toll = self.reading * prompt_tokens / max(new_tokens, 1)

    def seed(self, rows: int) -> Tree:
        """The tree of this step, chosen anew every few steps and whenever rows have come or gone."""
        self.age += 1
        if rows != self.rows or self.age >= (AGAIN if self.choice else self.pause) or self.probing:
            self.choose(rows)
        return self.shape.seed(rows)

    def choose(self, rows: int) -> None:
        """The candidate with most tokens a second, by a margin; no drafts are believed again after a probe."""
        tokens = self.ease.belief @ self.candidates.by_ease
        spent = self.candidates.seconds(rows) / tokens  # a token of each row
        spent[1:] = (spent[1:] + rows * self.toll) * (1 + MARGIN)
        speeds = self.allowed / spent
        best = int(speeds.argmax())
        resting = not self.choice and rows == self.rows and not self.probing
        self.probing = resting and not best and bool(self.allowed[1:].any())
        if self.probing:
            best = 1 + int(speeds[1:].argmax())
            self.pause = min(2 * self.pause, LONGEST)
        elif best:
            self.pause = PAUSE
        self.choice, self.rows, self.age = best, rows, 0
        self.growing = rows == 1 and best > 0 and not self.probing
        self.expected = Outlook(rows * float(tokens[best]), float(self.candidates.seconds(rows)[best]))

    def reads(self, drafts: DraftTree, depth: int) -> list[list[int]]:
        """The drawing slots of the tree that was chosen."""
        return self.shape.reads(drafts, depth)

    def extended(self, drafts: DraftTree, depth: int) -> list[Tree]:
        """What the shape that was chosen says."""
        return self.shape.extended(drafts, depth)

    def temper(self, drafts: int) -> float:
        """As it was best when the plan was made."""
        return self.tempers[drafts] if drafts < len(self.tempers) else 1.0

    def hear(self, tree: ScoredTree, row: int, node: int, weight: float, verdict: Verdict) -> None:
        """Learn from what the rule accepts, which is exact: no coin is in it."""
        here = tree.rows[row]
        depth = here.tree.depths[node]
        predicted = self.rates.accepted(min(here.count(node), self.rates.most), weight, depth)
        self.ease.add(verdict.acceptance, weight * predicted, weight, len(tree.rows))
        self.shape.hear(tree, row, node, weight, verdict)

    def outlook(self) -> Outlook:
        """What is expected of this step."""
        return self.shape.outlook() or self.expected
