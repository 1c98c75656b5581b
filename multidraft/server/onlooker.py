"""Sees the trees of the last step, which the numbers and the picture of every request come from."""

from multidraft.decoding.rows import Row
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.state import Decision, Plan, State
from multidraft.decoding.step import decide
from multidraft.decoding.tree import NO_DRAFTS


class Onlooker:
    """A tracer that keeps nothing but the newest step."""

    seconds, looks = 0.0, False

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.paths: list[list[int]] = []

    def seen(self, index: int, root: int) -> tuple[Row, list[int]]:
        """A row's tree, which is its root alone where nothing was drafted, and the accepted path."""
        return (self.rows[index], self.paths[index]) if self.rows else (Row(NO_DRAFTS, [root], [0]), [])

    def forget(self) -> None:
        """A new step begins."""
        self.rows, self.paths = [], []

    def begin(self, state: State, plan: Plan, prompts: list[list[int]]) -> State:
        """Nothing is kept of a beginning."""
        return state

    def decide(self, state: State, plan: Plan, tree: ScoredTree) -> Decision:
        """As without it, and look."""
        decision = decide(state, plan, tree)
        self.rows, self.paths = tree.rows, [ending.path for ending in decision.endings]
        return decision

    def end(self, tokens: list[list[int]]) -> None:
        """Nothing is kept of an end."""
