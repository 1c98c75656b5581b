"""Drafting: every row's tree grows level by level, each level in one forward pass of the draft model.

The draft model may lag behind: it first reads the accepted tokens that it has not seen, then the root. Where these are
many, because it has rested, a step reads a piece of them, and the row drafts nothing until the rest is short. A row
beyond the draft model's context drafts nothing more, and is not read.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.state import DecodeConfig, NodeGroup, RowNode, RunningRow, State, groups_by_settings
from multidraft.decoding.tree import LevelScores, NodeLaw, TokenTree, stack_distributions
from multidraft.models.reader import MAX_CHUNK_TOKENS, Scored, chain_parents
from multidraft.sampling.drafting import DraftDistribution, draft_distributions
from multidraft.sampling.row_faults import Faults, RowFault
from multidraft.transfer import take
from multidraft.verification.law import Law

RowNodes = list[RowNode]
MAX_LAG = 64  # tokens before the root that are read in the same pass as it


class Drafted(NamedTuple):
    """The rows' trees, of rows that draft nothing their roots alone."""

    trees: list[TokenTree]
    passes: int  # of the draft model
    faults: dict[int, RowFault]  # rows whose draft model said what makes no distribution


def draft_tree(state: State, config: DecodeConfig, policy: TreePolicy) -> Drafted:
    """Let the policy decide on each level, then draw there; what the prompt's pass has answered needs no drafts."""
    trees = [tree_at_root(row, config.scheme.law) for row in state.rows]
    rows = [number for number, row in enumerate(state.rows) if row.root_logits is None]
    if state.draft is None or not rows:
        return Drafted(trees, 0, {})
    growing, depth, faults, guesses = [trees[row] for row in rows], 0, dict[int, RowFault](), False
    while any((plan := policy.plan(growing, depth)).nodes):
        places = [(row, node) for row, nodes in zip(rows, plan.nodes, strict=True) for node in nodes]
        if not depth:
            places = [(row, root) for row, root in places if can_draft(state, state.rows[row])]
            promising = promising_roots(state, places, plan.min_certainty) if plan.lookup_only else places
            places = drafting_roots(state.rows, trees, promising)
            if not promising:
                break
            guesses = plan.lookup_only and can_guess(state, promising)
            if guesses and len(places) < len(promising):
                read_level(state, config, policy, trees, [], depth, lookup_only=True)  # of those that lag far behind
            places = promising if guesses else places
        if guesses:
            places = guess_level(state, trees, places)
        else:
            faults |= read_level(state, config, policy, trees, places, depth, plan.lookup_only)
        drafting = {row for row, _ in places}.difference(faults)
        counts = dict(zip(rows, policy.counts(growing, depth), strict=True))
        counts = {row: drafts for row, drafts in counts.items() if row in drafting}
        draw_level(state.rows, config.scheme.law, trees, counts)
        depth += 1
    return Drafted(trees, depth, faults)


def tree_at_root(row: RunningRow, law: Law) -> TokenTree:
    """The row's tree before anything is drafted."""
    return TokenTree([row.root], law.can_repeat, is_seeded=row.random.is_seeded, max_depth=row.tokens_left - 1)


def can_draft(state: State, row: RunningRow) -> bool:
    """Whether there is a draft model, whose context has room for the row's root: behind it nothing is drafted."""
    context = None if state.draft is None else state.draft.context
    return state.draft is not None and (context is None or row.position < context)


def promising_roots(state: State, places: RowNodes, min_certainty: Callable[[int], float]) -> RowNodes:
    """The roots whose first drafts are likely enough, by what a look-up knows of them before anything is read.

    The fewer rows draft, the likelier their drafts must be: all others are padded to them.
    """
    draft, rows = state.draft, state.rows
    assert draft is not None
    known = {(row, root): draft.certainty(row, [*rows[row].unread, rows[row].root]) for row, root in places}
    promising, count = places, 0
    while promising and count != len(promising):
        count = len(promising)
        least = min_certainty(count)
        promising = [place for place in promising if (certainty := known[place]) is None or certainty >= least]
    return promising


def drafting_roots(rows: list[RunningRow], trees: list[TokenTree], places: RowNodes) -> RowNodes:
    """The roots to draft at; rows that lag far behind read on instead, a chunk at most of all together."""
    drafting, free_tokens = RowNodes(), MAX_CHUNK_TOKENS
    for row, root in places:
        lag = len(rows[row].unread)
        if lag > MAX_LAG:
            trees[row].backlog = min(lag, free_tokens)
            free_tokens -= trees[row].backlog
        else:
            drafting.append((row, root))
    return drafting


def can_guess(state: State, places: RowNodes) -> bool:
    """Whether what is drafted is one token at each node, which is looked up without reading those before it.

    Such a law is the same under all settings. A drafter guesses for all rows, or for none.
    """
    assert state.draft is not None
    return state.draft.guess(places[0][0], []) is not None


def guess_level(state: State, trees: list[TokenTree], places: RowNodes) -> RowNodes:
    """Note what is looked up at nodes, which the draft model reads later, if they are kept; nodes that have a guess."""
    assert state.draft is not None
    guessed_places = RowNodes()
    for row, node in places:
        tree = trees[row]
        guess = state.draft.guess(row, [tree.tokens[above] for above in tree.path(node)])
        if guess is not None and 0 <= guess[0] < state.target.vocabulary:
            tree.laws[node] = NodeLaw(np.array(guess[:1]), np.ones(1), certainty=guess[1])
            guessed_places.append((row, node))
    return guessed_places


