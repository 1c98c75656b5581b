"""`verify_tree` for devices that the CPU should not wait for: tensors in, tensors out, and nothing in between is read.

Shapes are known beforehand: at depth d no node has more than `siblings[d]` children. So the work is the same whatever
the values are, a CUDA graph can hold it, and rows that are done are computed on and masked out. The arithmetic is that
of `verify_tree` on a CPU, rule and walk and coins: for the same uniform numbers the tokens are the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.decoding.verify import MIN_ACCEPT_MASS
from multidraft.decoding.walks import MAX_PARTIAL_SHARE, MIN_PROBABILITY, MIN_SHARE
from multidraft.errors import AdviceError
from multidraft.verification.distributions import pick
from multidraft.verification.law import Law
from multidraft.verification.laws import Greedy, Iid, Top, WithoutReplacement
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import FACTOR_BELOW_ONE
from multidraft.verification.rules.naive import naive
from multidraft.verification.rules.recursive_rejection import recursive_rejection
from multidraft.verification.scheme import Scheme

Numbers = Float[Tensor, " rows"]
Nodes = Int[Tensor, " rows"]  # of each row's tree, -1 for none
Yes = Bool[Tensor, " rows"]
RowWeights = Float[Tensor, "rows vocabulary"]
Verified = tuple[Int[Tensor, " nodes_of_all"], Int[Tensor, "rows depth"], Int[Tensor, " rows"]]

LAWS_OF_RULES: dict[Any, tuple[type[Law], ...]] = {
    recursive_rejection: (WithoutReplacement, Iid),
    naive: (WithoutReplacement, Iid, Top),
}

SINGLE_DRAWS = (WithoutReplacement, Iid, Greedy)  # which draw a single draft from q itself


def is_batched(scheme: Scheme, walk: object, siblings: Sequence[int]) -> bool:
    """Whether trees with at most so many siblings, by depth, are verified without a wait.

    With the walk `commit` these are recursive rejection and `naive`; `deferred`, and every rule that couples a single
    draft with the target, take chains.
    """
    is_chain = all(most <= 1 for most in siblings)
    if scheme.law.draft_probability < 1 or not (walk == "commit" or (walk == "deferred" and is_chain)):
        return False
    is_rule = isinstance(scheme.law, LAWS_OF_RULES.get(scheme.entry.rule, ()))
    return is_rule or (is_chain and scheme.entry.coupling and isinstance(scheme.law, SINGLE_DRAWS))


def verify_batched(
    candidates: Int[Tensor, "rows nodes"],
    retrieve_index: Int[Tensor, "rows nodes"],
    retrieve_next_token: Int[Tensor, "rows nodes"],
    retrieve_next_sibling: Int[Tensor, "rows nodes"],
    target_probs: Float[Tensor, "rows nodes vocabulary"],
    draft_probs: Float[Tensor, "rows inner vocabulary"] | None,
    uniform_samples: Float[Tensor, "rows numbers"],
    uniform_samples_for_final_sampling: Float[Tensor, " rows"],
    *,
    scheme: Scheme,
    walk: str,
    siblings: Sequence[int],
    num_speculative_tokens: int | None = None,
) -> Verified:
    """What `verify_tree` returns, computed without looking at a value.

    `siblings[d]` is the largest number of children of any node at depth d; deeper nodes and further children are not
    looked at. `draft_probs` needs rows for all nodes with children. Nothing is checked but `is_batched`, for which
    AdviceError is raised: values that are no distributions give tokens that mean nothing.
    """
    if not is_batched(scheme, walk, siblings):
        raise AdviceError(f"{scheme.name} with walk={walk!r} and siblings {tuple(siblings)} needs verify_tree; use it")
    drafts = target_probs if draft_probs is None else draft_probs
    trees = Trees(candidates, retrieve_next_token, retrieve_next_sibling, target_probs, drafts, scheme)
    coins = BatchedCoins(uniform_samples.double())
    path, length, weights = (commit if walk == "commit" else deferred_on_chains)(trees, coins, siblings)
    last = pick(weights, uniform_samples_for_final_sampling.double()[:, None])
    return answer_tensors(candidates, retrieve_index, path, length, last, num_speculative_tokens)


class Ended(NamedTuple):
    """Where walks end."""

    path: Int[Tensor, "rows depth"]  # the nodes that were walked on, from the root; after `length` they mean nothing
    length: Int[Tensor, " rows"]  # of the nodes below the root, those that are accepted
    weights: RowWeights  # what the one more token is drawn from


class BatchedCoins:
    """Coins from a few uniform numbers a row, as `verify_tree` throws them: what a flip leaves of its number serves
    again when all others have had their turn.
    """

    def __init__(self, numbers: Float[Tensor, "rows numbers"]):
        self.numbers, self.turns = numbers, torch.zeros_like(numbers[:, :1], dtype=torch.int64)

    def flip(self, probability: Numbers, asks: Yes) -> Yes:
        """Heads with these probabilities, in the rows that ask."""
        turn, asked = self.turns % self.numbers.shape[1], asks[:, None]
        number, chance = self.numbers.gather(1, turn), probability[:, None].clamp(0, 1)
        heads = number < chance
        left = torch.where(heads, number / chance, (number - chance) / (1 - chance).clamp(min=1 - FACTOR_BELOW_ONE))
        self.numbers = self.numbers.scatter(1, turn, torch.where(asked, left.clamp(max=FACTOR_BELOW_ONE), number))
        self.turns = self.turns + asked
        return (heads & asked)[:, 0]


@dataclass(frozen=True)
class Trees:
    """All rows' trees and what the models say at their nodes."""

    candidates: Int[Tensor, "rows nodes"]
    first_child: Int[Tensor, "rows nodes"]
    next_sibling: Int[Tensor, "rows nodes"]
    target: Float[Tensor, "rows nodes vocabulary"]
    draft: Float[Tensor, "rows inner vocabulary"]
    scheme: Scheme

    def root(self) -> Nodes:
        """Every row's root."""
        return torch.zeros_like(self.candidates[:, 0], dtype=torch.int64)

    def children(self, node: Nodes, most: int) -> Int[Tensor, "rows siblings"]:
        """The children of a node of each row, then -1; none of -1."""
        children = [entry(self.first_child, node)]
        while len(children) < most:
            children.append(entry(self.next_sibling, children[-1]))
        return torch.stack(children, -1)

    def target_at(self, node: Nodes) -> RowWeights:
        """The target's distribution at a node of each row, in float64."""
        return line(self.target, node).double()

    def outcome(self, node: Nodes, children: Int[Tensor, "rows siblings"], target: RowWeights) -> Outcome:
        """The rule's outcome at a node of each row; nonsense where it has no children."""
        drafted = torch.stack([entry(self.candidates, child) for child in children.unbind(-1)], -1)
        draft = line(self.draft, node.clamp(max=self.draft.shape[1] - 1)).double()
        rule = naive if self.scheme.entry.rule is naive else recursive_rejection
        law = self.scheme.law if rule is naive or isinstance(self.scheme.law, Iid) else WithoutReplacement(1)
        return rule(target, draft, drafted, law)


