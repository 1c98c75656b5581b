"""Where rules meet trees: the verdict at any node of any row, computed when a walk asks for it.

A rule treats all tokens alike that the drafts' law cannot draw: given the tuple, what it leaves of them is proportional
to the target. So it runs on few "tokens": the support of the law, and one more of draft probability 0 that holds the
target's mass on all others. What is left is expanded to the vocabulary only where a walk ends.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.draft import stack_distributions
from multidraft.decoding.fetch import fetch
from multidraft.decoding.state import DecodeConfig, Row, Scored, State
from multidraft.decoding.tree import NodeLaw, TokenTree
from multidraft.decoding.walks import Child, Queries, Residual, Verdict, Walker, WalkResult, drive, walker
from multidraft.errors import AdviceError
from multidraft.sampling.from_logits import can_be_pending, most_likely_tokens
from multidraft.sampling.gate import upcast
from multidraft.transfer import upload
from multidraft.verification.distributions import pick_each
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import FACTOR_BELOW_ONE
from multidraft.verification.rules.recursive_rejection import left_by_one
from multidraft.verification.scheme import Scheme

PlaceValues = Float[np.ndarray, " places"]
LazyParts = Callable[[], tuple[PlaceValues, PlaceValues]]  # of one node, the target and what is left of it
MIN_ACCEPT_MASS = 1e-15  # what is below it is rounding: whether they take a coin must not depend on a row's neighbours


class Visit(NamedTuple):
    """A node that a walk came to: with its target scaled to a weight, the rule said this."""

    node: int
    weight: float
    verdict: Verdict


class CoinFlip(NamedTuple):
    """A coin that a walk threw: it shows yes where the number is below the probability."""

    probability: float
    number: float
    yes: bool


class Decision(NamedTuple):
    """How a step ends, row by row."""

    walk_results: list[WalkResult]
    last: list[int]  # the one more token
    numbers: list[float]  # which it was drawn with
    events: list[list[Visit | CoinFlip]]


def verify(state: State, config: DecodeConfig, scored: Scored) -> Decision:
    """Walk every row's tree with the scheme's rule, and draw the one more token where the walk ends."""
    numbers = [row.random.number() for row in state.rows]
    events: list[list[Visit | CoinFlip]] = [[] for _ in state.rows]
    start = walker(config.walk)
    walks = [
        start(0, 1.0, tree.has_drafts, recording_coin(row, row_events))
        for row, tree, row_events in zip(state.rows, scored.trees, events, strict=True)
    ]

    def verdicts(queries: Queries) -> dict[int, Verdict]:
        answers = node_outcomes(config.scheme, scored, queries)
        for row, verdict in answers.items():
            events[row].append(Visit(*queries[row], verdict))
        return answers

    drawn = fetch(scored, numbers)
    walk_results = drive(walks, verdicts)
    return Decision(walk_results, draw_last_tokens(scored, walk_results, numbers, drawn), numbers, events)


def check_walk(scheme: Scheme, walk: str | Walker) -> None:
    """Raise unless it is a walk, and the rule takes targets that sum to less than one where it asks for them."""
    walker(walk)
    if walk != "commit" and not scheme.entry.sub_probability:
        raise AdviceError(
            f"{scheme.name} takes targets that sum to one, and the walk {walk} asks for less; use walk='commit', or "
            "register the rule with sub_probability=True if it is right for them (audit it so, too)"
        )


def recording_coin(row: Row, events: list[Visit | CoinFlip]) -> Callable[[float], bool]:
    """A row's coin, which notes what it showed."""

    def coin(probability: float) -> bool:
        number = row.random.number()
        events.append(CoinFlip(probability, number, number < probability))
        return number < probability

    return coin


def node_outcomes(scheme: Scheme, scored: Scored, queries: Queries) -> dict[int, Verdict]:
    """For each row the rule's verdict at a node with its target scaled by a weight; none for rows with a fault.

    A single draft is coupled with the target, which takes two numbers; nodes with as many drafts go in one batch.
    """
    targets = dict(zip(queries, scored.targets([(row, node) for row, (node, _) in queries.items()]), strict=True))
    answers, groups = dict[int, Verdict](), defaultdict[int, Queries](dict)
    for row, (node, weight) in queries.items():
        tree = scored.trees[row]
        if row in scored.faults:
            continue
        count = tree.counts[node]
        if scheme.with_drafts(count).is_coupling and tree.children[node]:
            answers[row] = single_draft_outcome(tree, node, weight, targets[row])
        else:
            groups[count][row] = node, weight
    for count, group in groups.items():
        answers |= batched_outcomes(scheme.with_drafts(count), scored.trees, group, targets)
    return {row: answers[row] for row in queries if row in answers}


