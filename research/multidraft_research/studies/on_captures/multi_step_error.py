"""Global Resolution, Theorem R.1: how far the law of several of its tokens is from the target's, beside the bound.

The 1-norm between two laws of L tokens is the mean of |P'(x) / P(x) - 1| over texts x that the target itself draws,
which the captured texts are. Both probabilities are products over positions, and at each of them the law of what the
rule emits is a sum over everything that can be drafted: only the texts are a sample.
"""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Float
from torch import Tensor

from multidraft_research.solvers.global_resolution_rule import GlobalResolution
from multidraft_research.studies.on_captures.rates import PERCENT, pair_at
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Captured, Finding, Panel, Study
from multidraft_research.studies.solvers import enumerate_sets

TOP_K, DRAFTS, TOLERANCES, LENGTHS = 10, 3, (1e-2, 1e-3), (1, 2, 4, 8)
DEVIATION, FAILURES = "deviation", "failures"
LAW, SUM, BOUND = "law of the tokens", "sum of single steps", "bound"


def measure(part: Captured) -> Iterator[Cell]:
    """Texts are cut into pieces of each length; what the proof of the theorem sums up needs no drawn text."""
    target, draft = pair_at(part.recording, 1.0, top_k=TOP_K)
    for tolerance in TOLERANCES:
        rule = GlobalResolution(tolerance)
        laws = [law(rule, p, q) for p, q in zip(target.numpy(), draft.numpy(), strict=True)]
        yield Cell(
            FAILURES, row(tolerance), "all", float(sum(law_of_text is None for law_of_text in laws)), float(len(laws))
        )
        emitted = np.stack(
            [p if law_of_text is None else law_of_text for law_of_text, p in zip(laws, target.numpy(), strict=True)]
        )
        yield from deviations(rule, target.numpy(), emitted, part.drawn)


def law(
    rule: GlobalResolution, target: Float[np.ndarray, " vocabulary"], draft: Float[np.ndarray, " vocabulary"]
) -> Float[np.ndarray, " vocabulary"] | None:
    """What the rule emits, over every set of drafts; None where it fails, and the target's own draw is emitted."""
    node = rule.node(target, draft, DRAFTS)
    return None if node.resolution.failure else enumerate_sets(node, draft, DRAFTS)[1]


def deviations(
    rule: GlobalResolution,
    target: Float[np.ndarray, "positions vocabulary"],
    emitted: Float[np.ndarray, "positions vocabulary"],
    drawn: Tensor | None,
) -> Iterator[Cell]:
    """The 1-norm of the law of each length, the sum of those of its steps, and the bound."""
    single = np.abs(emitted - target).sum(-1)
    for length in (length for length in LENGTHS if length <= len(target)):
        pieces = len(target) // length
        shape, weight = (pieces, length), float(pieces)
        if drawn is not None:
            places = np.arange(len(target)), drawn.numpy()
            likelier = (emitted[places] / target[places])[: pieces * length].reshape(shape).prod(-1)
            total = float(np.abs(likelier - 1).sum())
            yield Cell(DEVIATION, row(rule.tolerance, LAW), float(length), total, weight)
        yield Cell(DEVIATION, row(rule.tolerance, SUM), float(length), float(single[: pieces * length].sum()), weight)
        yield Cell(DEVIATION, row(rule.tolerance, BOUND), float(length), 2 * rule.within * length * weight, weight)


def row(tolerance: float, what: str = "") -> str:
    """What a line of the tables is called."""
    return f"tolerance {tolerance:g}" + (f", {what}" if what else "")


def finding(text: str, tolerance: float, above: str, below: str) -> Finding:
    """That something is below something else, for the longest texts."""
    places = ((DEVIATION, row(tolerance, what), float(LENGTHS[-1])) for what in (above, below))
    return Finding(f"{text} ({LENGTHS[-1]} tokens, {row(tolerance)})", *places)


STUDY = Study(
    paper="Global Resolution, Theorem R.1",
    panels={
        DEVIATION: Panel(f"1-norm from the target's law ({DRAFTS} drafts, top {TOP_K}, T = 1)", "tokens", digits=5),
        FAILURES: Panel("nodes at which Global Resolution fails, %", "", PERCENT),
    },
    on_capture=measure,
    drafts=DRAFTS,
    findings=tuple(
        finding(text, tolerance, above, LAW)
        for tolerance in TOLERANCES
        for text, above in (("the law of several steps is within the bound", BOUND), ("within its steps' sum", SUM))
    ),
)
