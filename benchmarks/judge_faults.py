"""Faults that engines have, to be built into our server: in tests, and in judge_teeth.py.

Each replaces functions of the decoding step, for as long as `built_in` or a test's monkeypatch holds.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import numpy as np
import torch

from multidraft.decoding import state, step, targets, verify
from multidraft.decoding.request import Request
from multidraft.decoding.targets import NodeResidual, NodeTarget, Targets, stack_targets
from multidraft.decoding.verify import single_draft_outcome
from multidraft.decoding.walks import Child, Verdict
from multidraft.sampling import from_logits
from multidraft.sampling.settings import Sampling
from multidraft.verification.distributions import pick_each


def matching_twice(query):
    """The target's token is compared with the draft, and drawn again if it is another."""
    tree, node, _, target = query
    (child,), place = tree.children[node].values(), max(tree.places[node])
    p = float(target.values[place])

    def left():
        places = stack_targets([target])[0].numpy()
        return places * (np.arange(len(places)) != place) * (1 - p)

    return Verdict((Child(child, 1 - (1 - p) ** 2),), NodeResidual(target, left))


def typical_acceptance(query):
    """A draft is accepted if the target likes it enough."""
    tree, node, _, target = query
    (child,) = tree.children[node].values()
    accept = 1.0 if float(target.values[max(tree.places[node])]) > 0.2 else 0.0
    return Verdict((Child(child, accept),), NodeResidual(target, stack_targets([target])[0].numpy))


def another_temperature(query):
    """The draft law that is used is not the one that was drawn from."""
    law = query.tree.laws[query.node]
    warm = law.probabilities**0.5
    changed = replace(law, probabilities=warm / warm.sum() * law.probabilities.sum())
    laws = {**query.tree.laws, query.node: changed}
    return single_draft_outcome(query._replace(tree=replace(query.tree, laws=laws)))


def not_normalised(self):
    """What is missing to one falls to the last token, as by a cumulative sum that ends too early."""
    weights = plain_weights(self)
    weights[-1] += max(0.0, 1 - float(weights.sum()))
    return weights


plain_weights, plain_last, plain_targets, plain_lines = (
    NodeResidual.token_weights,
    Targets.draw,
    Targets.group_targets,
    Targets.lines,
)
plain_commit, plain_next_row = step.commit, step.next_row


def bonus_from_the_draft(self, walk_results, numbers):
    """The bonus comes from the draft's law at the last drafting node."""
    last = plain_last(self, walk_results, numbers)
    for row, result in enumerate(walk_results):
        if result.residual is None and result.path:
            law = self.trees[row].laws[self.trees[row].parents[result.leaf]]
            (place,) = pick_each(torch.as_tensor(law.probabilities)[None], [numbers[row]])
            last[row] = int(law.ids[place])
    return last


def kept_rejected(state, node_targets, decision):
    """The target keeps the first draft where it was rejected."""
    plainly = state.target.commit

    def commit(paths):
        plainly([[0, 1] if path == [0] and len(tree.tokens) > 1 else path
                 for path, tree in zip(paths, node_targets.trees, strict=True)])  # fmt: skip

    state.target.commit = commit
    try:
        return plain_commit(state, node_targets, decision)
    finally:
        del state.target.commit


def exchanged_rows(self, places):
    """Two rows of a batch have each other's logits, in some steps."""
    exchanged = {0: 1, 1: 0} if len(self.rows) > 1 and self.rows[0].position % 8 == 0 else {}
    if self.logits is not None and exchanged and len(self.trees[0].tokens) == len(self.trees[1].tokens):
        places = [(exchanged.get(row, row), node) for row, node in places]
    return plain_lines(self, places)


def cut_before_penalties(function):
    """Top-p drops tokens by the law without penalties, and then penalties change what is left."""

    def wrong(logits, sampling, prefixes=None):
        cut = Sampling(sampling.temperature or 1.0, None, sampling.top_p)
        kept, _ = from_logits.target_distributions(logits, cut)
        return function(logits.masked_fill(kept == 0, -torch.inf), replace(sampling, top_p=None), prefixes)

    return wrong


def noise_drawn_with_again(self, walk_results, numbers):
    """Where a draft was rejected, the token in its place is drawn with the number that drew the draft."""
    again = [
        number if result.residual is None else self.trees[row].numbers[result.leaf][0]
        for row, (result, number) in enumerate(zip(walk_results, numbers, strict=True))
    ]
    return plain_last(self, walk_results, again)