def batched_outcomes(
    scheme: Scheme, trees: list[TokenTree], queries: Queries, targets: dict[int, Tensor]
) -> dict[int, Verdict]:
    """Verdicts at nodes that drew the same number of tokens."""
    node_laws = [trees[row].laws[node] for row, (node, _) in queries.items()]
    target = torch.from_numpy(compress_targets([targets[row] for row in queries], node_laws))
    weights = torch.tensor([[weight] for _, weight in queries.values()], dtype=torch.float64)
    drafted = torch.tensor([trees[row].places[node] for row, (node, _) in queries.items()])
    outcome = scheme.verify(target * weights, stack_distributions(node_laws, scheme.drafts, padding=1), drafted)
    answers, accepts = {}, outcome.accept.tolist()
    for index, (row, (node, _)) in enumerate(queries.items()):
        tree, residual = (
            trees[row],
            CompressedResidual(node_laws[index], targets[row], *lazy_parts(target, outcome, index)),
        )
        answers[row] = Verdict(accept_masses(tree.children[node], tree.tuples[node], accepts[index]), residual)
    return answers


def lazy_parts(target: Tensor, outcome: Outcome, index: int) -> tuple[LazyParts, Callable[[], float]]:
    """One node's residual beside the target, and its sum, computed when they are asked for."""
    return (
        lambda: (target[index].numpy(), outcome.residual[index].numpy()),
        lambda: float(outcome.residual_mass[index]),
    )


def compress_targets(
    targets: list[Float[Tensor, " vocabulary"]], node_laws: list[NodeLaw]
) -> Float[np.ndarray, "nodes places"]:
    """The targets on the ids of draft distributions, zeros, and in the last place their mass on all other tokens."""
    lines = np.zeros((len(node_laws), 1 + max(len(node_law.ids) for node_law in node_laws)))
    for line, target, node_law in zip(lines, targets, node_laws, strict=True):
        on_support = line[: len(node_law.ids)]
        if node_law.target is not None:
            on_support[:], line[-1] = node_law.target.values, node_law.target.others
        else:  # it is here, or could not be fetched
            values = target.cpu().numpy()
            on_support[:] = values[node_law.ids]
            line[-1] = max(values.sum(dtype=np.float64) - on_support.sum(), 0.0)
    return lines


def accept_masses(children: dict[int, int], drafted: list[int], accept: list[float]) -> tuple[Child, ...]:
    """What each child of a node may claim, by token; duplicates added up."""
    masses = dict.fromkeys(drafted, 0.0)
    for token, mass in zip(drafted, accept, strict=True):
        masses[token] += mass
    return tuple(Child(children[token], mass) for token, mass in masses.items() if mass > MIN_ACCEPT_MASS)


def single_draft_outcome(tree: TokenTree, node: int, weight: float, target: Float[Tensor, " vocabulary"]) -> Verdict:
    """The verdict on a single draft: p/q says what it may claim, and the rest is computed if it is rejected."""
    ((token, child),) = tree.children[node].items()
    node_law, place = tree.laws[node], max(tree.places[node])
    target_prob = target[token] if node_law.target is None else node_law.target.values[place]
    likely, drawn = weight * float(target_prob), float(node_law.probabilities[place])
    accept = 1.0 if likely >= drawn else likely / drawn

    def parts() -> tuple[PlaceValues, PlaceValues]:
        places = compress_targets([target], [node_law])[0]
        return places, left_by_one(places, node_law.probabilities, weight, accept)

    return Verdict(
        (Child(child, accept),) if accept > MIN_ACCEPT_MASS else (), CompressedResidual(node_law, target, parts)
    )


