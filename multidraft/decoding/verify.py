"""Where rules meet trees: the verdict at any node of any row, computed when a walk asks for it."""

from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch

from multidraft.decoding.record import CoinFlip, Decision, Visit
from multidraft.decoding.state import Randomness
from multidraft.decoding.targets import NodeResidual, NodeTarget, PlaceValues, Targets, stack_targets
from multidraft.decoding.tree import TokenTree, stack_distributions
from multidraft.decoding.walks import Child, Queries, Verdict, Walker, drive, walker
from multidraft.errors import AdviceError
from multidraft.verification.rules.recursive_rejection import single_draft_residual
from multidraft.verification.scheme import Scheme

MIN_ACCEPT_MASS = 1e-15  # what is below it is rounding: whether they take a coin must not depend on a row's neighbours


class NodeQuery(NamedTuple):
    """A node of a tree, where the rule is asked, with its target scaled to a weight."""

    tree: TokenTree
    node: int
    weight: float
    target: NodeTarget


def verify(scheme: Scheme, walk: str | Walker, targets: Targets, numbers: list[float]) -> Decision:
    """Walk every row's tree with the scheme's rule, and draw the one more token where the walk ends, by its number."""
    events: list[list[Visit | CoinFlip]] = [[] for _ in targets.rows]
    start = walker(walk)
    walks = [
        start(0, 1.0, tree.has_drafts, recording_coin(row.random, row_events))
        for row, tree, row_events in zip(targets.rows, targets.trees, events, strict=True)
    ]

    def verdicts(queries: Queries) -> dict[int, Verdict]:
        answers = node_outcomes(scheme, targets, queries)
        for row, verdict in answers.items():
            events[row].append(Visit(*queries[row], verdict))
        return answers

    walk_results = drive(walks, verdicts)
    return Decision(walk_results, targets.draw(walk_results, numbers), numbers, events)


def check_walk(scheme: Scheme, walk: str | Walker) -> None:
    """Raise unless it is a walk, and the rule takes targets that sum to less than one where it asks for them."""
    walker(walk)
    if walk != "commit" and not scheme.entry.sub_probability:
        raise AdviceError(
            f"{scheme.name} takes targets that sum to one, and the walk {walk} asks for less; use walk='commit', or "
            "register the rule with sub_probability=True if it is right for them (audit it so, too)"
        )


def recording_coin(random: Randomness, events: list[Visit | CoinFlip]) -> Callable[[float], bool]:
    """A row's coin, which notes what it showed."""

    def coin(probability: float) -> bool:
        number = random.number()
        events.append(CoinFlip(probability, number, number < probability))
        return number < probability

    return coin


def node_outcomes(scheme: Scheme, targets: Targets, queries: Queries) -> dict[int, Verdict]:
    """For each row the rule's verdict at a node with its target scaled by a weight; none for rows with a fault.

    A single draft is coupled with the target, which takes two numbers; nodes with as many drafts go in one batch.
    """
    node_targets = targets.at([(row, node) for row, (node, _) in queries.items()])
    answers, groups = dict[int, Verdict](), defaultdict[int, dict[int, NodeQuery]](dict)
    for (row, (node, weight)), target in zip(queries.items(), node_targets, strict=True):
        tree, query = targets.trees[row], NodeQuery(targets.trees[row], node, weight, target)
        if row in targets.faults:
            continue
        if scheme.with_drafts(tree.counts[node]).is_coupling and tree.children[node]:
            answers[row] = single_draft_outcome(query)
        else:
            groups[tree.counts[node]][row] = query
    for count, group in groups.items():
        answers |= zip(group, batched_outcomes(scheme.with_drafts(count), [*group.values()]), strict=True)
    return {row: answers[row] for row in queries if row in answers}


def batched_outcomes(scheme: Scheme, queries: list[NodeQuery]) -> list[Verdict]:
    """Verdicts at nodes that drew the same number of tokens."""
    node_laws = [query.tree.laws[query.node] for query in queries]
    weights = torch.tensor([[query.weight] for query in queries], dtype=torch.float64)
    drafted = torch.tensor([query.tree.places[query.node] for query in queries])
    target = stack_targets([query.target for query in queries])
    outcome = scheme.verify(target * weights, stack_distributions(node_laws, scheme.drafts, padding=1), drafted)
    parts = zip(outcome.accept.tolist(), outcome.residual, outcome.residual_mass.tolist(), strict=True)
    verdicts = list[Verdict]()
    for (tree, node, _, node_target), (accept, left, mass) in zip(queries, parts, strict=True):
        children = accept_masses(tree.children[node], tree.tuples[node], accept)
        verdicts.append(Verdict(children, NodeResidual(node_target, left.numpy, mass)))
    return verdicts


def accept_masses(children: dict[int, int], drafted: list[int], accept: list[float]) -> tuple[Child, ...]:
    """What each child of a node may claim, by token; duplicates added up."""
    masses = dict.fromkeys(drafted, 0.0)
    for token, mass in zip(drafted, accept, strict=True):
        masses[token] += mass
    return tuple(Child(children[token], mass) for token, mass in masses.items() if mass > MIN_ACCEPT_MASS)


def single_draft_outcome(query: NodeQuery) -> Verdict:
    """The verdict on a single draft: p/q says what it may claim, and the rest is computed if it is rejected."""
    tree, node, weight, target = query
    ((_, child),) = tree.children[node].items()
    draft, place = tree.laws[node].probabilities, max(tree.places[node])
    likely, drawn = weight * float(target.values[place]), float(draft[place])
    accept = 1.0 if likely >= drawn else likely / drawn

    def residual() -> PlaceValues:
        return single_draft_residual(stack_targets([target])[0].numpy(), draft, weight, accept)

    return Verdict((Child(child, accept),) if accept > MIN_ACCEPT_MASS else (), NodeResidual(target, residual))