def targets_of_the_node_before(self, group, lines):
    """A node is verified against the logits of the one before it; what is listed is right."""
    before = [(row, max(node - 1, 0)) for row, node in group.places]
    targets_before = plain_targets(self, group._replace(places=before), self.lines(before))
    return {
        place: NodeTarget(targets_before[other].probabilities, self.ids_at(place))
        for place, other in zip(group.places, before, strict=True)
    }


def one_token_counted(row, tree, path, last, unread):
    """Processors see one token of a step, the last, whatever was accepted before it."""
    following = plain_next_row(row, tree, path, last, unread)
    if row.prefix is not None:
        following.prefix = torch.cat([row.prefix, following.prefix[-1:]])
    return following


def mask_one_token_late(rows, trees, places):
    """Behind drafts a grammar's mask is that of the node before; drafts are drawn with the right one."""
    late = []
    for group in state.groups_by_settings(rows, trees, places):
        pairs = zip(group.prefixes or (), group.places, strict=False)
        prefixes = group.prefixes and [prefix[:-1] if node else prefix for prefix, (_, node) in pairs]
        late.append(group._replace(prefixes=prefixes))
    return late


def end_run_over(self, emitted):
    """Of a step's tokens only the last is looked at for an end of text."""
    room = self.max_new_tokens - len(self.tokens)
    if len(emitted.tokens) < room:
        return emitted, "stop" if emitted.tokens[-1] in self.stop.tokens else None
    return emitted.first(room), "length"


def right_log_lines(node_targets, places):
    """What should be listed, whatever tokens are drawn from."""
    shown = {}
    for group in state.groups_by_settings(node_targets.rows, node_targets.trees, places):
        warm = replace(group.sampling, temperature=group.sampling.temperature or 1.0)
        lines, _ = from_logits.target_distributions(node_targets.lines(group.places), warm, group.prefixes)
        shown |= zip(group.places, lines, strict=True)
    return torch.stack([shown[place] for place in places]).log()


@dataclass(frozen=True)
class Fault:
    """Where it is built in, and what a judge has to do to see it."""

    places: tuple[tuple[Any, str, Any], ...]  # module or class, name, what takes its place
    needs_reference: bool = False
    needs_forms: bool = False
    settings: Mapping[str, float] = field(default_factory=dict)  # of requests


@contextmanager
def built_in(fault: Fault) -> Iterator[None]:
    """The fault in this process until the block ends."""
    with ExitStack() as patches:
        for place in fault.places:
            patches.enter_context(mock.patch.object(*place))
        yield


PENALISED = {"top_p": 0.9, "frequency_penalty": 1.0}
FAULTS = {
    "matching twice": Fault(((verify, "single_draft_outcome", matching_twice),)),
    "typical acceptance": Fault(((verify, "single_draft_outcome", typical_acceptance),)),
    "residual not normalised": Fault(((NodeResidual, "token_weights", not_normalised),)),
    "drafts at another temperature": Fault(((verify, "single_draft_outcome", another_temperature),)),
    "bonus from the draft": Fault(((Targets, "draw", bonus_from_the_draft),)),
    "rejected token kept": Fault(((step, "commit", kept_rejected),), needs_reference=True),
    "rows exchanged": Fault(((Targets, "lines", exchanged_rows),), needs_reference=True),
    "top-p before penalties": Fault(
        ((targets, "target_distributions", cut_before_penalties(from_logits.target_distributions)),),
        needs_reference=True,
        settings=PENALISED,
    ),
    "top-p before penalties, unlisted": Fault(
        (
            (targets, "target_distributions", cut_before_penalties(from_logits.target_distributions)),
            (Targets, "log_lines", right_log_lines),
        ),
        settings=PENALISED,
    ),
    "noise drawn with again": Fault(((Targets, "draw", noise_drawn_with_again),)),
    "another node's logits": Fault(
        ((Targets, "group_targets", targets_of_the_node_before), (Targets, "log_lines", right_log_lines))
    ),
    "one accepted token counted": Fault(
        ((step, "next_row", one_token_counted),), needs_reference=True, settings={"frequency_penalty": 1.0}
    ),
    "mask one token late": Fault(((targets, "groups_by_settings", mask_one_token_late),), needs_forms=True),
    "end of text run over": Fault(((Request, "cut", end_run_over),), needs_forms=True),
}