@dataclass(eq=False)
class CompressedResidual(Residual):
    """What a rule leaves of a target, known on the ids of a draft law and, in the last place, on all other tokens."""

    draft: NodeLaw
    target: Float[Tensor, " vocabulary"]
    parts: LazyParts
    total: Callable[[], float] | None = None  # the sum, if it can be had without the parts

    @cached_property
    def target_and_residual(self) -> tuple[PlaceValues, PlaceValues]:
        """The target in these places, and what is left of it."""
        return self.parts()

    @property
    def mass(self) -> float:
        """Its sum."""
        return float(self.target_and_residual[1].sum()) if self.total is None else self.total()

    @property
    def share(self) -> float:
        """What is left of the target at all other tokens, as a part of it."""
        target, residual = self.target_and_residual
        return residual[-1] / target[-1] if target[-1] > 0 else 0.0

    def draw(self, number: float) -> int:
        """The token, where what was fetched tells it: one of the draft law's, or one of the others if none is left."""
        if (known := self.draft.target) is None:
            return -1
        order = np.argsort(self.draft.ids)
        left = self.target_and_residual[1][: len(order)][order]
        sums = self.share * known.others_before[order] + left.cumsum()  # of the weights of all tokens up to each
        on_support, total = left.sum(), left.sum() + self.share * known.others
        if total <= 0 or on_support <= 0:
            return known.token if total > 0 else -1
        point = min(number, FACTOR_BELOW_ONE) * total
        place = int(np.searchsorted(sums, point, side="right"))
        is_drawn = place < len(sums) and left[place] > 0 and sums[place] - left[place] <= point
        return int(self.draft.ids[order[place]]) if is_drawn else -1

    def token_weights(self) -> Float[Tensor, " vocabulary"]:
        """The weight of every token: the others have their share of the target."""
        share, residual = self.share, self.target_and_residual[1]
        ids, left = self.draft.ids, residual[: len(self.draft.ids)]
        if self.target.is_cpu:  # where NumPy's calls cost a fraction
            weights = np.multiply(self.target.numpy(), share, dtype=np.float64)
            weights[ids] = left
            return torch.from_numpy(weights)
        device = self.target.device
        return (self.target.double() * share).index_copy_(0, upload(ids, device), upload(left, device))


def draw_last_tokens(
    scored: Scored, walk_results: list[WalkResult], numbers: list[float], drawn: dict[tuple[int, int], int]
) -> list[int]:
    """The one more token of every row: from what a rule left, or for a bonus from the target at the leaf.

    `drawn` are bonus tokens of nodes, where they were drawn beforehand.
    """
    last = [-1] * len(walk_results)
    greedy = greedy_tokens(scored, {row: walk_result.leaf for row, walk_result in enumerate(walk_results)})
    bonus, recovered = dict[int, int](), dict[int, Residual]()
    for row, walk_result in enumerate(walk_results):
        if row in greedy:
            last[row] = greedy[row]
        elif walk_result.residual is not None:
            last[row] = walk_result.residual.draw(numbers[row])
            recovered |= {row: walk_result.residual} if last[row] < 0 else {}
        elif (row, walk_result.leaf) in drawn:
            last[row] = drawn[row, walk_result.leaf]
        elif row not in scored.faults:
            bonus[row] = walk_result.leaf
    weights = dict(zip(bonus, scored.targets(list(bonus.items())), strict=True))
    weights |= {row: residual.token_weights() for row, residual in recovered.items()}
    for row, token in draw_by_device(weights, numbers).items():
        # Where nothing but rounding is left: the likeliest
        last[row] = token if token >= 0 else int(scored.targets([(row, walk_results[row].leaf)])[0].argmax())
    return last


def is_greedy(row: Row) -> bool:
    """Whether its target is the likeliest token alone."""
    return row.sampling.temperature == 0 and can_be_pending(row.sampling)


def greedy_tokens(scored: Scored, leaves: dict[int, int]) -> dict[int, int]:
    """The likeliest tokens at leaves of rows at temperature 0: whatever a rule leaves of their targets, it is these.

    On a CPU alone; rows with processors, and those whose logits make no distribution, are left out.
    """
    rows = [row for row, leaf in leaves.items() if row not in scored.faults and is_greedy(scored.rows[row])]
    if not rows or not scored.is_cpu:
        return {}
    logits = upcast(scored.lines([(row, leaves[row]) for row in rows]))
    tokens = most_likely_tokens(logits).tolist()
    return {row: token for row, token, line in zip(rows, tokens, logits, strict=True) if isfinite(float(line[token]))}


def draw_by_device(weights: dict[int, Float[Tensor, " vocabulary"]], numbers: list[float]) -> dict[int, int]:
    """The token that each row's number draws; all rows of a device at once, and on CPUs one by one, uncopied."""
    groups = defaultdict[object, list[int]](list)
    for row, line in weights.items():
        groups[row if line.is_cpu else line.device].append(row)
    drawn = dict[int, int]()
    for rows in groups.values():
        lines = [weights[row] for row in rows]
        stacked = lines[0][None] if len(lines) == 1 else torch.stack([line.double() for line in lines])
        drawn |= zip(rows, pick_each(stacked, [numbers[row] for row in rows]), strict=True)
    return drawn
