"""A pair of which nothing is known, with any number of rows: what pays is found out, and timing comes to an end.

The clock is made up: a pass takes a constant and something for each token of each row.
"""

import random
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
import torch
from decoded import CERTAIN_TOKEN, num_steps_with_drafts, records
from marks import slow_but
from multidraft_research.cli.tune import compare, measure

import multidraft as md
from multidraft.autotune import plans
from multidraft.autotune.auto_policy import STEPS_PER_PRICING, Auto, TreeLimits
from multidraft.autotune.plans import MAX_SAMPLES, MIN_STEPS, MeasuredPair, Profile
from multidraft.autotune.probes import PROBE_STEPS
from multidraft.autotune.timed_steps import (
    CHAIN_STEPS,
    CHAINS_TO_TIME,
    LATEST_STEPS,
    MAX_CHAIN_TRIES,
    MAX_SLOWNESS,
    NO_WORK,
    PLAIN_IN_A_ROW,
    TimedSteps,
    work_of,
)
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.tree import NO_DRAFTS, TokenTree, Tree
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel
from multidraft.models.reader import Cost

ROW_COUNTS = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33]
PLAIN, TOKEN = 10.0, 0.01  # seconds of a pass of the target, and of every token in it
CHEAP, DEAR = 0.1, 20.0  # seconds of a pass of the draft model
STEPS_OF_RUN, LAST = 36, 12  # of a run, and those of them by which all has been found out


@dataclass
class MadeUpClock:
    """Seconds that only passes take."""

    now: float = 0.0
    slowdown: float = 1.0  # of passes, on a busy machine

    def seconds(self) -> float:
        return self.now


class Ticking(TableModel):
    """A model that always wants the same token, or never one twice, and whose passes take time."""

    def __init__(self, clock: MadeUpClock, pass_seconds: float, size: int = 3, repeats: bool = True):
        super().__init__(lambda prefix: CERTAIN_TOKEN if repeats else torch.eye(size).double()[len(prefix)], size)
        self.clock, self.pass_seconds, self.size, self.repeats = clock, pass_seconds, size, repeats

    def _read(self, tokens, parents, scored):
        self.clock.now += self.clock.slowdown * (self.pass_seconds + TOKEN * sum(map(len, tokens)))
        return super()._read(tokens, parents, scored)

    def new(self, capacity: int) -> "Ticking":
        return type(self)(self.clock, self.pass_seconds, self.size, self.repeats)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> MadeUpClock:
    made_up_clock = MadeUpClock()
    for name in ("perf_counter", "monotonic"):
        monkeypatch.setattr(time, name, made_up_clock.seconds)
    return made_up_clock


@pytest.fixture(autouse=True)
def new_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is known of any pair."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("MULTIDRAFT_TEST_PLANS", "fresh")


def policy_of(profile: Profile, budget: float = 1e6) -> Auto:
    return Auto(profile, 1.0, TreeLimits(2, 2), budget)


@pytest.mark.usefixtures("unchecked")  # hints are checked in the tests below
@pytest.mark.parametrize("pass_seconds", [CHEAP, DEAR], ids=["pays", "does_not_pay"])
@pytest.mark.parametrize("row_count", slow_but([1, 3, 5, 16], ROW_COUNTS))
def test_any_number_of_rows_drafts_in_the_end_where_that_pays_and_only_there(
    row_count: int, pass_seconds: float, clock: MadeUpClock
) -> None:
    """It once timed powers of two alone: with three rows nothing was ever drafted, and nothing ever known."""
    profile = Profile({})
    target, draft = Ticking(clock, PLAIN), Ticking(clock, pass_seconds)
    step_records = list(records(policy_of(profile), target, draft, STEPS_OF_RUN, row_count))
    assert profile.timed_rows == [row_count]
    assert (
        num_steps_with_drafts(step_records[-LAST:]) >= LAST - PLAIN_IN_A_ROW
        if pass_seconds == CHEAP
        else num_steps_with_drafts(step_records[-LAST:]) <= PROBE_STEPS
    )
    assert num_steps_with_drafts(step_records) >= MIN_STEPS


