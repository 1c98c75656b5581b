"""A scheme is a drafting law with a verification rule that is valid for it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, check_integer
from multidraft.verification.distributions import check_distribution, describe, has_values, uniform
from multidraft.verification.law import Law
from multidraft.verification.optimum import optimum
from multidraft.verification.outcome import Outcome, Rule, over_all_tuples
from multidraft.verification.outside import check_numbers
from multidraft.verification.precision import Draft, Rates, Rows, Tuples


@dataclass(frozen=True)
class Entry:
    """What is known of a scheme: its law and rule, the formula of its acceptance rate if any, where it is from."""

    law: type[Law]
    rule: Rule
    source: str = ""
    cost: str = ""
    rate: Callable[[Tensor, Tensor, Any], Tensor | None] | None = None  # which may give None for some settings
    exact: bool = True
    small: bool = False  # for small vocabularies only: its work grows with the number of token sets
    known_as: str = ""  # the name it goes by with the deferred walk
    coupling: bool = False  # whether a single draft, drawn from q itself, is coupled: accepted with min(1, p/q)
    sub_probability: bool = True  # whether it takes targets that sum to less than one, as the deferred walk asks
    guarded: bool = False  # whether its numbers are looked at before anybody draws by them: a rule from outside


@dataclass(frozen=True)
class Scheme:
    """A drafting law and the rule that verifies its drafts; made by `multidraft.scheme`."""

    name: str
    law: Law
    entry: Entry  # with the settings of the rule
    settings: tuple[tuple[str, Any], ...] = ()  # of the rule

    @cached_property
    def is_coupling(self) -> bool:
        """Whether it accepts its one draft with probability min(1, p/q)."""
        return self.law.is_single_draw and self.entry.coupling

    @property
    def within(self) -> float:
        """The total variation from the target that the rule may have; 0 for an exact one."""
        return getattr(self.entry.rule, "within", 0.0)

    @property
    def drafts(self) -> int:
        """Number of drafts a node."""
        return self.law.drafts

    @cache  # noqa: B019  # schemes are few, and the decoding loop asks at every level
    def with_drafts(self, drafts: int) -> "Scheme":
        """This scheme with another number of drafts."""
        return replace(self, law=self.law.with_drafts(drafts))

    def draw(self, draft: Draft, generator: torch.Generator | None = None) -> Tuples:
        """Drafted tokens in the order in which they were drawn, -1 where a position is empty."""
        self.check_draft(draft)
        shape = (*self.law.batch(draft), self.law.num_uniforms)
        return self.law.draw(draft, uniform(shape, generator, draft.device))

    def probability(self, draft: Draft, drafted: Tuples) -> Rates:
        """Probability that `draw` gives exactly this ordered tuple."""
        self.check_draft(draft)
        self.check_drafted(draft, drafted)
        return self.law.probability(draft, drafted)

    def tuples(self, draft: Draft) -> tuple[Int[Tensor, "tuples width"], Float[Tensor, " tuples"]]:
        """Every possible tuple for one small vocabulary and its probability; refuses large ones."""
        self.check_draft(draft)
        if self.law.batch(draft):
            raise AdviceError(f"tuples are listed for one draft distribution; got a batch {tuple(draft.shape)}")
        return self.law.tuples(draft)

    def outcome(self, target: Rows, draft: Draft, drafted: Tuples) -> Outcome:
        """The exact law of the emitted token; refuses drafts that this scheme's law cannot have drawn.

        `target` may sum to less than one (see `Outcome`).
        """
        self.check_pair(target, draft)
        self.check_drafted(draft, drafted)
        if not (possible := self.law.possible(draft, drafted)).all():
            row = int((~possible).reshape(-1).nonzero()[0])
            tokens = drafted.reshape(-1, drafted.shape[-1])[row].tolist()
            raise AdviceError(
                f"drafted row {row} {tokens} has probability 0 under the law {self.law.name}; "
                "pass the distribution and the law that the drafts were really drawn from"
            )
        if drafted.numel() == 0:  # no rows: the rules may take a maximum over them
            return Outcome(target.new_zeros(drafted.shape), target.clone(), drafted)
        return self.verify(target, draft, drafted)

    def verify(self, target: Tensor, draft: Tensor, drafted: Tensor) -> Outcome:
        """`outcome` without its checks, for the decoding loop; what a rule from outside returns is checked here too."""
        outcome = self.entry.rule(target, draft, drafted, self.law)
        if self.entry.guarded and drafted.numel():
            check_numbers(outcome, target, self.name, self.within)
        return outcome

    def expected_acceptance(self, target: Tensor, draft: Tensor) -> Tensor | None:
        """The acceptance rate by its formula, None where there is none; unchecked, for the decoding loop."""
        return None if self.entry.rate is None else self.entry.rate(target, draft, self.law)

    def acceptance_rate(
        self, target: Rows, draft: Draft, samples: int = 1000, generator: torch.Generator | None = None
    ) -> Rates:
        """Probability that the emitted token is a drafted one."""
        return self.acceptance(target, draft, samples, generator)[0]

    def acceptance(
        self, target: Rows, draft: Draft, samples: int = 1000, generator: torch.Generator | None = None
    ) -> tuple[Rates, str]:
        """That rate, and the method that gave it: a formula, enumeration where small, else sampling."""
        check_integer(samples, "samples", 1)
        self.check_pair(target, draft)
        if not target.numel():
            return target.new_empty(target.shape[:-1]), "nothing to average"
        if (rate := self.expected_acceptance(target, draft)) is not None:
            return rate, "formula"
        if draft.shape[-1] ** self.law.drafts <= 4096 and target.numel() <= 16 * target.shape[-1]:
            p, q = target.reshape(-1, target.shape[-1]), draft.reshape(-1, *draft.shape[target.ndim - 1 :])
            pairs = zip(p.split(1), q.split(1), strict=True)
            summed = [
                over_all_tuples(lambda *arguments: self.verify(*arguments[:3]), self.law, *pair) for pair in pairs
            ]
            return torch.cat([average.acceptance for average in summed]).to(target.dtype).reshape(
                target.shape[:-1]
            ), "enumeration"
        drawn = (self.verify(target, draft, self.draw(draft, generator)) for _ in range(samples))  # one at a time
        rates = torch.stack([outcome.acceptance().double() for outcome in drawn])
        return rates.mean(0), f"average over {samples} tuples"

    def optimal_acceptance_rate(self, target: Rows, draft: Draft) -> Rates:
        """The largest acceptance rate that any rule can reach with this scheme's drafts."""
        self.check_pair(target, draft)
        return optimum(target, draft, self.law)

    def check_draft(self, draft: Tensor) -> None:
        """Raise unless `draft` is a draft distribution of this law, or several."""
        check_distribution(draft, "draft")
        self.law.batch(draft)

    def check_pair(self, target: Tensor, draft: Tensor) -> None:
        """Raise unless there is a target (which may sum to less than one) for every row of `draft`."""
        check_distribution(target, "target", total_at_most_one=True)
        self.check_draft(draft)
        expected = (*self.law.batch(draft), draft.shape[-1])
        if target.shape != expected:
            raise AdviceError(
                f"target has shape {tuple(target.shape)}; for a draft of shape {tuple(draft.shape)} {self.name} needs "
                f"{expected}: one row each, over one vocabulary"
            )

    def check_drafted(self, draft: Tensor, drafted: Tensor) -> None:
        """Raise unless `drafted` has one column for each position of the law, with ids of the vocabulary or -1."""
        expected = (*self.law.batch(draft), self.law.width)
        fits = isinstance(drafted, Tensor) and drafted.dtype == torch.int64 and drafted.shape == expected
        if not fits or not has_values(drafted):
            raise AdviceError(
                f"drafted is {describe(drafted)}; {self.name} with {self.drafts} drafts needs token ids as an int64 "
                f"tensor of shape {expected}: one tuple for each row of draft"
            )
        if len(outside := drafted[(drafted < -1) | (drafted >= (size := draft.shape[-1]))]):
            raise AdviceError(f"drafted has token id {int(outside[0])}; ids are 0 to {size - 1}, -1 where it is empty")
