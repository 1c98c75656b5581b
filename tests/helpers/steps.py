"""The exact law of several decode steps, one after another."""

from multidraft.auditing.enumeration import Branch, Forest, Law, add, all_branches
from multidraft.decoding.state import DecodeConfig, Scored, State, select
from multidraft.decoding.step import commit
from multidraft.decoding.verify import Decision


def law_of_steps(state: State, config: DecodeConfig, steps: int) -> Law:
    """The law of what several steps emit, each of them enumerated from the states that the one before ends in."""
    emitted: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for _ in range(steps):
        forest, branches = all_branches(state, config)
        emitted = [(emitted[b.origin][0] + b.emitted, emitted[b.origin][1] * b.probability) for b in branches]
        state = follow(forest, branches)
    law: Law = {}
    for tokens, probability in emitted:
        add(law, tokens, probability)
    return law


def follow(forest: Forest, branches: list[Branch]) -> State:
    """The state after each of the branches, one a row, so that the next step can be enumerated too."""
    rows = [branch.tree for branch in branches]
    state, scored = select(forest.state, rows), forest.scored
    logits = None if scored.logits is None else scored.logits[rows]
    decision = Decision([branch.ending for branch in branches], [branch.emitted[-1] for branch in branches], [], [])
    return commit(state, Scored(state.rows, [scored.trees[row] for row in rows], logits), decision)