def test_prices_are_set_as_soon_as_steps_have_been_timed(clock: MadeUpClock) -> None:
    """Until the next eighth step trees once grew as if drafts cost nothing: 32 nodes for each of sixteen rows."""
    policy = Auto(Profile({}), 1.0, TreeLimits(), 1e6)
    policy.steps = STEPS_PER_PRICING // 2  # so that timing ends between two eighth steps
    step_records = list(records(policy, Ticking(clock, PLAIN), Ticking(clock, DEAR), STEPS_OF_RUN, 16))
    assert max(len(tree) for record in step_records for tree in record.trees) <= len(policy.timing.first_tree.shape)
    assert num_steps_with_drafts(step_records) == 1 + MIN_STEPS  # the first follows one without, and does not count


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("pass_seconds", [CHEAP, DEAR], ids=["pays", "does_not_pay"])
def test_in_a_batch_whose_number_of_rows_keeps_changing_timing_comes_to_an_end(
    pass_seconds: float, clock: MadeUpClock
) -> None:
    """As in a server. The budget holds for all numbers of rows that have the same nearest power of two.

    Where drafts do not pay, steps without, of which enough are kept, do not use it up.
    """
    profile, budget, chance, most = Profile({}), 25 * PLAIN, random.Random(0), 4
    target, draft, policy = Ticking(clock, PLAIN), Ticking(clock, pass_seconds), policy_of(profile, budget)
    batches = {rows: records(policy, target, draft, 999, rows) for rows in range(1, most + 1)}
    step_records = [next(batches[chance.randint(1, most)]) for _ in range(150)]
    spent = dict(profile.spent)
    step_records += [next(batches[chance.randint(1, most)]) for _ in range(30)]
    assert profile.timed_rows
    assert profile.spent == spent
    for rows in range(1, most + 1):
        assert budget * (pass_seconds == CHEAP) <= profile.spent_near(rows) <= budget + 2 * (PLAIN + DEAR)
    assert (
        num_steps_with_drafts(step_records[-30:]) == 30
        if pass_seconds == CHEAP
        else num_steps_with_drafts(step_records[-30:]) <= 3 * PROBE_STEPS
    )


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("pattern", [(1, 2), (1, 2, 1, 3)], ids=str)
def test_a_pair_is_timed_however_others_come_and_go(pattern: tuple[int, ...], clock: MadeUpClock) -> None:
    """Where a row is alone in the first steps, it once drafted in every other step, which did not count, for ever."""
    for alone in range(1, 8, 2):
        profile, target, draft = Profile({}), Ticking(clock, PLAIN), Ticking(clock, CHEAP)
        policy = policy_of(profile, 1e6)
        batches = {rows: records(policy, target, draft, 999, rows) for rows in (1, 2, 3)}
        step_records = [next(batches[rows]) for rows in ([1] * alone + [*pattern] * 20)]
        assert profile.timed_rows
        assert num_steps_with_drafts(step_records[-LAST:]) >= LAST - 2 * PLAIN_IN_A_ROW


def test_passes_of_sixteen_tokens_are_timed_and_those_between(clock: MadeUpClock) -> None:
    """With look-ups of a row alone, which are seldom of all these lengths by themselves; then never again."""
    counts = dict[int, list[int]]()
    for rows in (1, 2):
        profile = Profile({})
        policy = Auto(profile, 1.0, TreeLimits(), 1e6, "lookup")
        step_records = records(policy, Ticking(clock, PLAIN), Lookup(3), 100, rows)
        lengths = [len(record.trees[0]) - 1 for record in step_records]
        counts[rows] = [profile.chain_count(rows, length) for length in CHAINS_TO_TIME]
        assert lengths.count(1) + lengths.count(3) <= 2 * len(CHAIN_STEPS)
    assert min(counts[1]) >= MIN_STEPS > min(counts[2])


def test_a_new_pair_drafts_nothing_where_no_look_up_is_right(clock: MadeUpClock) -> None:
    """Not even to time it: what it costs is not known, and there is nothing to gain."""
    profile, size = Profile({}), 300
    policy = Auto(profile, 1.0, TreeLimits(), 1e6, "lookup")
    step_records = list(records(policy, Ticking(clock, PLAIN, size, repeats=False), Lookup(size), 100))
    assert num_steps_with_drafts(step_records) == 0
    assert (profile.timed_rows, profile.step_count(1, drafted=False)) == ([], MAX_SAMPLES)
    assert profile.spent[1] == pytest.approx(MAX_SAMPLES * (PLAIN + TOKEN))


@pytest.mark.parametrize(("right", "longest"), [(0, 1), (1, 3), (2, 3), (3, 7), (7, 15), (15, 31)])
def test_a_longer_chain_is_timed_once_a_shorter_one_was_right(right: int, longest: int) -> None:
    timing, lengths = TimedSteps(Profile({}), "lookup", 1e6, TreeLimits()), list[int]()
    timing.longest_right = right
    while chain := timing.chain_for(1):
        lengths.append(chain.shape.depth)
        timing.steps_with_tree[timing.profile.restarts, 1, chain] = MAX_CHAIN_TRIES
    assert lengths == [length for length in CHAINS_TO_TIME if length <= longest]


