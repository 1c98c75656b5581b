"""`auto` reads a look-up where its first draft may pay by how likely it is right, which is known before."""

from typing import Any

import pytest
import torch

import multidraft as md
from multidraft.autotune.growing_policy import Growing
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup, NGram
from multidraft.models.prefix_models import TableModel
from multidraft.models.reader import Reader

SIZE = 9
TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4, 1, 2]
SETTINGS: dict[str, Any] = dict(max_new_tokens=24, tune_budget=0)


def target(step: int = 1) -> TableModel:
    """Counts up, or by so much."""
    return TableModel(lambda prefix: torch.eye(SIZE)[(prefix[-1] + step) % SIZE], SIZE)


def read(model: Reader, tokens: list[int]) -> Reader:
    """The model with these tokens kept."""
    model.forward([tokens], [list(range(-1, len(tokens) - 1))], "none")
    model.commit([list(range(len(tokens)))])
    return model


@pytest.mark.parametrize("kept", range(1, len(TEXT)))
@pytest.mark.parametrize("kind", ["lookup", "n-grams", "mixed"])
def test_it_is_what_reading_would_tell(kind: str, kept: int) -> None:
    drafters = {"lookup": Lookup(SIZE), "n-grams": NGram(SIZE), "mixed": LookupThenModel([Lookup(SIZE), target()])}
    drafter = drafters[kind]
    certainty = read(drafter.new(64), TEXT[:kept]).certainty(0, TEXT[kept:])  # what follows the root counts already
    reading = read(drafter.new(64), TEXT[:-1])
    scores = reading.forward([TEXT[-1:]], [[-1]], "last", lookup_only=True)
    assert certainty == pytest.approx(float(scores.logits.exp().max()), abs=0.02 if kind == "n-grams" else 0.2)


def test_models_do_not_know_before() -> None:
    assert read(target(), TEXT).certainty(0, [1]) is None


def test_it_may_be_asked_again_and_again() -> None:
    """What was read ahead is not counted twice, neither when it is asked again nor when it is kept."""
    asked, other = read(Lookup(SIZE), TEXT[:5]), read(Lookup(SIZE), TEXT[:5])
    for end in range(6, len(TEXT)):
        asked.certainty(0, TEXT[5:end])
    for model in (asked, other):
        read(model, TEXT[5:])
    assert asked.certainty(0, [3]) == other.certainty(0, [3])


@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize("model_pays", [None, False, True])  # None: look-ups without a model
def test_only_what_may_pay_is_read(monkeypatch: pytest.MonkeyPatch, pays: bool, model_pays: bool | None) -> None:
    monkeypatch.setattr(Growing, "certainty_that_pays", lambda self: 0.0 if pays else 2.0)
    asks = property(lambda self: model_pays, lambda self, value: None)
    monkeypatch.setattr(Growing, "model_pays", asks, raising=False)
    draft = Lookup(SIZE) if model_pays is None else LookupThenModel([Lookup(SIZE), target()])
    rows, info = md.generate(target(), draft, [[*range(SIZE), *range(SIZE)]], **SETTINGS)
    assert rows[0].tolist() == [place % SIZE for place in range(24)]
    assert (info.nodes == 0) == (not pays and not model_pays)


def test_a_text_without_repetitions_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = list[int]()
    forward = Lookup._read
    monkeypatch.setattr(Lookup, "_read", lambda self, *rest: reads.append(1) or forward(self, *rest))
    md.generate(target(), Lookup(SIZE), [[0]], max_new_tokens=SIZE - 1, tune_budget=0)
    assert len(reads) <= 1  # the prompt


def test_rows_whose_look_ups_lag_are_read_when_they_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred tokens are not read; then the text repeats itself, and drafts are accepted."""
    size, period = 200, 150
    model = TableModel(lambda prefix: torch.eye(size)[len(prefix) % period], size)
    rows, info = md.generate(model, Lookup(size), [[0]], max_new_tokens=2 * period, tune_budget=0)
    assert rows[0].tolist() == [(place + 1) % period for place in range(2 * period)]
    assert info.accepted > period / 2
