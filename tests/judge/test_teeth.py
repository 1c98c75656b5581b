"""Our server over HTTP: innocent as it is, also by its reference; guilty with each of the faults built in."""

import pytest
from decoded import readers
from judge_faults import FAULTS, PENALISED
from multidraft_judge.references.model import ModelReference
from multidraft_judge.verdict import Verdict as JudgeVerdict
from serving import NUM_LETTERS, letters, served

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.server import Limits
from multidraft.server.engine import Engine
from multidraft.server.service import Service
from multidraft.zoo import load_pair

ASKED = {"prompts": ["ab", "cde", "fa", "bbc"], "max_tokens": 48, "alpha": 1e-6}


def target() -> TableModel:
    """What is served."""
    return TableModel(random_table(NUM_LETTERS, 2, 1), NUM_LETTERS)


def judged(budget: int, with_reference: bool = False, **settings: float) -> JudgeVerdict:
    """The verdict on a server with a chain of two drafts: of tables, or where there are forms the embedded pair."""
    models, tokenizer = (target(), TableModel(random_table(NUM_LETTERS, 2, 2), NUM_LETTERS)), letters(NUM_LETTERS)
    if settings.get("forms"):
        pair = load_pair()
        models, tokenizer = readers(pair.target, pair.draft), pair.tokenizer
    way = DecodeConfig(md.scheme("iid:lorenz", drafts=1), "commit"), StaticTree(Tree.parse("1x1"))
    service = Service(Engine(*models, *way, Limits()), tokenizer, ["toy"])
    reference = ModelReference(target(), letters(NUM_LETTERS)) if with_reference else None
    with served(service) as client:
        return md.judge(str(client.base_url), "toy", budget_tokens=budget, reference=reference, **ASKED, **settings)


@pytest.mark.slow
def test_without_a_fault_nothing_is_found():
    """False alarm with odds of 1e-6 at most."""
    assert judged(3000, True).reasons == []
    assert judged(3000, True, **PENALISED).reasons == []
    assert judged(3000, forms=True).reasons == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_found(monkeypatch, unchecked, fault):
    for place in FAULTS[fault].places:
        monkeypatch.setattr(*place)
    forms = {"forms": True} if FAULTS[fault].needs_forms else {}
    verdict = judged(20_000, FAULTS[fault].needs_reference, **FAULTS[fault].settings, **forms)
    print(fault, verdict.tokens, verdict.bets[0].found_after, verdict.bets[0].strongest, verdict.reasons)
    assert verdict.guilty


@pytest.mark.slow
def test_the_embedded_pair_is_innocent_end_to_end():
    """Against itself as the reference, in this process. False alarm with odds of 1e-6 at most."""
    pair = load_pair()
    way = DecodeConfig(md.scheme("iid:lorenz", drafts=2)), StaticTree(Tree.parse("2x1"))
    service = Service(Engine(*readers(pair.target, pair.draft), *way, Limits()), pair.tokenizer, ["toy"])
    with served(service) as client:
        reference = ModelReference(load_pair().target, pair.tokenizer)
        verdict = md.judge(str(client.base_url), "toy", budget_tokens=1000, max_tokens=32, reference=reference)
        url = str(client.base_url)
        by_itself = md.judge(url, "toy", budget_tokens=700, reference=url, rounding=0.01)  # it is in bfloat16
    assert verdict.reasons == by_itself.reasons == []
    assert (by_itself.compared.tokens, by_itself.compared.skipped_texts) == (by_itself.tokens, 0)  # by ids
    assert verdict.compared.tokens > 500
