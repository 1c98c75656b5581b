"""The step: draft a tree, score it in one target pass, walk it, keep what was accepted."""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.branches import nodes, taking_numbers
from multidraft.decoding.draft import grow, kept_of
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.foreseen import verdicts_of
from multidraft.decoding.logprobs import look_up
from multidraft.decoding.metrics import Info
from multidraft.decoding.plain import answered, going_on, is_bare, is_looked_at
from multidraft.decoding.rows import Row, rows_of
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.state import Decision, Emitted, Plan, State, padded, plan_at, release, take_over
from multidraft.decoding.verify import Asked
from multidraft.decoding.walks import Ending, Verdict, drive, walker
from multidraft.sampling.prefixes import lengthened
from multidraft.sampling.settings import settings_of_rows

Hear = Callable[[int, int, float, Verdict], None]  # a row, a node, the weight of its target, and the verdict


def step(state: State, plan: Plan, info: Info) -> tuple[State, list[Emitted]]:
    """Draft, score, walk, keep: one target pass, and at least one new token for every row.

    Go on from the state that it returns. If it is interrupted, the old state is as good as before, or says that it is
    not: an interruption while the caches are written leaves them of two minds.
    """
    plan, passes = plan_at(state, plan), state.said is None  # the pass over a prompt counts as none
    take_over(state)
    try:
        with info.watch.part("draft"):
            drafts = grow(state, plan) if plan.shape.most_drafts or is_looked_at(state, plan) else None
        if drafts is None or is_bare(state, plan, drafts):
            answer = answered(state, plan, info)
        else:
            answer = None
            with info.watch.part("target"):
                tree = score(state, drafts)
            with info.watch.part("rule"):
                decision = (plan.trace.decide if plan.trace else decide)(state, plan, tree)
    except BaseException:
        release(state)
        raise
    if answer is not None:
        return going_on(state, plan, answer, info)
    with info.watch.part("cache"):
        state = keep(state, tree, decision)
    if passes:
        with info.watch.part("measuring"):
            info.add_step(plan, tree, decision)
    ends = enumerate(zip(decision.endings, decision.last, strict=True))
    return state, [emit(plan, tree, row, ending, last) for row, (ending, last) in ends]


def score(state: State, drafts: DraftTree) -> ScoredTree:
    """The target's logits at every node of the tree, in one forward pass; slots that are no nodes are left out."""
    rows = None if drafts.read_whole else rows_of(drafts)
    logits = said(state, drafts, rows) if state.said is None else state.said
    return ScoredTree(settings_of_rows(state.sampling), drafts, rows, logits)


def said(state: State, drafts: DraftTree, rows: list[Row] | None) -> Float[Tensor, "batch nodes vocabulary"]:
    """What the target says of them."""
    if rows is None:
        return state.target.forward(drafts.tokens.clamp(min=0), state.position[:, None] + drafts.depths, drafts.sees)
    if (target := taking_numbers(state.target, drafts)) is not None:
        return torch.from_numpy(target.read(nodes(rows[0], state.positions[0])))[None]
    return state.target.forward(*nodes_alone(drafts, rows, state.position[:, None]))


def nodes_alone(drafts: DraftTree, rows: list[Row], start: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nodes' tokens, positions, and which of them each sees."""
    tokens, sees, depths = drafts.tokens, drafts.sees, drafts.depths
    widest = max(len(row.slots) for row in rows)
    if any(len(row.slots) < tokens.shape[1] for row in rows):
        packed = torch.tensor([(row.slots + row.spare)[:widest] for row in rows], device=tokens.device)
        line = torch.arange(len(rows), device=tokens.device)[:, None]
        tokens, sees, depths = tokens[line, packed].clamp(min=0), sees[line, packed], depths[packed]
        sees = sees.gather(-1, packed[:, None].expand(-1, widest, -1))
    return tokens, start + depths, sees


def decide(state: State, plan: Plan, tree: ScoredTree, hear: Hear | None = None) -> Decision:
    """Where the walk of every row ends, and its one more token; `hear` and the shape are told every verdict."""
    start, acceptance = walker(plan.walk), dict[int, float]()
    numbers = [random.number() for random in state.random]  # of the last tokens: before coins, for `Foreseen`
    rule = verdicts_of(plan.scheme, tree, start, numbers)

    def verdicts(asked: Asked) -> dict[int, Verdict]:
        answers = rule(asked)
        for row, (node, weight) in asked.items():
            if node == 0:
                acceptance[row] = answers[row].acceptance
            plan.shape.hear(tree, row, node, weight, answers[row])
            if hear is not None:
                hear(row, node, weight, answers[row])
        return answers

    walks = [start(0, 1.0, row.has_drafts, random.coin) for row, random in zip(tree.rows, state.random, strict=True)]
    endings = drive(walks, verdicts)
    return Decision(endings, rule.last(endings, numbers), acceptance, numbers)


def keep(state: State, tree: ScoredTree, decision: Decision) -> State:
    """Both caches keep the root and the accepted path; what was emitted last is the next root."""
    paths = [[0, *ending.path] for ending in decision.endings]
    if state.said is None:
        slots = [[row.place[slot] for slot in path] for row, path in zip(tree.rows, paths, strict=True)]
        state.target.keep(padded(slots))
    unread = state.unread
    if state.draft is not None:
        kept, unread = kept_of(state, tree.drafts, tree.rows, paths)
        if tree.drafts.levels:
            state.draft.keep(padded(kept))
    positions = [position + len(path) for position, path in zip(state.positions, paths, strict=True)]
    following = State(state.target, state.draft, state.random, decision.last, positions, unread, state.sampling)
    if state.prefixes is not None:
        leaves = tree.drafts.prefixes((row, path[-1]) for row, path in enumerate(paths)) or []
        following.prefixes = lengthened(leaves, following.root)
    return following


def emit(plan: Plan, tree: ScoredTree, row: int, ending: Ending, last: int) -> Emitted:
    """The accepted tokens and the last one, each with its kind, and its log-probability if it is asked for."""
    kind = "bonus" if ending.weights is None else "corrected"
    logs = [] if plan.logprobs is None else look_up(tree, row, ending, last, plan.logprobs)
    tokens = [tree.rows[row].token[slot] for slot in ending.path]
    return Emitted([*tokens, last], ["accepted"] * len(ending.path) + [kind], logs)
