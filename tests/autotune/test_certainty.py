"""`auto` reads a look-up where its first draft may pay by how likely it is right, which is known before."""

from typing import Any

import pytest
import torch

import multidraft as md
from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.plans import Profile
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup, NGram
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Cost, Reader

SIZE = 9
TEXT = [1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3, 4, 1, 2]


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


class Decided(Auto):
    """A policy for which it is settled whether certain look-ups pay, and whether the model does."""

    model_pays = property(lambda self: self.settled[1], lambda self, value: None)

    def __init__(self, settled: tuple[bool, bool | None], kind: Cost):
        self.settled = settled
        super().__init__(Profile({}), 1.0, kind=kind)

    def certainty_that_pays(self, padding: float) -> float:
        return 0.0 if self.settled[0] else 2.0


@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize("model_pays", [None, False, True])  # None: look-ups without a model
def test_only_what_may_pay_is_read(pays: bool, model_pays: bool | None) -> None:
    draft = Lookup(SIZE) if model_pays is None else LookupThenModel([Lookup(SIZE), target()])
    policy = Decided((pays, model_pays), draft.cost)
    rows, info = md.generate(target(), draft, [[*range(SIZE), *range(SIZE)]], tree=policy, max_new_tokens=24)
    assert rows[0].tolist() == [place % SIZE for place in range(24)]
    assert (info.nodes == 0) == (not pays and not model_pays)


class Counted(Lookup):
    """A look-up that counts how often it reads, and its new readers with it."""

    reads = 0

    def new(self, capacity: int) -> "Counted":
        new = Counted(self.vocabulary, self.longest)
        new.count = self.count
        return new

    def count(self) -> None:
        self.reads += 1

    def _read(self, *inputs: Any) -> Any:
        self.count()
        return super()._read(*inputs)

    def guess(self, row: int, path: list[int]) -> tuple[int, float] | None:
        self.count()
        return super().guess(row, path)


class ReadsEachLevel(Lookup):
    """A look-up that drafts a chain by a pass over each of its levels, as other drafters do."""

    def new(self, capacity: int) -> "ReadsEachLevel":
        return ReadsEachLevel(self.vocabulary, self.longest)

    def guess(self, row: int, path: list[int]) -> None:
        return None


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    "sampling", [dict(temperature=0.0), {}, dict(repetition_penalty=1.1), dict(bad_words_ids=[[3]])]
)
def test_what_is_looked_up_is_what_passes_over_each_level_say(rows: int, sampling: dict[str, Any]) -> None:
    """Texts that leave a period at times: tokens, drafts and what was accepted are equal."""
    leaving = random_table(SIZE, 2, seed=6, concentration=0.05)
    model = TableModel(
        lambda prefix: 0.9 * torch.eye(SIZE, dtype=torch.float64)[len(prefix) % 90 % SIZE] + 0.1 * leaving(prefix), SIZE
    )
    runs = list[tuple[list[list[int]], int, int]]()
    for lookup in Lookup(SIZE), ReadsEachLevel(SIZE):
        generators = [torch.Generator().manual_seed(row) for row in range(rows)]
        policy = Auto(Profile({}), sampling.get("temperature", 1.0), kind="lookup")
        settings = dict(tree=policy, max_new_tokens=60, generator=generators, eos_token_id=[])
        tokens, info = md.generate(model, lookup, [[row] for row in range(rows)], **sampling, **settings)
        runs.append(([row.tolist() for row in tokens], info.nodes, info.accepted))
    assert runs[0] == runs[1]
    assert 0 < runs[0][2] <= runs[0][1]


def test_a_text_without_repetitions_is_never_read() -> None:
    lookup = Counted(SIZE)
    md.generate(target(), lookup, [[0]], max_new_tokens=SIZE - 1, tune_budget=0)
    assert lookup.reads <= 1  # the prompt


def test_rows_whose_look_ups_lag_are_read_when_they_pay() -> None:
    """A hundred tokens are not read; then the text repeats itself, and drafts are accepted."""
    size, period = 200, 150
    model = TableModel(lambda prefix: torch.eye(size)[len(prefix) % period], size)
    rows, info = md.generate(model, Lookup(size), [[0]], max_new_tokens=2 * period, tune_budget=0)
    assert rows[0].tolist() == [(place + 1) % period for place in range(2 * period)]
    assert info.accepted > period / 2


class ReadsAll(Auto):
    """A policy that reads what it knows of before, too."""

    def min_certainty(self, rows: int, drafting_rows: int) -> float:
        return 0.0


@pytest.mark.parametrize("rows", [1, 4, 16])
def test_nothing_is_read_whose_drafts_would_not_pay_for_the_rows_beside(rows: int, monkeypatch) -> None:
    """The fewer rows draft, the more certain they must be; drafts are those of a policy that reads all first."""
    runs = list[tuple[Any, int]]()
    conditional = random_table(SIZE, 2, seed=5, concentration=0.03)
    monkeypatch.setattr(Auto, "skips_lookups", False)
    for policy in Auto(Profile({}), 1.0, kind="lookup"), ReadsAll(Profile({}), 1.0, kind="lookup"):
        lookup = Counted(SIZE)
        generators = [torch.Generator().manual_seed(row) for row in range(rows)]
        settings = dict(tree=policy, max_new_tokens=60, generator=generators, temperature=1.0, eos_token_id=[])
        tokens, info = md.generate(
            TableModel(conditional, SIZE), lookup, [[row % SIZE] for row in range(rows)], **settings
        )
        runs.append(([row.tolist() for row in tokens] + [info.nodes, info.accepted], lookup.reads))
    (drafts, reads), (drafts_of_all, reads_of_all) = runs
    assert drafts == drafts_of_all
    assert 0 < reads < reads_of_all
