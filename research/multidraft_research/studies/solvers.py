"""Every solver of the optimal transport problem of i.i.d. drafts, with what can be said of its answer afterwards.

A method does for one node what a decoder pays for: from the two distributions and one drafted tuple to the law of the
emitted token. What it then says of itself (`Facts`) takes much longer and is asked for outside the clock.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import count

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.verification.laws import Iid
from multidraft.verification.outcome import Outcome, Rule, over_all_tuples
from multidraft.verification.rules import k_sequential, lorenz
from multidraft.verification.rules import recursive_rejection as in_turn
from multidraft.verification.rules.naive import naive, rate_of_iid
from multidraft_research.solvers import linear_program, max_flow
from multidraft_research.solvers.global_resolution_rule import GlobalResolution, ResolutionFailure, Solution
from multidraft_research.solvers.network import Network, edges_of, iid_network
from multidraft_research.solvers.outer_residuals import outer_residuals
from multidraft_research.solvers.solved import PointRule, Solver, row_by_row, rule_and_plans

MOST_NUMBERS = 1_100_000  # tuples times tokens, or pairs of a set and a token, that are summed over
TOLERANCES = ("1e-2", "1e-3", "1e-4")


@dataclass(frozen=True)
class Facts:
    """The acceptance rate over all tuples, the total variation of the emitted token from the target, and how known.

    `by`: "enumeration" of all tuples or drafted sets, "mass moved" by the solution, which is exact too, "formula" (with
    the deviation of zero that its theorem states), or "bound" (acceptance at least, deviation at most).
    """

    acceptance_rate: float
    total_variation: float
    by: str


MethodResult = tuple[Outcome, Callable[[], Facts]]
Method = Callable[[Tensor, Tensor, Tensor, Iid], MethodResult]  # target, draft, drafted, and their law
Formula = Callable[[Tensor, Tensor, Iid], Tensor | None]


def variation(law: Float[np.ndarray, " vocabulary"], target: Float[np.ndarray, " vocabulary"]) -> float:
    """Total variation; what two sub-probabilities lack to one is one more outcome."""
    difference = law - target
    return float(np.abs(difference).sum() + abs(difference.sum())) / 2


def closed_form(rule: Rule, rate: Formula) -> Method:
    """A rule that needs no solution, with its formula."""

    def method(target: Tensor, draft: Tensor, drafted: Tensor, law: Iid) -> MethodResult:
        return rule(target, draft, drafted, law), lambda: closed_facts(rule, rate, target, draft, law)

    return method


def closed_facts(rule: Rule, rate: Formula, target: Tensor, draft: Tensor, law: Iid) -> Facts:
    """By summing over every ordered tuple where there are few."""
    if len(draft) ** (law.drafts + 1) > MOST_NUMBERS:
        known = rate(target, draft, law)
        assert known is not None  # of i.i.d. drafts
        return Facts(float(known), 0.0, "formula")
    summed = over_all_tuples(rule, law, target[None], draft[None])
    return Facts(float(summed.acceptance), variation(summed.emitted[0].numpy(), target.numpy()), "enumeration")


def by_network(solver: Solver) -> Method:
    """A solver of the problem on drafted sets, whose moved mass says all."""

    def method(target: Tensor, draft: Tensor, drafted: Tensor, law: Iid) -> MethodResult:
        outcome, plans = rule_and_plans(solver, target[None], draft[None], drafted[None], law)
        return outcome, lambda: planned_facts(plans[0], target.numpy())

    return method


def planned_facts(plan: PointRule | None, target: Float[np.ndarray, " vocabulary"]) -> Facts:
    """From the mass that every token receives."""
    assert plan is not None  # a tuple was drafted
    received = plan.moved.token_mass(len(target))
    emitted = received + (1 - received.sum()) * plan.next_target
    return Facts(plan.moved.value, variation(emitted, target), "mass moved")


def resolution(tolerance: float, patient: bool = False) -> Method:
    """Global Resolution without a fallback: raises ResolutionFailure.

    Its limit on truncated tokens is ours, for the paper's numbers are lost in our copy. `patient` lifts it to the most
    tokens that make no larger a problem than MOST_NUMBERS.
    """

    def solve(p: Tensor, q: Tensor, drafts: int) -> Solution:
        rule = GlobalResolution(tolerance, limit=largest(drafts) if patient else None)
        node = rule.node(p.numpy(), q.numpy(), drafts)
        if node.resolution.failure:
            raise ResolutionFailure(node.resolution.failure)
        return node

    def method(target: Tensor, draft: Tensor, drafted: Tensor, law: Iid) -> MethodResult:
        outcome, nodes = row_by_row(solve, target[None], draft[None], drafted[None], law)
        return outcome, lambda: resolution_facts(nodes[0], target.numpy(), draft.numpy(), law.drafts)

    return method


@cache
def largest(drafts: int) -> int:
    """The most tokens with at most MOST_NUMBERS pairs of a set and a token.

    >>> largest(2)
    1048
    """
    return next(size for size in count() if edges_of(size + 1, drafts) > MOST_NUMBERS)


def resolution_facts(
    node: Solution | None,
    target: Float[np.ndarray, " vocabulary"],
    draft: Float[np.ndarray, " vocabulary"],
    drafts: int,
) -> Facts:
    """By summing over every drafted set where there are few, else the guarantee."""
    assert node is not None  # a tuple was drafted
    if edges_of(len(draft), drafts) > MOST_NUMBERS:
        return Facts(node.resolution.split.optimum - node.resolution.loss, node.deviation / 2, "bound")
    received, emitted = enumerate_sets(node, draft, drafts)
    return Facts(float(received.sum()), variation(emitted, target), "enumeration")


def enumerate_sets(
    node: Solution, draft: Float[np.ndarray, " vocabulary"], drafts: int
) -> tuple[Float[np.ndarray, " vocabulary"], Float[np.ndarray, " vocabulary"]]:
    """What Global Resolution accepts of every token, and the law of what it emits, over every drafted set."""
    received = np.zeros(len(draft))
    for tokens, probability in sets(iid_network(draft, drafts)):
        mass = probability[:, None] * node.resolution.accept(tokens)
        received += np.bincount(tokens.ravel(), mass.ravel(), minlength=len(draft))
    return received, received + (1 - received.sum()) * node.next_target


def sets(network: Network) -> Iterator[tuple[Int[np.ndarray, "sets some"], Float[np.ndarray, " sets"]]]:
    """The drafted sets of each size with their probabilities."""
    for size in np.unique(network.size):
        first, last = np.searchsorted(network.size, [size, size + 1])
        tokens = network.token[network.start[first] : network.start[last]].reshape(last - first, size)
        yield tokens, network.probability[first:last]


def methods(seconds: float) -> dict[str, Method]:
    """Every method by name; the linear program stops itself after so many seconds, the others cannot."""
    return {
        "lorenz": closed_form(lorenz.lorenz, lorenz.rate_of_lorenz),
        "max_flow": by_network(lambda p, network, q, n: max_flow.max_flow(p, network)),
        "reduced_max_flow": by_network(
            lambda p, network, q, n: max_flow.reduced_max_flow(p, network, outer_residuals(p, q, n).inside)
        ),
        "linear_program": by_network(lambda p, network, q, n: linear_program.linear_program(p, network, seconds)),
        **{f"global_resolution {tolerance}": resolution(float(tolerance)) for tolerance in TOLERANCES},
        "global_resolution 1e-3 patient": resolution(1e-3, patient=True),
        "k_sequential": closed_form(k_sequential.k_sequential, k_sequential.rate_of_k_sequential),
        "recursive_rejection": closed_form(in_turn.recursive_rejection, in_turn.rate_of_rejection),
        "naive": closed_form(naive, rate_of_iid),
    }
