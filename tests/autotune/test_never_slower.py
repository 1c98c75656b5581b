"""On made-up costs `auto` is not slower than no drafts: it rests soon where they do not pay, and comes back."""

from collections.abc import Callable

import pytest
import torch
from decoded import CERTAIN_TOKEN, constant_model, num_accepted, num_steps_with_drafts, records
from marks import slow_but
from plans import costs, profile, rates

from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.estimates import AcceptanceTracker, Costs
from multidraft.autotune.probes import PROBE_STEPS, TRANSITIONS, Event, Phase
from multidraft.autotune.timed_steps import work_of
from multidraft.decoding.record import StepRecord
from multidraft.models.ensemble import LookupThenModel, spread
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader

pytestmark = pytest.mark.usefixtures("unchecked")  # hints are checked in shorter runs
ROWS, SOON, SIZE = [1, 4, 16, 32], 32, 3
PRICE, DEAR = costs(10.0, 6.0, 0.5), costs(10.0, 6.0, 50.0)  # where drafts pay if they are right, and where none can
CHEAP = costs(10.0, 2.0, 0.5)  # where they pay if seven of ten are
WRONG = constant_model(lambda _: CERTAIN_TOKEN.roll(1))
RIGHT = constant_model(lambda _: CERTAIN_TOKEN)


def auto(rows: int, price: Costs, draft: Reader, kind: type[Auto] = Auto) -> Auto:
    """A policy that knows these costs, and expects seven of ten drafts to be right."""
    return kind(profile(by_rows={rows: price}, true_rates=rates(0.7)), 1.0, kind=draft.cost)


def speed(step_records: list[StepRecord], price: Costs, draft: Reader) -> float:
    """Tokens a second of these steps at their costs, as a share of those of plain steps."""
    tokens = sum(len(emitted.tokens) for record in step_records for emitted in record.emitted)
    seconds = sum(price.seconds(work_of(record.trees, draft.cost)) for record in step_records)
    return tokens / seconds * price.plain / len(step_records[0].trees)


def mixture(other: TableModel) -> LookupThenModel:
    return LookupThenModel([Lookup(SIZE), other])


def erratic() -> TableModel:
    """A target whose texts never repeat themselves for long."""
    return TableModel(random_table(SIZE, 6, 0, 3.0), SIZE)


def test_a_model_that_is_always_right_but_too_dear_is_not_even_probed() -> None:
    """The twin, whose costs leave open whether it pays, is asked again and again."""
    asked = dict[float, int]()
    for level in (1.0, 50.0):
        policy = auto(1, costs(10.0, level, 0.5), WRONG)
        asked[level] = num_steps_with_drafts(list(records(policy, RIGHT, WRONG, SOON + 60, 1))[SOON:])
    assert asked[50.0] == 0 < asked[1.0]


