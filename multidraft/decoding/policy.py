"""How many drafts every node of a tree gets: decided level by level, before anything is drawn there.

A policy may look at nearly everything: draft distributions, tokens drawn so far anywhere in the tree, past steps,
random numbers of its own. It must fix a node's number of drafts before it has seen a token that is drawn at that very
node; then the output is exact with both walks (docs/theory.md).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from multidraft.decoding.tree import TokenTree, TreeShape
from multidraft.verification.scheme import Scheme


@dataclass(frozen=True)
class PolicyLimits:
    """How large a policy's trees may become: caches and paths are kept free for them."""

    max_nodes: int  # of a row's tree, with its root
    draft_counts: Sequence[int]  # which numbers of drafts a node may have, beside none
    max_paths: int | None = None  # of a row's tree; None for as many as nodes
    shared_paths: int = 0  # in place of these, trees of some rows may have so many together, and the others one each
    shape: TreeShape | None = None  # of every tree, where it is known beforehand

    @property
    def max_drafts(self) -> int:
        """The most drafts at a node; 0 where nothing is ever drafted."""
        return max(self.draft_counts, default=0)

    @property
    def slack(self) -> int:
        """The slots of a KV cache that a row may need beyond its tokens."""
        return 2 * self.max_nodes + 2

    def paths(self, rows: int) -> int:
        """The most paths that the trees of so many rows have together."""
        return max(rows * (self.max_paths or self.max_nodes), self.shared_paths + rows)

    def check(self, scheme: Scheme) -> None:
        """Raise AdviceError where a scheme takes only certain numbers of drafts, and not these."""
        for count in self.draft_counts:
            scheme.with_drafts(count)


class Outlook(NamedTuple):
    """What a policy says before a step."""

    model_rests: bool = False  # the draft model need not read prompts: it catches up when it is asked again
    plain_seconds: float | None = None  # of a step without drafts, as measured, if that is well known


class PromptReads(NamedTuple):
    """What a draft model that does not rest reads of prompts for every new token of any row."""

    tokens: float | int = 0.0
    passes: float | int = 0.0  # prompts that come one by one are read one by one


NO_PROMPTS = PromptReads()


class Plan(NamedTuple):
    """What the draft model is to do at a depth; drafting ends where no row has nodes."""

    nodes: list[list[int]]  # to read, by row
    lookup_only: bool = False  # a drafter that looks up what it can asks no model for the rest
    # then a root is read only if a look-up's first draft is right with this probability, where so many rows draft
    min_certainty: Callable[[int], float] = lambda drafting_rows: 0.0


class StepForecast(NamedTuple):
    """The tokens and seconds that a policy expected of a step."""

    tokens: float  # over all rows
    seconds: float


class TreePolicy(ABC):
    """What decoding asks: `begin` where prompts are read; in a step `plan` and `counts` by depth, and `observe`."""

    limits: PolicyLimits

    def begin(self, rows: int, prompt_reads: PromptReads | None = None) -> Outlook:
        """Prompts are about to be read, and so many rows decode then; None for `prompt_reads` that are as before."""
        return Outlook()

    @abstractmethod
    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """For every row the nodes at a depth that the draft model is to read; a step begins with depth 0."""

    @abstractmethod
    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """For every row the number of drafts of nodes that have been read at a depth, whose laws are in the trees."""

    def observe(self, record: Any) -> StepForecast | None:
        """Learn from a StepRecord, also where nothing was drafted; what was expected of the step, if anything was."""
        return None

    def finish(self, advise: bool = True) -> None:
        """The run has ended: keep what was learnt, and `advise` the user if drafts did not pay."""
        return


class StaticTree(TreePolicy):
    """A shape that is known beforehand, the same for every row.

    Slots that got the same token below the same node are one node, which draws what all of them would draw.
    """

    def __init__(self, shape: TreeShape):
        drafts = shape.drafts
        self.shape = shape
        self.limits = PolicyLimits(len(shape), sorted(set(drafts) - {0}), max_paths=drafts.count(0), shape=shape)

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """The nodes whose slots draw anything."""
        for tree in trees if depth == 0 else ():
            tree.static_shape = self.shape
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
            for token, slot in zip(tree.drawn_tokens(node), below, strict=False):
                tree.slots.setdefault(tree.children[node][token], []).append(slot)

    def drafts(self, tree: TokenTree, node: int) -> int:
        """What a node draws."""
        slots, drafts = tree.slots[node], self.shape.drafts
        return drafts[slots[0]] if len(slots) == 1 else sum(drafts[slot] for slot in slots)

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        """What the slots of every node draw together; nothing below the last level, where other rows may go on."""
        if depth >= self.shape.depth:
            return [{} for _ in trees]
        rows = [{node: self.drafts(tree, node) for node in tree.level(depth)} for tree in trees]
        return [{node: count for node, count in row.items() if count} for row in rows]


def policy_of(tree: TreeShape | TreePolicy) -> TreePolicy:
    """A shape as the policy that always draws it."""
    return StaticTree(tree) if isinstance(tree, TreeShape) else tree
