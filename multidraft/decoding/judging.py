"""What a rule says at all nodes of a tree in which every slot is a node, from the root downwards, without a look."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.drafted_tree import DraftTree
from multidraft.machine.device import index
from multidraft.sampling.settings import PerRow, Sampling
from multidraft.verification.distributions import pick
from multidraft.verification.levels import groups_of
from multidraft.verification.outcome import Outcome
from multidraft.verification.scheme import Scheme

Index = slice | Tensor


class Inputs(NamedTuple):
    """What a tree's verdicts are computed from."""

    logits: Float[Tensor, "batch slots vocabulary"]  # the target's
    tokens: Int[Tensor, "batch slots"]
    drafted: Int[Tensor, "batch slots width"]
    uniform: Float[Tensor, "batch 1 1"]  # for the last tokens
    levels: list[Float[Tensor, "batch _ vocabulary"]]  # what is drawn from


@dataclass(frozen=True)
class Group:
    """Nodes of a level with the same number of drafts, judged together, and where what they need stands."""

    scheme: Scheme
    slots: list[int]
    children: list[list[int]]  # of each
    here: Index
    below: Index
    level: int
    places: Index


def groups_in(scheme: Scheme, drafts: DraftTree) -> list[Group]:
    """A tree's groups, level by level."""
    groups, device = list[Group](), drafts.tokens.device
    for drawing in drafts.trees[0].draws:
        for law, nodes, _ in groups_of(scheme.law, drawing.counts):
            slots = [drawing.slots[node] for node in nodes]
            children = [[drawing.first[node] + rank for rank in range(law.drafts)] for node in nodes]
            here, below = index(tuple(slots), device), index(tuple(chain(*children)), device)
            own = scheme.with_drafts(law.drafts)
            groups.append(Group(own, slots, children, here, below, *drafts.level_of(0, slots)))
    return groups


@dataclass(frozen=True)
class Judging:
    """A computation that is the same in every step: its results depend on its inputs alone."""

    groups: list[Group]
    sampling: Sampling | PerRow
    weights_of: Callable[[Tensor], Tensor]  # children's weights from what they may claim

    def __call__(self, inputs: Inputs) -> list[Tensor]:
        """In one tensor, a line a row: all tokens, weights and bonuses, and by group last tokens, masses and claims.

        Then the target's distributions at all nodes, and the residuals of every group.
        """
        tokens, target, residuals = inputs.tokens, self.sampling.target(inputs.logits), list[Tensor]()
        weights = torch.ones(tokens.shape, dtype=torch.float64, device=tokens.device)
        parts = [tokens, weights, drawn(target, inputs.uniform)]
        for group in self.groups:
            outcome = outcome_of(group, target, weights, inputs)
            claims = claims_of(group, tokens, outcome)
            weights[:, group.below] = self.weights_of(claims).flatten(1)
            parts += [drawn(outcome.residual, inputs.uniform), outcome.residual_mass, claims.flatten(1)]
            residuals.append(outcome.residual)
        return [torch.cat([part.double() for part in parts], 1), target, *residuals]


def outcome_of(group: Group, target: Tensor, weights: Float[Tensor, "batch slots"], inputs: Inputs) -> Outcome:
    """What the rule says of a group, its targets scaled to the weights that the walk would come with."""
    scaled = target[:, group.here] * weights[:, group.here, None].to(target.dtype)
    draft, tuples = inputs.levels[group.level][:, group.places], inputs.drafted[:, group.here]
    return group.scheme.verify(scaled, draft, tuples[..., : group.scheme.law.width])


def claims_of(group: Group, tokens: Int[Tensor, "batch slots"], outcome: Outcome) -> Float[Tensor, "batch group _"]:
    """What each child may claim: the positions of its token added up."""
    tokens = tokens[:, group.below].unflatten(1, (len(group.slots), -1))
    same = (tokens[..., None] == outcome.drafted[..., None, :]) & (tokens >= 0)[..., None]
    return (same * outcome.accept.double()[..., None, :]).sum(-1)


def drawn(
    weights: Float[Tensor, "batch group vocabulary"], uniform: Float[Tensor, "batch 1 1"]
) -> Int[Tensor, "batch group"]:
    """A token by these weights in every row, with the row's number."""
    return pick(weights, uniform.expand(-1, weights.shape[1], -1))[..., 0]
