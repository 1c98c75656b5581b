"""The acceptance rate at the roots of a step, beside the largest that any rule can reach there."""

from collections import defaultdict

from multidraft.decoding.draft import stacked
from multidraft.decoding.record import Measured, acceptance_of
from multidraft.decoding.state import Scored
from multidraft.decoding.verify import Decision, compressed
from multidraft.verification.optimal import optimum
from multidraft.verification.scheme import Scheme


def measured(scheme: Scheme, scored: Scored, decision: Decision) -> dict[int, Measured]:
    """What is to be expected of every row whose target was asked; nothing is accepted where nothing was drafted."""
    found, groups = dict[int, Measured](), defaultdict[int, list[int]](list)
    for row, tree in enumerate(scored.trees):
        if scored.rows[row].said is not None or row in scored.faults:
            continue
        if tree.has_drafts(0):
            groups[tree.counts[0]].append(row)
        else:
            found[row] = Measured(0.0, 0.0, True)
    for count, rows in groups.items():
        found |= at_roots(scheme.with_drafts(count), scored, rows, decision)
    return found


def at_roots(scheme: Scheme, scored: Scored, rows: list[int], decision: Decision) -> dict[int, Measured]:
    """The same of rows whose roots drew the same number of tokens."""
    laws = [scored.trees[row].laws[0] for row in rows]
    target = compressed(scored.targets([(row, 0) for row in rows]), laws)
    draft = stacked(laws, scheme.drafts, more=1)
    best, expected = optimum(target, draft, scheme.law), scheme.expected_acceptance(target, draft)
    if expected is not None:  # above the optimum only by rounding
        rates = expected.minimum(best).tolist()
    else:
        rates = [acceptance_of(decision.events[row]) for row in rows]
    pairs = zip(rates, best.tolist(), strict=True)
    return {row: Measured(*pair, expected is not None) for row, pair in zip(rows, pairs, strict=True)}
