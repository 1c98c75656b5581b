"""How many drafts every node of a tree gets: decided level by level, before anything is drawn there.

A policy may look at nearly everything: draft distributions, tokens drawn so far anywhere in the tree, past steps,
random numbers of its own. It must fix a node's number of drafts before it has seen a token that is drawn at that very
node; then the output is exact with both walks (docs/theory.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from multidraft.decoding.tree import TokenTree, TreeShape


class StepForecast(NamedTuple):
    """The tokens and seconds that a policy expects of a step."""

    tokens: float  # over all rows
    seconds: float


class Plan(NamedTuple):
    """What the draft model is to do at a depth; drafting ends where no row has nodes."""

    nodes: list[list[int]]  # to read, by row
    lookup_only: bool = False  # a drafter that looks up what it can asks no model for the rest


class TreePolicy(ABC):
    """What drafting asks for, in this order: `begin`, then by depth `plan` and `counts`, and `observe` in the end.

    `max_drafts` is the largest number of drafts at a node (0 where nothing is ever drafted), `draft_counts` which ones
    a node may have beside none, `max_nodes` the size of the largest tree with its root: caches have room for it.
    """

    max_drafts: int
    max_nodes: int
    draft_counts: Sequence[int]

    @property
    def skips_draft_model(self) -> bool:
        """Whether the draft model need not read prompts at present: it catches up when it is asked again."""
        return False

    @property
    def plain_seconds(self) -> float | None:
        """The measured seconds of a step without drafts, for as many rows as decode now; None if it is not known."""
        return None

    @property
    def slack(self) -> int:
        """The slots of a KV cache that a row may need beyond its tokens."""
        return 2 * self.max_nodes + 2

    def paths(self, rows: int) -> int:
        """The most paths that the trees of so many rows have together; see `limit_paths`."""
        return rows * self.max_nodes

    def limit_paths(self, count: int) -> None:
        """So many paths of all rows together are told apart: trees that grow stay smaller beside many rows."""
        return

    def begin(self, rows: int) -> None:
        """A step of so many rows begins."""
        return

    @abstractmethod
    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """For every row the nodes at a depth that the draft model is to read."""

    @abstractmethod
    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """For every row the number of drafts of nodes that have been read at a depth, whose laws are in the trees."""

    def may_pay(self, certainty: float) -> bool:
        """Whether a tree is worth drafting whose first draft is right with this probability, of what is looked up."""
        return True

    def name(self, tree: TokenTree) -> str:
        """What reports call the shape of a row's tree: what it has grown to, unless a policy knows a better name."""
        return tree.shape.name

    def forecast(self) -> StepForecast | None:
        """The tokens and seconds that are expected of the trees just drawn, if anything is."""
        return None

    def observe(self, record: Any) -> None:
        """What came of the step, a StepRecord; also of steps in which nothing was drafted."""
        return

    def expect(self, rows: int, prompt_tokens: int, new_tokens: int) -> None:
        """A run of so many rows at a time begins, with so many tokens of prompts and new ones in all."""
        return

    def count_prompt_reads(self, prompt_tokens: int, new_tokens: int) -> None:
        """So many tokens of prompts have been read so far, for so many new tokens."""
        return

    def finish(self, advise: bool = True) -> None:
        """The run has ended: keep what was learnt, and `advise` the user if drafts did not pay."""
        return


class StaticTree(TreePolicy):
    """A shape that is known beforehand, the same for every row.

    Slots that got the same token below the same node are one node, which draws what all of them would draw.
    """

    def __init__(self, shape: TreeShape):
        self.shape, self.max_drafts, self.max_nodes = shape, max(shape.drafts), len(shape)
        self.draft_counts = sorted(set(shape.drafts) - {0})

    def paths(self, rows: int) -> int:
        """One for each end of the shape."""
        return rows * self.shape.drafts.count(0)

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """The nodes whose slots draw anything."""
        if depth >= self.shape.depth:
            return Plan([[]] * len(trees))
        for tree in trees if depth else ():
            self.place(tree, depth - 1)
        return Plan([[node for node in tree.level(depth) if self.drafts(tree, node)] for tree in trees])

    def place(self, tree: TokenTree, depth: int) -> None:
        """Note where the children of a level stand: a node's tokens go to its slots' children, in their order."""
        shape = self.shape
        for node in filter(tree.has_drafts, tree.level(depth)):
            below = (shape.first_child[slot] + rank for slot in tree.slots[node] for rank in range(shape.drafts[slot]))
            for token, slot in zip(tree.drawn(node), below, strict=False):
                tree.slots.setdefault(tree.children[node][token], []).append(slot)

    def drafts(self, tree: TokenTree, node: int) -> int:
        """What a node draws."""
        slots, drafts = tree.slots[node], self.shape.drafts
        return drafts[slots[0]] if len(slots) == 1 else sum(drafts[slot] for slot in slots)

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """What the slots of every node draw together."""
        rows = [{node: self.drafts(tree, node) for node in tree.level(depth)} for tree in trees]
        return [{node: count for node, count in row.items() if count} for row in rows]

    def name(self, tree: TokenTree) -> str:
        """The shape's, whatever came out empty or twice."""
        return self.shape.name


def policy_of(tree: TreeShape | TreePolicy) -> TreePolicy:
    """A shape as the policy that always draws it."""
    return StaticTree(tree) if isinstance(tree, TreeShape) else tree
