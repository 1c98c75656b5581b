"""The one list of schemes: for each its rule, the formula of its acceptance rate, and where it is from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from multidraft.verification.laws import LAWS
from multidraft.verification.optimal import optimum
from multidraft.verification.outcome import Outcome
from multidraft.verification.rules import formulas
from multidraft.verification.rules.anchored_lorenz import anchored_lorenz
from multidraft.verification.rules.binned_lorenz import BinnedLorenz
from multidraft.verification.rules.k_sequential import k_sequential
from multidraft.verification.rules.lorenz import lorenz
from multidraft.verification.rules.maximal_coupling import maximal_coupling, spechub
from multidraft.verification.rules.naive import naive
from multidraft.verification.rules.recursive_rejection import recursive_rejection
from multidraft.verification.solvers.global_resolution_rule import global_resolution
from multidraft.verification.solvers.linear_program_rule import linear_program
from multidraft.verification.solvers.max_flow_rule import max_flow, reduced_max_flow

Rule = Callable[[Tensor, Tensor, Tensor, Any], Outcome]  # target, draft, drafted, and the law they were drawn by


@dataclass(frozen=True)
class Entry:
    """What is known of a scheme: its rule, the formula of its acceptance rate if there is one, and where it is from."""

    rule: Rule
    source: str
    cost: str
    formula: Callable[[Tensor, Tensor, Any], Tensor | None] | None = None
    exact: bool = True
    small: bool = False  # for small vocabularies only: its work grows with the number of token sets
    known_as: str = ""  # the name it goes by with the deferred walk
    coupling: bool = False  # whether a single draft, drawn from q itself, is coupled: accepted with min(1, p/q)


MCSD = "Multi-Candidate Speculative Decoding"
OPTIMAL = "Towards Optimal Multi-Draft Speculative Decoding"
GLOBAL = "Global Resolution"
OURS = "multidraft (docs/theory.md)"

SCHEMES: dict[str, Entry] = {
    "iid:lorenz": Entry(
        lorenz,
        OURS,
        "one sort",
        formulas.lorenz_iid,
        known_as="on a chain, deferred: block verification",
        coupling=True,
    ),
    "iid:binned_lorenz": Entry(BinnedLorenz(), OURS, "prefix sums, without a sort", coupling=True),
    "iid:k_sequential": Entry(k_sequential, "SpecTr, Algorithm 2", "50 passes", formulas.k_sequential, coupling=True),
    "iid:recursive_rejection": Entry(
        recursive_rejection, f"SpecInfer; {MCSD}, Algorithm 1", "n passes", formulas.recursive_rejection, coupling=True
    ),
    "iid:naive": Entry(naive, MCSD, "one look-up", formulas.naive_iid),
    "without_replacement:recursive_rejection": Entry(
        recursive_rejection,
        f"{MCSD}, Algorithm 2",
        "n passes",
        known_as="deferred: traversal verification",
        coupling=True,
    ),
    "without_replacement:naive": Entry(naive, MCSD, "one look-up"),
    "greedy:maximal_coupling": Entry(
        maximal_coupling, f"{OPTIMAL}, Section 5", "one pass", formulas.maximal_coupling, coupling=True
    ),
    "greedy:naive": Entry(naive, MCSD, "one look-up"),
    "anchored:lorenz": Entry(
        anchored_lorenz, OURS, "one sort, then a pass per top-up", formulas.lorenz_anchored, coupling=True
    ),
    "anchored:binned_lorenz": Entry(
        BinnedLorenz(), OURS, "prefix sums, without a sort, then a pass per top-up", coupling=True
    ),
    "anchored:naive": Entry(naive, MCSD, "one look-up"),
    "top:naive": Entry(naive, f"{MCSD}; EAGLE", "one look-up", formulas.naive_top),
    "spechub:spechub": Entry(spechub, "SpecHub (Sun et al., 2024)", "one pass", formulas.maximal_coupling),
    "spechub:naive": Entry(naive, MCSD, "one look-up"),
    "distinct:recursive_rejection": Entry(recursive_rejection, "SpecInfer", "n passes", formulas.recursive_rejection),
    "distinct:naive": Entry(naive, MCSD, "one look-up", formulas.naive_distinct),
    "iid:global_resolution": Entry(
        global_resolution, f"{GLOBAL}, Section 6", "two convex problems; may fail", exact=False, small=True
    ),
    "iid:reduced_max_flow": Entry(
        reduced_max_flow, f"{GLOBAL}, Section 5.3", "two flows over token sets", optimum, small=True
    ),
}
for _law in LAWS:
    SCHEMES[f"{_law}:max_flow"] = Entry(
        max_flow, f"{GLOBAL}, Section 5.2", "a flow over token sets", optimum, small=True
    )
    SCHEMES[f"{_law}:linear_program"] = Entry(
        linear_program, f"{OPTIMAL}, eq. 9", "a linear program over token sets", optimum, small=True
    )
