"""Every way that one decode step can go, with its exact probability: proof by summation that a step is lossless.

It drives the decoder's own parts. Where the decoder draws a tuple, a row becomes one row for every possible tuple (a
forest: all trees at once, as a batch); where a walk flips a coin, the walk runs once with each answer. For tiny
vocabularies and trees only: the number of trees is the number of tuples to the power of the nodes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.batch import select
from multidraft.decoding.draft import bare_root, read_level
from multidraft.decoding.drafted_tree import DraftTree
from multidraft.decoding.endings import all_endings
from multidraft.decoding.last_tokens import last_weights
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.scored_tree import ScoredTree
from multidraft.decoding.state import Decision, Emitted, Plan, State, plan_at
from multidraft.decoding.step import emit, keep, score
from multidraft.decoding.walks import Ending
from multidraft.models import LanguageModel
from multidraft.sampling.settings import settings_of_rows
from multidraft.verification.scheme import Scheme

Law = dict[tuple[int, ...], float]  # probabilities of sequences of tokens
Conditional = Callable[[tuple[int, ...]], Tensor]  # from new tokens to the target's distribution of the next one


@dataclass(frozen=True)
class StepLaw:
    """The law of what one step emits (the accepted path and one more token), and the expected length of that path."""

    law: Law
    accepted: float


@dataclass(frozen=True)
class Forest:
    """Every tree that a step can draw, one a row: where it came from, its probability given that, and its scores."""

    state: State
    tree: ScoredTree
    origin: Int[Tensor, " trees"]
    probability: Float[Tensor, " trees"]

    def scored(self, rows: list[int]) -> ScoredTree:
        """What the walks need to know about these trees, which may repeat."""
        index = torch.tensor(rows)
        sampling = settings_of_rows([self.state.sampling[row] for row in rows])
        lines = [self.tree.rows[row] for row in rows]
        return ScoredTree(sampling, self.tree.drafts.select(index), lines, self.tree.logits[index])


@dataclass(frozen=True)
class Branch:
    """One way that a step can go: the row that it starts from, its probability given that row, and what it emits."""

    origin: int
    probability: float
    emitted: Emitted
    tree: int  # its row in the forest
    ending: Ending


def step_law(target: LanguageModel, draft: LanguageModel, prompt: list[int], plan: Plan) -> StepLaw:
    """The exact law of one step after a prompt, for models that have not read anything yet."""
    _, branches = all_branches(first_state(target, draft, prompt, plan), plan)
    law: Law = {}
    for branch in branches:
        add(law, tuple(branch.emitted.tokens), branch.probability)
    return StepLaw(law, sum(branch.probability * len(branch.ending.path) for branch in branches))


def first_state(
    target: LanguageModel, draft: LanguageModel, prompt: list[int], plan: Plan, whole: bool = False
) -> State:
    """The state in which the decoder starts after one prompt, which the target may have read as a whole."""
    return start([prompt], target, draft, plan, len(prompt), torch.Generator(), Info(), whole=whole)


def first_tokens(law: Law, conditional: Conditional, count: int) -> Law:
    """The law of the first `count` tokens: longer sequences are cut, shorter ones go on as the target does."""
    result: Law = {}
    for tokens, probability in law.items():
        for more, weight in target_law(conditional, count - len(tokens), tokens).items():
            add(result, (tokens + more)[:count], probability * weight)
    return result


def target_law(conditional: Conditional, count: int, after: tuple[int, ...] = ()) -> Law:
    """The target's own law of the `count` tokens that follow `after`."""
    if count <= 0:
        return {(): 1.0}
    result: Law = {}
    for token, probability in enumerate(conditional(after).tolist()):
        if probability > 0:
            rest = target_law(conditional, count - 1, (*after, token))
            result |= {(token, *tokens): probability * weight for tokens, weight in rest.items()}
    return result


def largest_difference(law: Law, other: Law) -> float:
    """The largest difference between the probabilities that two laws give to a sequence."""
    return max(abs(law.get(tokens, 0.0) - other.get(tokens, 0.0)) for tokens in law | other)


def all_branches(state: State, plan: Plan) -> tuple[Forest, list[Branch]]:
    """All ways in which the next step can go from every row of the state."""
    forest = all_trees(state, plan)
    origin, probability = forest.origin.tolist(), forest.probability.tolist()
    branches = []
    for tree, chance, ending in all_endings(forest.tree, plan):
        for token, share in last_tokens(forest.tree, tree, ending):
            emitted = emit(plan, forest.tree, tree, ending, token)
            branches.append(Branch(origin[tree], probability[tree] * chance * share, emitted, tree, ending))
    return forest, branches