def entry(table: Int[Tensor, "rows nodes"], node: Nodes) -> Int[Tensor, " rows"]:
    """A table's entry at a node of each row; -1 for the node -1."""
    return torch.where(node >= 0, table.long().gather(1, node.clamp(min=0)[:, None])[:, 0], -1)


def line(values: Float[Tensor, "rows nodes vocabulary"], node: Nodes) -> RowWeights:
    """The values at a node of each row."""
    return values.gather(1, node[:, None, None].expand(-1, -1, values.shape[-1]))[:, 0]


def accept_masses(outcome: Outcome) -> Float[Tensor, "rows siblings"]:
    """What each child may claim: that of equal ones is added up at the first."""
    drafted, accept = outcome.drafted, outcome.accept
    is_same = drafted[:, :, None] == drafted[:, None, :]
    total = torch.zeros_like(accept)
    for sibling in range(drafted.shape[1]):  # in the order in which `verify_tree` adds
        total = total + torch.where(is_same[:, :, sibling], accept[:, sibling, None], 0.0)
    is_first = ~is_same.tril(-1).any(-1) & (drafted >= 0)
    return torch.where(is_first & (total > MIN_ACCEPT_MASS), total, 0.0)


def commit(trees: Trees, coins: BatchedCoins, siblings: Sequence[int]) -> Ended:
    """`walks.commit`: at every node a child, or what the rule leaves."""
    node = trees.root()
    walks, path, length = node == 0, [node], torch.zeros_like(node)
    recovers, weights = node < 0, trees.target_at(node)
    for most in siblings:
        children = trees.children(node, most)
        walks = walks & (children[:, 0] >= 0)
        outcome = trees.outcome(node, children, trees.target_at(node))
        child = choose(coins, children, accept_masses(outcome), walks)
        takes_residual = walks & (child < 0) & (outcome.residual.sum(-1) > MIN_PROBABILITY)
        recovers, weights = recovers | takes_residual, torch.where(takes_residual[:, None], outcome.residual, weights)
        walks = walks & (child >= 0)
        node, length = torch.where(walks, child, node), length + walks
        path.append(node)
    return Ended(torch.stack(path, -1), length, torch.where(recovers[:, None], weights, trees.target_at(node)))


