"""Acceptance learnt from verdicts: the rates that made them come back, and what was never seen follows the rest."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from plans import rates, seen

from multidraft.autotune.acceptance import CLASSES, DEFAULT, MOST_DRAFTS, AcceptanceTracker, Rates
from multidraft.decoding.tree import NodeLaw, Tree


def heard(found: Rates, drafts: list[int], nodes: float) -> AcceptanceTracker:
    """Nodes with some numbers of drafts, of middling confidence."""
    own = AcceptanceTracker()
    for count in drafts:
        share = found.parts[count][:count]
        for _ in range(int(nodes)):
            own.add((count, 2), 1.0, [found.accepted(count) * part for part in share])
    return own


def test_rates_come_back_from_what_they_claim() -> None:
    true = replace(rates(0.6, 0.4), confidence=np.linspace(0.5, 2.0, CLASSES))
    found = seen(true).rates(rounds=8)
    assert found.table == pytest.approx(true.table, abs=0.03)
    assert found.shares == pytest.approx(true.shares, abs=1e-6)


def test_without_evidence_the_prior_stays() -> None:
    found = AcceptanceTracker().rates()
    assert found.table == pytest.approx(DEFAULT.table)
    assert found.shares == pytest.approx(DEFAULT.shares)


@pytest.mark.parametrize("one", [0.2, 0.9])
def test_one_number_of_drafts_tells_of_the_others(one: float) -> None:
    """Only single drafts are seen; three are then believed to be as much easier or harder than assumed."""
    found = heard(rates(one), [1], 2000).rates()
    assert found.accepted(1) == pytest.approx(one, abs=0.01)
    assert (found.accepted(3) > DEFAULT.accepted(3)) == (one > DEFAULT.accepted(1))
    assert found.accepted(3) > found.accepted(1)


def test_more_drafts_are_never_believed_to_be_accepted_less() -> None:
    noisy = AcceptanceTracker()
    noisy.add((1, 2), 1.0, [1.0])
    noisy.add((2, 2), 1.0, [0.0, 0.0])
    assert (np.diff(noisy.rates().missing) <= 0).all()


def test_chances_stay_within_the_unit_interval() -> None:
    for claim in (0.0, 1.0):
        own = AcceptanceTracker()
        for _ in range(1000):
            own.add((2, 2), 1.0, [claim, 0.0])
        assert ((own.rates().table >= 0) & (own.rates().table <= 1)).all()


def test_a_node_counts_by_its_weight() -> None:
    """A node that the walk enters with a tenth says a tenth."""
    own = AcceptanceTracker()
    own.add((1, 2), 0.1, [0.1])
    own.add((1, 2), 0.9, [0.0])
    assert own.rates(DEFAULT, 1e-9).accepted(1) == pytest.approx(0.1, abs=0.01)


def test_what_was_learnt_fades() -> None:
    own, other = heard(rates(0.1), [1], 100), heard(rates(0.1), [1], 100)
    own.fade(0.01)
    assert other.rates().accepted(1) < own.rates().accepted(1) < DEFAULT.accepted(1)


def test_expected_tokens_are_sums_over_paths() -> None:
    found = rates(0.6, second=0.5)
    assert found.tokens(Tree.parse("2x1")) == pytest.approx(1 + 0.6 + 0.2 + 0.36 + 0.12)
    assert found.tokens(Tree.from_drafts([0])) == 1
    assert len(found.parts) == MOST_DRAFTS + 1


def test_what_was_counted_says_how_likely_it_is_right_and_is_trusted_as_far_as_it_was() -> None:
    law = NodeLaw(np.array([7]), np.ones(1), torch.tensor([0.5, 0.25]).log(), partial=True)
    assert DEFAULT.of(law)[:4] == pytest.approx([0, 0.5, 0.75, 0.75])
    own = AcceptanceTracker(counts=np.array([500.0, 1000.0]))
    assert own.rates().of(law)[1] == pytest.approx(0.25, abs=0.01)


def test_a_law_of_which_nothing_is_missing_says_how_sure_it_is() -> None:
    law = NodeLaw(np.array([7]), np.ones(1), torch.tensor([0.9, 0.1]).log(), partial=True)
    assert law.known is None
    assert DEFAULT.of(law) == DEFAULT.by_class[4]
