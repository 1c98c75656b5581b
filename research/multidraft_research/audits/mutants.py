"""Verifiers with a mistake that someone could make: an audit that lets one of them pass is worth nothing."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from multidraft.auditing.parts import audit
from multidraft.auditing.report import Report
from multidraft.decoding.walks import MIN_PROBABILITY, Coin, Walk, Walker, WalkResult
from multidraft.verification.distributions import normalise
from multidraft.verification.law import at_each
from multidraft.verification.laws import Iid
from multidraft.verification.rules.lorenz import lorenz
from multidraft.verification.rules.lorenz_schedule import schedule
from multidraft.verification.rules.naive import naive
from multidraft.verification.rules.recursive_rejection import recursive_rejection

Parts = tuple[Tensor, Tensor]


def too_eager(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Accepts a draft five percent too often."""
    right = recursive_rejection(target, draft, drafted, Iid(drafted.shape[-1]))
    once = right.accept.sum(-1, keepdim=True)
    accept = right.accept * torch.where(once > 0, (1.05 * once).clamp(max=1) / once, 1.0)
    return accept, (1 - accept.sum(-1, keepdim=True)) * normalise(right.residual)


def forgetful(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Draws from the target, not from what is left of it, once all drafts are rejected."""
    right = recursive_rejection(target, draft, drafted, Iid(drafted.shape[-1]))
    return right.accept, (1 - right.accept.sum(-1, keepdim=True)) * target


def double_counting(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Forgets that two equal drafts are one token."""
    accept, residual = at_each(target, drafted), naive(target, draft, drafted, Iid(drafted.shape[-1])).residual
    total = accept.sum(-1, keepdim=True) + residual.sum(-1, keepdim=True)
    return accept / total, residual / total


def as_if_sampled(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Recursive rejection as for independent draws, whatever the drafts were drawn from."""
    right = recursive_rejection(target, draft, drafted, Iid(drafted.shape[-1]))
    return right.accept, right.residual


def warmer(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Verifies with the draft distribution at another temperature than the drafts were drawn at."""
    return as_if_sampled(target, normalise(draft**0.7), drafted)


def prune_drafts(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Drops drawn tokens of low probability, as if they had not been drawn."""
    likely = at_each(draft, drafted) >= 0.3 * draft.amax(-1, keepdim=True)
    right = lorenz(target, draft, drafted.masked_fill(~likely, -1), Iid(drafted.shape[-1]))
    return right.accept, right.residual


def divided_by_differences(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Divides what remains by a difference of totals, which may be rounding and nothing else."""
    plan = schedule(target, draft, torch.full(drafted.shape[:-1], drafted.shape[-1]))
    accept = plan.accept(drafted)
    rejected = torch.maximum(1 - plan.optimum, target.double().sum(-1) - plan.optimum).clamp(
        min=torch.finfo(torch.float64).tiny
    )
    residual = (1 - accept.sum(-1)).clamp(min=0)[:, None] * plan.remainder() / rejected[:, None]
    return accept.to(target), residual.to(target)


def rounding_up(target: Tensor, draft: Tensor, drafted: Tensor) -> Parts:
    """Rounds p/q up to the next quarter, and takes the residual against the true target."""
    raised = draft * (4 * target / draft.clamp(min=1e-30)).ceil() / 4
    plan = schedule(raised, draft, torch.full(drafted.shape[:-1], drafted.shape[-1]))
    accept, left = plan.accept(drafted).to(target), target - (raised - plan.remainder()).to(target)
    return accept, (1 - accept.sum(-1, keepdim=True)).clamp(min=0) * normalise(left.clamp(min=0))


def impatient(node: int, weight: float, has_drafts: Callable[[int], bool], coin: Coin) -> Walk:
    """The deferred walk, but a child is entered with what it may claim and not with its share of what is left."""
    if not has_drafts(node):
        return WalkResult() if coin(weight) else None
    verdict, left = (yield node, weight), 1.0
    for child, accept in verdict.children:
        if walk_result := (yield from impatient(child, accept, has_drafts, coin)):
            walk_result.path.insert(0, child)
            return walk_result
        left -= accept
    return (
        WalkResult(residual=verdict.residual) if left > MIN_PROBABILITY and coin(verdict.residual_mass / left) else None
    )


@dataclass(frozen=True)
class Mutant:
    """A rule with the law that its drafts are drawn from, or a walk, and the parts of the audit that must see it."""

    law: str
    rule: Callable[[Tensor, Tensor, Tensor], Parts] | None = None
    walk: Walker | None = None
    drafts: int = 2
    guilty: tuple[str, ...] = ("exact", "statistical", "walks")


MUTANTS = {
    "accepts 5 % too often": Mutant("iid", too_eager),
    "forgets the residual": Mutant("iid", forgetful),
    "counts duplicates twice": Mutant("iid", double_counting),
    "takes the top tokens for samples": Mutant("top", as_if_sampled),
    "ignores that draws were not replaced": Mutant("without_replacement", as_if_sampled),
    "verifies at another temperature": Mutant("iid", warmer),
    "prunes drawn tokens": Mutant("iid", prune_drafts),
    "divides by a difference of totals": Mutant("iid", divided_by_differences, drafts=3, guilty=("exact",)),
    "rounds ratios up": Mutant("iid", rounding_up),
    "the walk forgets what is left": Mutant("iid", walk=impatient, guilty=("walks",)),
}


def audit_mutant(name: str, **settings: Any) -> Report:
    """The audit of a mutant; of a walk, at nodes of which the rule is right."""
    mutant = MUTANTS[name]
    settings = dict(drafts=mutant.drafts) | settings
    if mutant.rule is not None:
        return audit(mutant.rule, law=mutant.law, **settings)
    return audit(f"{mutant.law}:lorenz", **settings | dict(walks=[mutant.walk]))