def read_level(
    state: State,
    config: DecodeConfig,
    policy: TreePolicy,
    trees: list[TokenTree],
    places: RowNodes,
    depth: int,
    lookup_only: bool = False,
) -> dict[int, RowFault]:
    """Let the draft model read nodes of a level, the root with the chain above it, and note what is drawn from.

    Three numbers stand for a node: of places, its row's tree; of scores, its row and what was scored there; of laws,
    a line each.

        places   (0, 4) (0, 5) (2, 3)
        scores   (0, 0) (0, 1) (2, 0)
        lines       0      1      2
    """
    assert state.draft is not None
    nodes, rows, columns = defaultdict[int, list[int]](list), list[int](), list[int]()
    for row, node in places:
        rows.append(row)
        columns.append(len(nodes[row]))
        nodes[row].append(node)
    new = [
        tokens_to_read(*pair, nodes.get(row, []), depth) for row, pair in enumerate(zip(state.rows, trees, strict=True))
    ]
    tokens, parents = map(list, zip(*new, strict=True))
    scored: Scored = "all" if depth else "last" if places else "none"
    scores = state.draft.forward_each(tokens, parents, scored, lookup_only)
    if not places:  # all of them are still catching up
        return {}
    groups = groups_by_settings(state.rows, trees, places)
    lines_by_drafter = [drafter.at(rows, columns) for drafter in scores]
    sizes = policy.limits.max_drafts, state.target.vocabulary
    laws = [level_laws(groups, logits, ids, *sizes) for logits, ids in lines_by_drafter]
    law, level = config.scheme.law, LevelScores(lines_by_drafter[0][0], len(scores) == 1 and scores[0].is_partial)
    for line, (row, node) in enumerate(places):
        distributions = [by_line[line] for by_line, _ in laws]
        distribution = merge_distributions(distributions) if law.per_draft_distributions else distributions[0]
        trees[row].laws[node] = NodeLaw(*distribution, level, line)
    faults = {rows[line]: fault for _, faults_of_drafter in laws for line, fault in faults_of_drafter.items()}
    return {row: fault.at(row, state.rows[row].position + depth + 1) for row, fault in faults.items()}


def level_laws(
    groups: list[NodeGroup],
    logits: Float[Tensor, "lines columns"],
    ids: Int[Tensor, "*lines columns"] | None,
    drafts: int,
    vocabulary: int,
) -> tuple[dict[int, DraftDistribution], Faults]:
    """By line, what one drafter's drafts at the nodes of a level are drawn from, and the faults of those without it."""
    distributions, faults = dict[int, DraftDistribution](), Faults()
    for group in groups:
        scores = logits if len(groups) == 1 else take(logits, group.lines)
        tokens = ids if ids is None or ids.ndim == 1 else ids[group.lines]
        laws, faults_of_group = draft_distributions(
            scores, group.sampling, group.prefixes, drafts=drafts, vocabulary=vocabulary, ids=tokens
        )
        distributions |= zip(group.lines, laws, strict=True)
        faults |= {group.lines[line]: fault for line, fault in faults_of_group.items()}
    return distributions, faults


def tokens_to_read(row: RunningRow, tree: TokenTree, nodes: list[int], depth: int) -> tuple[list[int], list[int]]:
    """The tokens of nodes, and the places that they follow among the draft model's pending ones."""
    if depth == 0:
        if nodes:
            tree.read[0] = tree.backlog = len(row.unread)
        tokens = [*row.unread[: tree.backlog], *(tree.tokens[node] for node in nodes)]
        return tokens, chain_parents(len(tokens))
    parents = [tree.read[tree.parents[node]] for node in nodes]
    first = 1 + max(tree.read.values(), default=-1)
    tree.read |= {node: place for place, node in enumerate(nodes, first)}
    return [tree.tokens[node] for node in nodes], parents


def merge_distributions(distributions: Sequence[DraftDistribution]) -> DraftDistribution:
    """The tokens of several drafters' laws, and a line of probabilities for each."""
    ids = np.unique(np.concatenate([distribution.ids for distribution in distributions]))
    lines = np.zeros((len(distributions), len(ids)))
    for line, (support, probabilities) in zip(lines, distributions, strict=True):
        line[np.searchsorted(ids, support)] = probabilities
    return DraftDistribution(ids, lines)


def draw_level(rows: list[RunningRow], law: Law, trees: list[TokenTree], counts: dict[int, dict[int, int]]) -> None:
    """Draw as many tokens as are wanted at every node, fresh from its law, and note what came."""
    groups = defaultdict[int, RowNodes](list)
    for row, node_counts in counts.items():
        for node, count in node_counts.items():
            groups[count].append((row, node))
    drawn = dict[tuple[int, int], tuple[list[int], list[float]]]()
    for count, places in sorted(groups.items()):  # a row takes its numbers in an order of its own
        law_of_count = law.with_drafts(count)
        uniforms = [rows[row].random.take(law_of_count.num_uniforms) for row, _ in places]
        laws = [trees[row].laws[node] for row, node in places]
        if law.draft_probability == 1 and all(node_law.probabilities.shape == (1,) for node_law in laws):
            tuples = [law_of_count.tuple_of_one_token[:] for _ in laws]  # as of look-ups, level by level
        else:
            draft = stack_distributions(laws, count)
            tuples = law_of_count.draw(draft, torch.tensor(uniforms, dtype=torch.float64)).tolist()
        drawn |= zip(places, zip(tuples, uniforms, strict=True), strict=True)
    for row, node_counts in counts.items():
        for node in sorted(node_counts):
            trees[row].add(node, node_counts[node], *drawn[row, node])
