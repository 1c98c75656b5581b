"""The audit's mutants as rules of the list."""

from collections.abc import Callable

from multidraft_research.audits.mutants import MUTANTS
from torch import Tensor

from multidraft.verification.law import Law
from multidraft.verification.outcome import Outcome

Rule = Callable[[Tensor, Tensor, Tensor, Law], Outcome]


def rule_of(name: str) -> Rule:
    """A mutant's rule, which does not ask what the drafts are drawn from."""
    rule = MUTANTS[name].rule
    assert rule is not None
    return lambda target, draft, drafted, law: Outcome(*rule(target, draft, drafted), drafted)