WORLDS: dict[str, tuple[TableModel, Callable[[], Reader]]] = {
    "a model that is never right": (RIGHT, lambda: WRONG),
    "a mixture with one": (erratic(), lambda: mixture(WRONG)),
    "look-ups that are seldom right": (erratic(), lambda: Lookup(SIZE)),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("rows", slow_but([1, 16], ROWS))
def test_it_rests_soon_where_drafts_do_not_pay(rows: int, world: str) -> None:
    target, make_draft = WORLDS[world]
    draft = make_draft()
    step_records = list(records(auto(rows, PRICE, draft), target, draft, SOON + 40, rows))
    asked = [
        any(law.known_probs is None for tree in record.trees for law in tree.laws.values()) for record in step_records
    ]
    assert draft.cost == "lookup" or sum(asked[SOON:]) <= 4 * PROBE_STEPS
    assert speed(step_records[SOON:], PRICE, draft) > 0.94


class Restless(Auto):
    """Wrong: the draft model drafts whatever is found."""

    def enter(self, phase: Phase, event: Event) -> None:
        super().enter(Phase.PROBING, event)


@pytest.mark.parametrize("rows", slow_but([1, 16], ROWS))
def test_without_resting_it_would_be_slower(rows: int) -> None:
    step_records = list(records(auto(rows, PRICE, WRONG, Restless), RIGHT, WRONG, SOON + 40, rows))
    assert speed(step_records[SOON:], PRICE, WRONG) < 0.75


class LearnsNothing(AcceptanceTracker):
    """Estimates that go on to promise that drafts pay."""

    def observe(self, *arguments: object, **settings: object) -> None:
        pass


class Unguarded(Auto):
    """Wrong: what was lost does not count."""

    def event(self) -> Event:
        self.speed.gained = max(self.speed.gained, 0.0)
        return super().event()


@pytest.mark.parametrize("guarded", [True, False])
@pytest.mark.parametrize("rows", slow_but([1, 4], ROWS))
def test_what_it_has_made_counts_even_if_it_expects_more(rows: int, guarded: bool) -> None:
    """The unguarded twin believes in estimates that learn nothing."""
    policy = auto(rows, CHEAP, WRONG, Auto if guarded else Unguarded)
    policy.recent = LearnsNothing()
    step_records = list(records(policy, RIGHT, WRONG, SOON + 60, rows))
    drafted = num_steps_with_drafts(step_records[SOON:])
    assert drafted <= 30 if guarded else drafted == 60


@pytest.mark.parametrize("kind", slow_but(["pass"], ["pass", "mixed"]))
@pytest.mark.parametrize("rows", slow_but([1, 4], [1, 4, 16]))
def test_it_drafts_again_when_that_pays_again(rows: int, kind: str) -> None:
    """For 40 tokens drafts are never right, then always: a probe goes on while they are. Many rows rest for longer."""
    late = constant_model(lambda length: CERTAIN_TOKEN.roll(1) if length < 40 else CERTAIN_TOKEN)
    draft = late if kind == "pass" else mixture(late)
    policy = auto(rows, CHEAP, draft)
    policy.probes.plain_steps[rows.bit_length()] = 0.25  # a probe takes little
    step_records = list(records(policy, RIGHT, draft, 160 if rows < 16 else 400, rows))
    assert num_accepted(step_records[-20:]) > 20 * rows


class Counted(Lookup):
    """A look-up that counts how often it is asked."""

    asked = 0

    def new(self, capacity: int) -> "Counted":
        return self

    def certainty(self, row: int, unread: list[int]) -> float | None:
        self.asked += 1
        return super().certainty(row, unread)


@pytest.mark.parametrize("price", [PRICE, DEAR], ids=["may pay", "cannot pay"])
@pytest.mark.parametrize("rows", slow_but([1, 4], ROWS))
def test_where_nothing_can_pay_nobody_is_asked(rows: int, price: Costs) -> None:
    """Not even a look-up that is certain: all have the same token again and again."""
    draft = Counted(SIZE)
    step_records = list(records(auto(rows, price, draft), RIGHT, draft, 12, rows))
    assert (draft.asked > 0) == (num_steps_with_drafts(step_records) > 0) == (price is PRICE)


class Noted(TableModel):
    """A model that notes the numbers of tokens that it reads."""

    def __init__(self, seen: list[int]):
        super().__init__(random_table(SIZE, 2, 1), SIZE)
        self.seen = seen

    def new(self, capacity: int) -> "Noted":
        return Noted(self.seen)

    def _read(self, tokens, parents, scored):
        self.seen.append(sum(map(len, tokens)))
        return super()._read(tokens, parents, scored)


def read(model: Reader, tokens: list[int]) -> Reader:
    """The model with these tokens kept."""
    model.forward([tokens], [list(range(-1, len(tokens) - 1))], "none")
    model.commit([list(range(len(tokens)))])
    return model


PROMPT = torch.randint(SIZE, (90,), generator=torch.Generator().manual_seed(0)).tolist()  # which repeats little


def test_a_mixture_s_model_reads_no_prompt_while_it_rests() -> None:
    seen = list[int]()
    draft, price = mixture(Noted(seen)), costs(10.0, 20.0, 0.5)  # a pass of the model never pays
    list(records(auto(1, price, draft), erratic(), draft, SOON, prompts=[PROMPT]))
    assert sum(seen) == 0
    list(records(auto(1, PRICE, draft), erratic(), draft, 1, prompts=[PROMPT]))
    assert sum(seen) >= len(PROMPT), "it is asked where it pays, and catches up"


def test_what_a_mixture_s_model_has_not_read_it_does_not_read_for_a_row_that_is_kept() -> None:
    """But when it is asked in a fork, and says there what it says without one."""
    seen = list[int]()
    fork = read(mixture(Noted(seen)).new(99), PROMPT).fork(0, 50, 99)
    assert sum(seen) == 0
    asked = fork.forward([PROMPT[50:60]], [list(range(-1, 9))])
    assert 50 < sum(seen) <= 60
    whole = read(mixture(Noted([])).new(99), PROMPT[:50]).forward([PROMPT[50:60]], [list(range(-1, 9))])
    assert torch.allclose(spread(asked, SIZE)[0], spread(whole, SIZE)[0])


def test_every_event_is_followed_to_a_phase_that_can_be_left() -> None:
    """No phase is a trap, and no event leads from timing back to itself."""
    assert {phase for phase, _ in TRANSITIONS} == {*Phase}
    assert {event for _, event in TRANSITIONS} == {*Event}