def choose(
    coins: BatchedCoins, children: Int[Tensor, "rows siblings"], masses: Float[Tensor, "rows siblings"], asks: Yes
) -> Nodes:
    """The first child whose coin shows yes, -1 for none."""
    chosen, left = torch.full_like(children[:, 0], -1), torch.ones_like(masses[:, 0])
    for child, mass in zip(children.unbind(-1), masses.unbind(-1), strict=True):
        yes = coins.flip(mass / left, asks & (chosen < 0) & (mass > 0) & (left > MIN_PROBABILITY))
        chosen, left = torch.where(yes, child, chosen), left - mass
    return chosen


class Visited(NamedTuple):
    """A node of a chain where a walk went on."""

    walks: Yes  # the rows that came to it
    left: Numbers  # the probability that remains once its child has had its say
    residual: RowWeights


def deferred_on_chains(trees: Trees, coins: BatchedCoins, siblings: Sequence[int]) -> Ended:
    """`walks.deferred` where every node has at most one child, which is block verification.

    First down, entering each child with what it may claim, then up again: the deepest node whose coin shows yes ends
    the row. Where none does, which is rounding, the root's target stands in.
    """
    node = trees.root()
    walks, weight, path, visits = node == 0, torch.ones_like(trees.target[:, 0, 0], dtype=torch.float64), [node], []
    ends, length = node < 0, torch.zeros_like(node)
    for depth in range(len(siblings) + 1):
        child = trees.children(node, 1)
        is_leaf = child[:, 0] < 0 if depth < len(siblings) else walks | True
        is_passed = coins.flip(weight, walks & is_leaf)
        ends, length = ends | is_passed, torch.where(is_passed, depth, length)
        if depth == len(siblings):
            break
        walks = walks & ~is_leaf
        outcome = trees.outcome(node, child, trees.target_at(node) * weight[:, None])
        accept = accept_masses(outcome)[:, 0]
        visits.append(Visited(walks, 1 - accept, outcome.residual))
        walks, weight = enter(coins, accept, walks)
        node = torch.where(walks, child[:, 0], node)
        path.append(node)
    return way_up(trees, coins, visits, Ended(torch.stack(path, -1), length, trees.target_at(node)), ends)


def enter(coins: BatchedCoins, accept: Numbers, walks: Yes) -> tuple[Yes, Numbers]:
    """The rows that enter a child which may claim so much, and the weight that they enter it with."""
    share = accept.clamp(max=1.0)
    is_partial = share <= MAX_PARTIAL_SHARE
    entered = torch.where(is_partial, share.clamp(min=MIN_SHARE), 1.0)
    is_free, can = is_partial & (share >= MIN_SHARE), walks & (accept > 0)
    return (can & is_free) | coins.flip(share / entered, can & ~is_free), entered


def way_up(trees: Trees, coins: BatchedCoins, visits: list[Visited], bottom: Ended, ends: Yes) -> Ended:
    """From the deepest node upwards, every row that has not ended may end with what the rule leaves at a node."""
    length, weights = bottom.length, bottom.weights
    for depth, (walks, left, residual) in reversed([*enumerate(visits)]):
        yes = coins.flip(residual.sum(-1) / left, walks & ~ends & (left > MIN_PROBABILITY))
        ends, length = ends | yes, torch.where(yes, depth, length)
        weights = torch.where(yes[:, None], residual, weights)
    return Ended(bottom.path, length, torch.where(ends[:, None], weights, trees.target_at(trees.root())))


def answer_tensors(
    candidates: Int[Tensor, "rows nodes"],
    places: Int[Tensor, "rows nodes"],
    path: Int[Tensor, "rows depth"],
    length: Int[Tensor, " rows"],
    last: Int[Tensor, "rows 1"],
    depth: int | None,
) -> Verified:
    """The paths and the last tokens in the contract of `verify_tree`."""
    rank = torch.arange(path.shape[1], device=path.device)
    place = places.long().gather(1, path).masked_fill(rank > length[:, None], -1)
    following = torch.cat([candidates.long().gather(1, path)[:, 1:], last], -1)
    token = torch.where(rank == length[:, None], last, following)
    size = candidates.numel()
    predicts = torch.zeros(size + 1, dtype=torch.int32, device=path.device)  # the last entry is for what is no place
    predicts = predicts.scatter(0, torch.where(place < 0, size, place).flatten(), token.flatten().int())[:-1]
    missing = (depth or path.shape[1]) - path.shape[1]
    accepted = torch.nn.functional.pad(place, (0, missing), value=-1) if missing > 0 else place[:, : depth or None]
    return predicts, accepted.int(), length.int()
