"""The optimal rule of any drafting law for small vocabularies, by a maximum flow or a linear program."""

import numpy as np

from multidraft.verification.law import Law
from multidraft.verification.laws import LAWS
from multidraft.verification.outcome import Outcome
from multidraft.verification.precision import Draft, Rows, Tuples
from multidraft.verification.registry import OUR_SOURCE, register
from multidraft_research.solvers import linear_program as programs
from multidraft_research.solvers import max_flow as flows
from multidraft_research.solvers.binned_lorenz import BinnedLorenz
from multidraft_research.solvers.distinct_optimum import optimum_of
from multidraft_research.solvers.global_resolution_rule import GlobalResolution
from multidraft_research.solvers.moved import Moved
from multidraft_research.solvers.network import Network
from multidraft_research.solvers.outer_residuals import outer_residuals
from multidraft_research.solvers.solved import by_solving

SOURCE = "Global Resolution"


def max_flow(target: Rows, draft: Draft, drafted: Tuples, law: Law) -> Outcome:
    """Optimal for every law to `(sets + tokens) 2^-52`, and exact: a flow never exceeds its capacities.

    >>> import torch
    >>> from multidraft.verification.laws import Iid
    >>> p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    >>> max_flow(p, q, torch.tensor([0]), Iid(1)).accept
    tensor([0.5000])
    """
    return by_solving(lambda p, network, q, n: flows.max_flow(p, network), target, draft, drafted, law)


def reduced_max_flow(target: Rows, draft: Rows, drafted: Tuples, law: Law) -> Outcome:
    """Optimal for i.i.d. drafts, by flows on the two smaller networks of Global Resolution's Section 5.3."""
    a = law.draft_probability

    def solve(p: np.ndarray, network: Network, q: np.ndarray, n: int) -> Moved:
        return flows.reduced_max_flow(p, network, outer_residuals(p / a, q / q.sum(), n).inside)

    return by_solving(solve, target, draft, drafted, law)


def linear_program(target: Rows, draft: Draft, drafted: Tuples, law: Law) -> Outcome:
    """Optimal for every law, to HiGHS's tolerance; exact all the same, for the solution is trimmed to be feasible.

    >>> import torch
    >>> from multidraft.verification.laws import Iid
    >>> p, q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])
    >>> linear_program(p, q, torch.tensor([0]), Iid(1)).accept
    tensor([0.5000])
    """
    return by_solving(lambda p, network, q, n: programs.linear_program(p, network), target, draft, drafted, law)


def register_all() -> None:
    """Add the schemes of all solvers to the list, and those that sort nothing."""
    for law, more in {"iid": "", "anchored": ", then a pass per top-up"}.items():
        cost = f"prefix sums, without a sort{more}"
        register(f"{law}:binned_lorenz", law=law, rule=BinnedLorenz(), source=OUR_SOURCE, cost=cost, coupling=True)
    register(
        "iid:global_resolution",
        law="iid",
        rule=GlobalResolution(),
        source=f"{SOURCE}, Section 6",
        cost="two convex problems; may fail",
        exact=False,
        small=True,
    )
    optimal = dict(rate=optimum_of, small=True)
    flow = dict(source=f"{SOURCE}, Section 5.3", cost="two flows over token sets")
    register("iid:reduced_max_flow", law="iid", rule=reduced_max_flow, **flow, **optimal)
    for law in LAWS:
        flow = dict(source=f"{SOURCE}, Section 5.2", cost="a flow over token sets")
        register(f"{law}:max_flow", law=law, rule=max_flow, **flow, **optimal)
        program = dict(
            source="Towards Optimal Multi-Draft Speculative Decoding, eq. 9", cost="a linear program over token sets"
        )
        register(f"{law}:linear_program", law=law, rule=linear_program, **program, **optimal)