@pytest.mark.parametrize(("kind", "counts"), [("lookup", True), ("pass", False)])
def test_look_ups_of_many_rows_count_alone_too(kind: Cost, counts: bool) -> None:
    """Else tries would come to an end before any was timed, and nothing be looked up any more."""
    timing = TimedSteps(Profile({}), kind, 1e6, TreeLimits())
    timing.has_drafted = False
    assert timing.counts(2, drafted=True, is_new_pair=False) is counts
    assert timing.counts(2, drafted=False, is_new_pair=False)


@pytest.mark.parametrize("limits", [TreeLimits(2, 31), TreeLimits(32, 2)])
def test_no_chain_is_timed_that_is_longer_than_trees_may_be(limits: TreeLimits, clock: MadeUpClock) -> None:
    policy = Auto(Profile({}), 1.0, limits, 1e6, "lookup")
    step_records = records(policy, Ticking(clock, PLAIN), Lookup(3), 60)
    assert max(len(record.trees[0]) - 1 for record in step_records) <= 2


def test_joining_rows_that_the_target_does_not_read_use_up_no_try(clock: MadeUpClock) -> None:
    """A server draws the first token of a new row from what its prompt has brought, in a step that nothing times."""
    profile = Profile({})
    policy = policy_of(profile)
    target, draft = Ticking(clock, PLAIN), Ticking(clock, CHEAP)
    running = records(policy, target, draft, STEPS_OF_RUN)
    for _ in range(MIN_STEPS):
        next(running)
    for _ in range(5 * MIN_STEPS):
        policy.plan([TokenTree([0])], 0)
    assert num_steps_with_drafts(list(running)) > MIN_STEPS
    assert profile.timed_rows == [1]


class ShortTicking(Ticking):
    """One that reads no long texts."""

    context = 500


def test_texts_that_the_draft_model_cannot_read_use_up_no_try(clock: MadeUpClock) -> None:
    """Behind a first one that was too long nothing was ever drafted again."""
    profile = Profile({})
    policy, target, draft = policy_of(profile), Ticking(clock, PLAIN), ShortTicking(clock, CHEAP)
    assert not num_steps_with_drafts(list(records(policy, target, draft, STEPS_OF_RUN, prompts=[[0] * 600])))
    assert num_steps_with_drafts(list(records(policy, target, draft, STEPS_OF_RUN))) > MIN_STEPS
    assert profile.timed_rows == [1]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("pass_seconds", [CHEAP, DEAR], ids=["pays", "does_not_pay"])
