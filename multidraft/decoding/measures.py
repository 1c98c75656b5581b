"""What a step says of its tokens: log-probabilities, and acceptance beside the largest that any rule can reach."""

from collections import defaultdict

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.decoding.draft import stacked
from multidraft.decoding.record import Logprob, Measured, acceptance_of
from multidraft.decoding.state import Scored, prefixes_of
from multidraft.decoding.verify import Decision, compressed
from multidraft.sampling.from_logits import log_laws
from multidraft.verification.laws import optimum
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
    target = torch.from_numpy(compressed(scored.targets([(row, 0) for row in rows]), laws))
    draft = stacked(laws, scheme.drafts, more=1)
    best, expected = optimum(target, draft, scheme.law), scheme.expected_acceptance(target, draft)
    if expected is not None:  # above the optimum only by rounding
        rates = expected.minimum(best).tolist()
    else:
        rates = [acceptance_of(decision.events[row]) for row in rows]
    pairs = zip(rates, best.tolist(), strict=True)
    return {row: Measured(*pair, expected is not None) for row, pair in zip(rows, pairs, strict=True)}


def look_up(scored: Scored, row: int, path: list[int], tokens: list[int], top: int) -> list[Logprob]:
    """For the accepted tokens of one row and its last one, each from the node above it."""
    places = [(row, node) for node in (0, *path)]
    settings = [scored.rows[row].sampling] * len(places)
    logs = log_laws(scored.lines(places), settings, prefixes_of(scored.rows, scored.trees, places))
    return listed(logs, tokens, top)


def listed(logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int) -> list[Logprob]:
    """Every token's logarithm in its line, and the largest of the line."""
    chosen = logs.gather(-1, torch.tensor(tokens, device=logs.device)[:, None])[:, 0].tolist()
    best = logs.topk(min(top, logs.shape[-1]), -1)
    pairs = [tuple(zip(*both, strict=True)) for both in zip(best.indices.tolist(), best.values.tolist(), strict=True)]
    return [Logprob(*both) for both in zip(chosen, pairs, strict=True)]