def law_of_steps(state: State, plan: Plan, steps: int) -> Law:
    """The law of what several steps emit, each of them enumerated from the states that the one before ends in."""
    emitted: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    for _ in range(steps):
        forest, branches = all_branches(state, plan)
        emitted = [
            (emitted[b.origin][0] + tuple(b.emitted.tokens), emitted[b.origin][1] * b.probability) for b in branches
        ]
        state = follow(forest, plan, branches)
    law: Law = {}
    for tokens, probability in emitted:
        add(law, tokens, probability)
    return law


def follow(forest: Forest, plan: Plan, branches: list[Branch]) -> State:
    """The state after each of the branches, one a row, so that the next step can be enumerated too."""
    rows = [branch.tree for branch in branches]
    decision = Decision([branch.ending for branch in branches], [branch.emitted.tokens[-1] for branch in branches], {})
    return keep(select(forest.state, rows), forest.scored(rows), decision)


def all_trees(state: State, plan: Plan) -> Forest:
    """As `grow` and `score`, but every tuple takes its turn instead of being drawn."""
    plan = plan_at(state, plan)
    drafts, depth = bare_root(state, plan), 0
    origin, probability = torch.arange(len(state.roots)), torch.ones(len(state.roots), dtype=torch.float64)
    while read_level(state, plan, drafts, depth):
        rows, drawn, weight = all_draws(plan.scheme, drafts, depth)
        state, drafts = select(state, rows.tolist()), drafts.select(rows)
        for some, drawing in drafts.draws_at(depth):
            drafted = torch.stack([drawn[slot][some] for slot in drawing.slots], 1)
            drafts.fill(plan.scheme.law, some, drawing, drafted)
        origin, probability, depth = origin[rows], probability[rows] * weight, depth + 1
    return Forest(state, score(state, drafts), origin, probability)


def all_draws(
    scheme: Scheme, drafts: DraftTree, depth: int
) -> tuple[Int[Tensor, " draws"], dict[int, Int[Tensor, "draws width"]], Float[Tensor, " draws"]]:
    """Every combination of tuples that can be drawn at a level: its row, the tuple by slot, the probability."""
    rows = torch.arange(len(drafts.trees))
    probability, drawn = torch.ones(len(rows), dtype=torch.float64), dict[int, Tensor]()
    for slot in sorted({slot for _, drawing in drafts.draws_at(depth) for slot in drawing.slots}):
        tuples = tuples_at(scheme, drafts, slot)
        repeats = torch.tensor([len(tuples[row][1]) for row in rows.tolist()])
        here = torch.cat([tuples[row][0] for row in rows.tolist()])
        weight = torch.cat([tuples[row][1] for row in rows.tolist()])
        drawn = {other: tokens.repeat_interleave(repeats, 0) for other, tokens in drawn.items()} | {slot: here}
        rows, probability = rows.repeat_interleave(repeats), probability.repeat_interleave(repeats) * weight
    return rows, drawn, probability


def tuples_at(scheme: Scheme, drafts: DraftTree, slot: int) -> list[tuple[Tensor, Tensor]]:
    """For each row the tuples that can be drawn at a slot, with probabilities; the empty one where none is drawn."""
    width = drafts.drafted.shape[-1]
    known: dict[tuple[int, bytes], tuple[Tensor, Tensor]] = {}
    result = []
    for row, token in enumerate(drafts.tokens[:, slot].tolist()):
        count = drafts.trees[row].drafts[slot] if token >= 0 else 0
        if not count:
            result.append((torch.full((1, width), -1), torch.ones(1, dtype=torch.float64)))
            continue
        distribution = drafts.distribution(row, slot)
        key = count, distribution.numpy().tobytes()
        if key not in known:
            tuples, weight = scheme.with_drafts(count).law.tuples(distribution)
            known[key] = torch.nn.functional.pad(tuples, (0, width - tuples.shape[1]), value=-1), weight
        result.append(known[key])
    return result


def last_tokens(tree: ScoredTree, row: int, ending: Ending) -> list[tuple[int, float]]:
    """The tokens that can come last and their probabilities; -1, as `pick` has it, where no token has any weight."""
    weights = last_weights(tree, row, ending).double()
    total = float(weights.sum())
    if total <= 0:
        return [(-1, 1.0)]
    return [(token, weight / total) for token, weight in enumerate(weights.tolist()) if weight > 0]


def add(law: Law, tokens: tuple[int, ...], probability: float) -> None:
    """Add to the probability of a sequence."""
    law[tokens] = law.get(tokens, 0.0) + probability
