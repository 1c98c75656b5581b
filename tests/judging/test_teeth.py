"""Our server over HTTP: innocent as it is, also by its reference; guilty with each of seven faults built in."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from serving import NUM_LETTERS, letters, served

import multidraft as md
from multidraft.decoding import step, verify
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig, Scored
from multidraft.decoding.tree import Tree
from multidraft.decoding.verify import CompressedResidual, compress_targets, single_draft_outcome
from multidraft.decoding.walks import Child, Verdict
from multidraft.judging.reference_model import ModelReference
from multidraft.judging.verdict import Verdict as JudgeVerdict
from multidraft.models.table import TableModel, random_table
from multidraft.server import Limits
from multidraft.server.engine import Engine
from multidraft.server.service import Service
from multidraft.verification.distributions import pick_each
from multidraft.zoo import load_pair

ASKED = {"prompts": ["ab", "cde", "fa", "bbc"], "max_tokens": 48, "alpha": 1e-6}


def target() -> TableModel:
    """What is served."""
    return TableModel(random_table(NUM_LETTERS, 2, 1), NUM_LETTERS)


def similar(prefix: tuple[int, ...]) -> torch.Tensor:
    """A draft that is surer of itself than the target, as small models with a low temperature are."""
    weights = random_table(NUM_LETTERS, 2, 1)(prefix) ** 3
    return weights / weights.sum()


def judged(budget: int, with_reference: bool = False, is_similar: bool = False) -> JudgeVerdict:
    """The verdict on a server of tables with a chain of two drafts."""
    draft = TableModel(similar if is_similar else random_table(NUM_LETTERS, 2, 2), NUM_LETTERS)
    config = DecodeConfig(md.scheme("iid:lorenz", drafts=1), StaticTree(Tree.parse("1x1")), "commit")
    service = Service(Engine(target(), draft, config, Limits()), letters(NUM_LETTERS), ["toy"])
    reference = ModelReference(target(), letters(NUM_LETTERS)) if with_reference else None
    with served(service) as client:
        return md.judge(str(client.base_url), "toy", budget_tokens=budget, reference=reference, **ASKED)


@pytest.mark.slow
def test_without_a_fault_nothing_is_found():
    """False alarm with odds of 1e-6 at most."""
    assert judged(3000, True).reasons == []


def matching_twice(tree, node, weight, probs):
    """The target's token is compared with the draft, and drawn again if it is another."""
    ((token, child),) = tree.children[node].items()
    law, p = tree.laws[node], float(probs[token])

    def parts():
        places = compress_targets([probs], [law])[0]
        return places, places * (np.arange(len(places)) != max(tree.places[node])) * (1 - p)

    return Verdict((Child(child, 1 - (1 - p) ** 2),), CompressedResidual(law, probs, parts))


def typical_acceptance(tree, node, weight, probs):
    """A draft is accepted if the target likes it enough."""
    ((token, child),) = tree.children[node].items()
    places = compress_targets([probs], [tree.laws[node]])[0]
    accept = 1.0 if float(probs[token]) > 0.2 else 0.0
    return Verdict((Child(child, accept),), CompressedResidual(tree.laws[node], probs, lambda: (places, places)))


def another_temperature(tree, node, weight, probs):
    """The draft law that is used is not the one that was drawn from."""
    law = tree.laws[node]
    warm = law.probabilities**0.5
    changed = replace(law, probabilities=warm / warm.sum() * law.probabilities.sum())
    return single_draft_outcome(replace(tree, laws={**dict(tree.laws), node: changed}), node, weight, probs)


def not_normalised(self):
    """What is missing to one falls to the last token, as by a cumulative sum that ends too early."""
    weights = plain_weights(self)
    weights[-1] += max(0.0, 1 - float(weights.sum()))
    return weights


plain_weights, plain_last, plain_commit, plain_lines = (
    CompressedResidual.token_weights,
    verify.draw_last_tokens,
    step.commit,
    Scored.lines,
)


def bonus_from_the_draft(scored, walk_results, numbers):
    """The bonus comes from the draft's law at the last drafting node."""
    last = plain_last(scored, walk_results, numbers)
    for row, result in enumerate(walk_results):
        if result.residual is None and result.path:
            law = scored.trees[row].laws[scored.trees[row].parents[result.leaf]]
            (place,) = pick_each(torch.as_tensor(law.probabilities)[None], [numbers[row]])
            last[row] = int(law.ids[place])
    return last


def kept_rejected(state, scored, decision):
    """The target keeps the first draft where it was rejected."""
    plainly = state.target.commit

    def commit(paths):
        plainly([[0, 1] if path == [0] and len(tree.tokens) > 1 else path
                 for path, tree in zip(paths, scored.trees, strict=True)])  # fmt: skip

    state.target.commit = commit
    try:
        return plain_commit(state, scored, decision)
    finally:
        del state.target.commit


def exchanged_rows(self, places):
    """Two rows of a batch have each other's logits, in some steps."""
    exchanged = {0: 1, 1: 0} if len(self.rows) > 1 and self.rows[0].position % 8 == 0 else {}
    if self.logits is not None and exchanged and len(self.trees[0].tokens) == len(self.trees[1].tokens):
        places = [(exchanged.get(row, row), node) for row, node in places]
    return plain_lines(self, places)


FAULTS = {  # where, what, whether only a reference can see it
    "matching twice": (verify, "single_draft_outcome", matching_twice, False),
    "typical acceptance": (verify, "single_draft_outcome", typical_acceptance, False),
    "residual not normalised": (CompressedResidual, "token_weights", not_normalised, False),
    "drafts at another temperature": (verify, "single_draft_outcome", another_temperature, False),
    "bonus from the draft": (verify, "draw_last_tokens", bonus_from_the_draft, False),
    "rejected token kept": (step, "commit", kept_rejected, True),
    "rows exchanged": (Scored, "lines", exchanged_rows, True),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(monkeypatch, unchecked, fault):
    place, name, wrong, with_reference = FAULTS[fault]
    monkeypatch.setattr(place, name, wrong)
    # Of unlike models, matching twice shifts no rank on average, and 20,000 tokens do not show it.
    verdict = judged(20_000, with_reference, is_similar=fault == "matching twice")
    assert verdict.guilty


@pytest.mark.slow
def test_the_embedded_pair_is_innocent_end_to_end():
    """Against itself as the reference, in this process. False alarm with odds of 1e-6 at most."""
    pair = load_pair()
    config = DecodeConfig(md.scheme("iid:lorenz", drafts=2), StaticTree(Tree.parse("2x1")))
    service = Service(Engine(pair.target, pair.draft, config, Limits()), pair.tokenizer, ["toy"])
    with served(service) as client:
        reference = ModelReference(load_pair().target, pair.tokenizer)
        verdict = md.judge(str(client.base_url), "toy", budget_tokens=1000, max_tokens=32, reference=reference)
    assert verdict.reasons == []
    assert verdict.compared.tokens > 500