@pytest.mark.parametrize("flips", [1, 4, 9])
def test_a_server_that_was_busy_finds_out_what_pays_when_it_is_quiet(
    flips: int, pass_seconds: float, clock: MadeUpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often the load changed, what is kept in the end is of the quiet machine alone, and is complete."""
    profile, budget = Profile({}), 25 * PLAIN
    target, draft = Ticking(clock, PLAIN), Ticking(clock, pass_seconds)
    running = records(policy_of(profile, budget), target, draft, 999)
    for flip in range(flips):
        is_busy = flip % 2 == 0
        monkeypatch.setattr(psutil, "getloadavg", lambda load=1e3 * is_busy: (load, load, load))
        clock.slowdown = 7.0 if is_busy else 1.0
        for _ in range(3 * MIN_STEPS if is_busy else MIN_STEPS):
            next(running)
    monkeypatch.setattr(psutil, "getloadavg", lambda: (0.0, 0.0, 0.0))
    clock.slowdown = 1.0
    quiet_records = [next(running) for _ in range(3 * STEPS_OF_RUN)]
    assert not profile.has_busy_steps
    assert profile.timed_rows == [1]
    assert profile.costs(1).seconds(NO_WORK) == pytest.approx(PLAIN, rel=0.1)
    assert budget * (pass_seconds == CHEAP) <= profile.spent_near(1) <= budget + 2 * (PLAIN + DEAR)
    drafted = num_steps_with_drafts(quiet_records[-LAST:])
    assert drafted >= LAST - PLAIN_IN_A_ROW if pass_seconds == CHEAP else drafted <= PROBE_STEPS


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("before", "after"), [(1, 16), (16, 1)])
def test_prices_of_a_busy_machine_end_with_what_was_timed_there(
    before: int, after: int, clock: MadeUpClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first step behind the new timings took its phase from the old ones, and its speed for a hundred steps."""
    policy, rates = policy_of(Profile({})), list[float]()
    target, draft = Ticking(clock, PLAIN), Ticking(clock, DEAR)
    for rows, load, steps in ((before, 1e3, 24), (after, 0.0, 34)):
        monkeypatch.setattr(psutil, "getloadavg", lambda load=load: (load, load, load))
        clock.slowdown = 9.0 if load else 1.0
        for _ in records(policy, target, draft, steps, rows):
            if not load and policy.costs:
                rates.append(policy.speed.tokens / policy.speed.seconds / policy.rows)
                assert policy.costs.plain == pytest.approx(PLAIN, rel=0.1)
    assert rates == pytest.approx([1 / PLAIN] * len(rates), rel=0.2)
    assert len(rates) > LAST


@pytest.mark.usefixtures("unchecked")
def test_steps_of_a_machine_that_has_become_slower_are_compared_with_its_own(clock: MadeUpClock) -> None:
    """Look-ups were timed days after steps without drafts: a draft seemed to cost nothing, or two steps."""
    profile, target, draft = Profile({}), Ticking(clock, PLAIN), Lookup(3)
    timing = TimedSteps(profile, "lookup", 1e6, TreeLimits())
    plain, drafted, slowness, spent = NO_DRAFTS, Tree.levels([1]), list[float](), 0.0
    for clock.slowdown, tree, steps in ((1.0, plain, 18), (1.5, plain, 18), (1.5, drafted, 5), (1.0, drafted, 18)):
        for record in records(StaticTree(tree), target, draft, steps):
            timing.observe(record, work := work_of(record.trees, "lookup"), None, False)
            spent += record.decoding_seconds * (tree is drafted)
        slowness.append(timing.slowness(1, work))
        assert tree is plain or profile.costs(1).drafted_seconds(1) == pytest.approx(TOKEN)
    assert profile.costs(1).plain == pytest.approx(PLAIN + TOKEN)
    timing.latest.extend([0.0] * LATEST_STEPS[0])  # by a clock that is wrong
    timing.latest_rows = 1
    assert timing.slowness(1, work_of(record.trees, "lookup")) == 1 / MAX_SLOWNESS
    assert slowness == pytest.approx([1.0, 1.0, 1.5, 1.0])  # after many drafts the last plain steps tell nothing
    assert profile.spent[1] == pytest.approx(spent + MAX_SAMPLES * (PLAIN + TOKEN))  # as the clock had them


def test_a_step_without_drafts_right_behind_one_with_does_not_tell_how_fast_the_machine_is() -> None:
    timing = TimedSteps(Profile({}), "lookup", 1e6, TreeLimits())
    for _ in range(9):
        timing.has_drafted = True
        timing.note_plain(1, 2 * PLAIN)
        timing.note_plain(1, PLAIN)
    assert [*timing.latest] == [PLAIN] * 9


class Sending(Ticking):
    """A target whose pass after one over a tree takes twice as long: what a server sends of it takes time, too."""

    last_tokens = 0

    def _read(self, tokens, parents, scored):
        self.clock.now += PLAIN * (self.last_tokens > 1)
        self.last_tokens = sum(map(len, tokens))
        return super()._read(tokens, parents, scored)

    def new(self, capacity: int) -> "Sending":
        return Sending(self.clock, self.pass_seconds)


@pytest.mark.usefixtures("unchecked")
def test_a_plain_step_is_timed_only_after_another(clock: MadeUpClock) -> None:
    """With drafts in every other step it would seem to take as long as one with drafts."""
    profile = Profile({})
    list(records(policy_of(profile), Sending(clock, PLAIN), Ticking(clock, CHEAP), 4 * STEPS_OF_RUN))
    assert profile.step_count(1, drafted=False) > 2 * MIN_STEPS
    plain_steps = [run.target for kind, runs in profile.samples[1].items() if kind.endswith("/0") for run in runs]
    assert max(plain_steps) < 1.01 * PLAIN


@pytest.mark.usefixtures("unchecked")
def test_three_rows_of_a_new_pair_on_a_new_machine(clock: MadeUpClock) -> None:
    """By the public way in, with nothing kept of any pair."""
    target, draft = Ticking(clock, PLAIN), Ticking(clock, CHEAP)
    _, info = md.generate(target, draft, [[0]] * 3, max_new_tokens=40, eos_token_id=[], measure=0)
    assert info.block_efficiency > 1.5


@pytest.mark.usefixtures("unchecked")
def test_three_rows_can_be_tuned(clock: MadeUpClock) -> None:
    """It ended in "nothing has been measured", whatever the budget."""
    pair = Ticking(clock, PLAIN), Ticking(clock, CHEAP)
    subject = MeasuredPair(*pair, md.scheme("anchored:lorenz"), prompts=[[0], [1]])
    profile, budget = plans.fresh(subject.identity), 15 * PLAIN
    measure(subject, profile, [1.0], [3], budget)
    lines = compare(subject, profile, [1.0], 2, budget)
    assert profile.timed_rows == [3]
    assert max(lines, key=lambda line: line.speed).tree != "none"
