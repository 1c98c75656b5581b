"""Trees that grow where it pays: exact whatever they predict, of the size that pays, and no clock is read for it."""

import itertools
import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from decoded import CERTAIN_TOKEN, constant_model, num_accepted, num_steps_with_drafts, records, start
from plans import costs, profile, rates, seen
from steps import law_error

import multidraft as md
from multidraft.autotune import plans
from multidraft.autotune.auto_policy import STEPS_PER_LOOK, STEPS_PER_PRICING, Auto, TreeLimits
from multidraft.autotune.estimates import CLASSES, Costs, TreeRates, Work
from multidraft.autotune.growing_policy import Growing
from multidraft.autotune.plans import MIN_STEPS, Profile
from multidraft.autotune.probes import Phase
from multidraft.autotune.timed_steps import LATEST_STEPS, work_of
from multidraft.decoding.policy import NO_PROMPTS, Plan, PromptReads, StepForecast, TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import TokenTree
from multidraft.decoding.walks import WALKS
from multidraft.errors import AdviceError, say_once
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Cost, Reader
from multidraft.sampling.settings import Sampling

EXACT, BIASED = 1e-12, 1e-4
RIGHT, WRONG, EVEN = (
    constant_model(lambda _: CERTAIN_TOKEN),
    constant_model(lambda _: CERTAIN_TOKEN.roll(1)),
    constant_model(lambda _: torch.ones(3) / 3),
)
unchecked = pytest.mark.usefixtures("unchecked")  # hints are checked in shorter runs


def sloped(first: float, slope: float = 2.0) -> TreeRates:
    """Acceptance that rises with confidence: chances to miss fall by a power between 1 / slope and slope."""
    return replace(rates(first), confidence=slope ** np.linspace(-1, 1, CLASSES))


def growing(
    true_rates: TreeRates, price: Costs, nodes: int = 32, depth: int = 16, rate=0.1, kind: Cost = "pass"
) -> Growing:
    policy = Growing(nodes, depth, kind)
    policy.price(true_rates, price, rate)
    return policy


def auto(known_profile: Profile | None = None, budget: float = 0.0) -> Auto:
    return Auto(profile() if known_profile is None else known_profile, 1.0, TreeLimits(4, 4), budget)


def tables() -> tuple[TableModel, TableModel]:
    target, draft = (TableModel(random_table(3, 4, seed, 0.7), 3) for seed in (1, 2))
    return target, draft


class LooksAtItself(Growing):
    """The mutant: where the first of two tokens at a node is the token 0, it drops the second."""

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        for tree in trees if depth == 1 else ():
            root_drafts = tree.tuples.get(0, [])
            if len(tree) == 3 and root_drafts and root_drafts[0] == 0:
                dropped = tree.tokens.pop()
                tree.parents.pop()
                tree.depths.pop()
                tree.levels[1].pop()
                del tree.children[0][dropped]
                tree.tuples[0][-1] = tree.places[0][-1] = -1
        return super().plan(trees, depth)


def error(name: str, walk: str, policy: TreePolicy) -> float:
    """How far the law of the first three tokens is from the target's."""
    target, draft = (TableModel(random_table(3, 3, seed, 2.0), 3) for seed in (1, 2))
    way, conditional = (DecodeConfig(md.scheme(name), walk), policy), lambda tokens: target.conditional((0, *tokens))
    return law_error(target, draft, [0], way, conditional, count=3)


def whole() -> TreePolicy:
    return Auto(profile(by_rows={1: costs(10.0, 1.5, 0.5)}, true_rates=rates(0.7)), 1.0, TreeLimits(3, 2))


def some_policy() -> TreePolicy:
    return growing(sloped(0.6), costs(10.0, 0.2, 0.3), nodes=4, depth=2)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize(
    ("name", "make_policy"), [("iid:lorenz", some_policy), ("anchored:lorenz", some_policy), ("anchored:lorenz", whole)]
)
def test_trees_that_grow_have_the_target_law(name: str, make_policy: Callable[[], TreePolicy], walk: str) -> None:
    assert error(name, walk, make_policy()) <= EXACT


@pytest.mark.parametrize("walk", WALKS)
def test_a_policy_that_looks_at_a_node_s_own_tokens_is_caught(walk: str) -> None:
    """Two drafts at the root, and none below, where the mutant looks."""
    mutant = LooksAtItself(2, 2)
    mutant.price(rates(0.6), costs(10.0, 0.0, 0.0), 0.1)
    assert error("iid:lorenz", walk, mutant) > BIASED


def test_confidence_decides_how_much_is_drafted() -> None:
    """Where the draft model is sure a long chain is drafted, elsewhere nothing: as of a look-up."""
    policy, sizes = growing(sloped(0.6, slope=8.0), costs(10.0, 0.1, 3.0)), []
    for law in ([0.98, 0.01, 0.01], [0.34, 0.33, 0.33]):
        draft = constant_model(lambda _, law=law: torch.tensor(law, dtype=torch.float64))
        sizes.append(max(len(tree) for record in records(policy, RIGHT, draft, 3) for tree in record.trees))
    assert sizes[0] >= 6
    assert sizes[1] == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_limits_hold(rows: int) -> None:
    for record in records(growing(rates(0.9), costs(10.0, 0.0, 0.0), nodes=5, depth=3), RIGHT, EVEN, 5, rows):
        assert all(len(tree) <= 6 and max(tree.depths) <= 3 for tree in record.trees)


@pytest.mark.parametrize(
    ("price", "nodes"),
    [
        (costs(10.0, 0.0, 0.1), 4),  # with acceptance 0.6, node d + 1 pays while 0.6^(d + 1) exceeds its price
        (Costs(10.0, 10.6, 0.1), 4),  # the first one more: the chain adds some 0.9 tokens less their prices
        (Costs(10.0, 11.2, 0.1), 0),
        (costs(1.0, 100.0, 0.1), 0),  # a level is not even read
    ],
)
def test_of_a_chain_a_node_is_drafted_as_long_as_it_pays(price: Costs, nodes: int) -> None:
    [record] = records(growing(rates(0.6, second=0.0), price, rate=1.0), RIGHT, RIGHT, 1)
    assert len(record.trees[0]) - 1 == nodes
    assert (record.draft_passes > 0) == (nodes > 0)


BUMPY = ((1, 0.0), (3, 6.0), (7, 7.0), (15, 0.0))  # seconds beside a line of two for each node, each worth 0.1 tokens


@pytest.mark.parametrize(
    ("acceptance", "beside_line", "nodes"),
    [
        (0.6, (), 3),  # 0.6^n exceeds the price of 0.2, for n up to 3
        (0.6, BUMPY, 1),  # the second and third node are dear, and those behind them not likely enough
        (0.95, BUMPY, 15),  # all of them: the sum pays, though nodes in the middle do not
        (0.95, (*BUMPY[:3], (15, 70.0)), 7),
    ],
)
def test_a_chain_ends_where_passes_are_cheap(
    acceptance: float, beside_line: tuple[tuple[float, float], ...], nodes: int
) -> None:
    price = Costs(10.0, 10.0, 2.0, beside_line=beside_line)
    policy = growing(rates(acceptance, second=0.0), price, rate=0.1, depth=15)
    [record] = records(policy, RIGHT, RIGHT, 1)
    assert len(record.trees[0]) - 1 == nodes


LOOKUP = Lookup(10)
COPYING = LookupThenModel([Lookup(10), TableModel(random_table(10, 1, 1), 10)])


@pytest.mark.parametrize(
    ("draft", "prompt", "level", "longest", "asks"),
    [
        (LOOKUP, [1, 2, 3, 4, 5] * 6 + [1, 2], 99.0, 9, False),  # read for nothing, it drafts a chain where it matches
        (LOOKUP, [1, 2, 3, 4, 5], 99.0, 0, False),
        (COPYING, [1, 2, 3], 0.1, 1, True),  # asks its other drafter only where that pays
        (COPYING, [1, 2, 3], 99.0, 0, False),
    ],
)
def test_copied_drafts_are_free(draft: Reader, prompt: list[int], level: float, longest: int, asks: bool) -> None:
    policy = growing(rates(0.6), costs(10.0, level, 0.1), kind=draft.cost)
    step_records = list(records(policy, TableModel(random_table(10, 1, 0, 1.0), 10), draft, 4, prompts=[prompt]))
    depths = [max(record.trees[0].depths) for record in step_records]
    asked_model = any(law.known_probs is None for record in step_records for law in record.trees[0].laws.values())
    assert depths[0] >= longest
    assert depths[0] > 0 or not longest
    assert asked_model == asks


@pytest.mark.parametrize("draft", [LOOKUP, RIGHT], ids=["look_up", "model"])
def test_nothing_is_drafted_that_its_row_has_no_room_for(draft: Reader) -> None:
    """Of tokens that are all right a row with room keeps four a step; one that ends sooner pays for none beyond."""
    depths, target = dict[int, list[int]](), RIGHT
    for room in (1, 2, 4, 99):
        policy = growing(rates(0.9), costs(10.0, 0.1, 0.1), depth=4, kind=draft.cost)
        way = DecodeConfig(md.scheme("anchored:lorenz"), measure=0), policy
        state, depths[room] = start([[0] * 20], target, draft, way, [Sampling()], 20 + room), []
        while len(depths[room]) < 3 and state.rows[0].tokens_left > 0:
            state, record = step(state, *way)
            depths[room].append(record.trees[0].depths[-1])
    assert depths == {1: [0], 2: [1], 4: [3], 99: [4, 4, 4]}


@pytest.mark.parametrize(
    "draft", [pytest.param(RIGHT, id="all_right"), pytest.param(EVEN, id="a_third", marks=pytest.mark.slow)]
)
def test_with_a_seed_a_shorter_text_is_the_beginning_of_a_longer_one(draft: Reader) -> None:
    """Where steps are timed a run does not come again anyway, and trees end with their rows."""
    ends = dict[float, set[bool]]()
    for budget in (0.0, 1e4):
        ends[budget] = set()
        for seed in range(20):
            generators = [torch.Generator().manual_seed(seed) for _ in range(2)]
            settings = dict(tree="auto", tune_budget=budget, eos_token_id=[])
            texts = [
                md.generate(EVEN, draft, [[0]], max_new_tokens=new, generator=generator, **settings)[0][0].tolist()
                for new, generator in zip((6, 40), generators, strict=True)
            ]
            ends[budget].add(texts[0] == texts[1][:6])
    assert ends == {0.0: {True}, 1e4: {True, False}}


@pytest.mark.parametrize(("depth", "first", "extra"), [(1, 0.7, 8.0), (1, 0.9, 12.0), (2, 0.7, 12.0), (4, 0.9, 1.0)])
def test_a_model_is_asked_only_where_something_is_drafted(depth: int, first: float, extra: float) -> None:
    """Prices once had paths of one level more than trees may have: it was read, and nothing drawn from it."""
    policy = Growing(32, depth)
    policy.price(rates(first, 0.01), Costs(10.0, 10.0 + extra, 0.1, 0.3, 0.0), 0.1)
    [record] = records(policy, RIGHT, RIGHT, 1)
    assert bool(record.draft_passes) == policy.model_pays == (len(record.trees[0]) > 1)


def test_a_probe_asks_rows_that_have_room() -> None:
    """The first ones of a server have been there longest; where they were at their ends a probe once asked nobody."""
    policy, asked = Auto(profile(by_rows={16: costs(10.0, 8.0, 0.3)}, true_rates=rates(0.05)), 1.0, budget=1e9), set()
    for _ in range(3500):
        trees = [TokenTree([0], max_depth=0 if row < 4 else 99) for row in range(16)]
        nodes = policy.plan(trees, 0).nodes
        asked |= {tuple(row for row in range(16) if nodes[row])} if policy.phase is Phase.PROBING else set()
    assert asked == {(4, 5, 6, 7)}


@pytest.mark.parametrize(("copying", "others", "drafts"), [(1, 0, True), (1, 3, False), (4, 0, True), (3, 1, True)])
def test_in_a_batch_rows_that_draft_pay_for_those_that_are_filled_up(copying: int, others: int, drafts: bool) -> None:
    """A node costs 0.3 tokens of a row, and is right nearly always: worth it unless three others have none."""
    prompts = [[1, 2, 3, 4, 5] * 6 + [1, 2]] * copying + [[1, 2, 3, 4, 5]] * others
    policy = growing(rates(0.6), costs(10.0, 0.0, 3.0), kind="lookup", depth=4)
    [record] = records(policy, TableModel(random_table(10, 1, 0, 1.0), 10), LOOKUP, 1, prompts=prompts)
    assert [len(tree) - 1 for tree in record.trees] == [4 * drafts] * copying + [0] * others
    assert work_of(record.trees, "lookup") == Work(0, 0, 4 * drafts)


@pytest.mark.parametrize(("rows", "node", "skips"), [(1, 3.0, False), (16, 0.05, False), (16, 3.0, True)])
def test_look_ups_that_several_rows_have_to_be_certain_of_are_asked_seldom(rows: int, node: float, skips: bool) -> None:
    """Else every row's would be read in vain in each step; where one row's can pay for all, each step asks."""
    policy, asked = Auto(profile(by_rows={rows: costs(10.0, 0.0, node)}), 1.0, kind="lookup"), list[int]()
    for step_number in range(60):
        policy.idle_steps = step_number % 30  # the 30th step has drafted, and so was looked at
        policy.next_look *= policy.idle_steps > 0
        if any(policy.plan([TokenTree([0])] * rows, 0).nodes):
            asked.append(step_number)
    often = [*range(17), 20, 24, 28]
    assert asked == ([*often, *(30 + number for number in often)] if skips else [*range(60)])
    for policy.idle_steps, is_skipped in ((1 << 20, False), ((1 << 20) + 31, skips)):
        assert policy.skips_lookups == is_skipped


@pytest.mark.parametrize(("rows", "probe", "rest"), [(1, 50.0, 32), (16, None, 3200), (16, 0.1, 160), (16, 5.0, 2000)])
def test_many_rows_rest_the_longer_the_more_a_probe_took(rows: int, probe: float | None, rest: int) -> None:
    """`probe` is in plain steps; while it is not known, it is taken for twice the square root of the rows."""
    policy, pauses = Auto(profile(by_rows={rows: costs(10.0, 8.0, 0.3)}, true_rates=rates(0.05)), 1.0), list[int]()
    if probe is not None:
        policy.probes.plain_steps[rows.bit_length()] = probe
    for step_number in itertools.count():
        policy.plan([TokenTree([0])] * rows, 0)
        if policy.phase is Phase.PROBING:
            break
        pauses.append(step_number)
    assert len(pauses) == pytest.approx(rest, abs=1)


def test_steps_beside_a_seed_which_cannot_be_timed_are_not_plain_for_that() -> None:
    trees, policy = [TokenTree([0], is_seeded=True), TokenTree([0])], auto(profile(spent=0.0), budget=1e9)
    for has_seed in (False, True):
        timed_trees = list[object]()
        for _ in range(16):
            policy.plan(trees if has_seed else trees[1:] * 2, 0)
            timed_trees.append(policy.timed_tree)
        assert any(timed_trees) != has_seed


def test_what_was_learnt_at_another_temperature_does_not_count() -> None:
    """Where drafts pay at the new one they are drafted at once, and not after some probes."""
    policy = Auto(profile(true_rates=rates(0.9), by_rows={1: costs(10.0, 2.0, 0.3)}), 1.0, TreeLimits(4, 4))
    policy.recent = seen(rates(0.01))
    list(records(policy, RIGHT, RIGHT, 1))
    assert policy.phase is Phase.RESTING
    list(records(policy, RIGHT, RIGHT, 2 * STEPS_PER_PRICING, temperature=0.0))
    assert policy.phase is Phase.DRAFTING


def test_a_step_that_catches_up_says_nothing_of_the_machine() -> None:
    policy = Auto(profile(by_rows={1: costs(10.0, 0.1, 0.1)}, true_rates=rates(0.9)), 1.0, TreeLimits(4, 4))
    record = list(records(policy, RIGHT, RIGHT, 2))[-1]
    for backlog in (0, 9):
        record.trees[0].backlog, before = backlog, policy.speed.measured_seconds
        record.trees[0].read = {} if backlog else record.trees[0].read
        policy.observe(record)
        assert (policy.speed.measured_seconds == before) == record.is_catching_up == (backlog > 0)


@unchecked
@pytest.mark.parametrize("others", [4, 32])
def test_rows_may_come_or_end_in_a_probe(others: int) -> None:
    """What the probe takes was once booked for the new number of rows, of which there had been no probe: a KeyError."""
    known_profile = profile(by_rows={rows: costs(10.0, 8.0, 0.3) for rows in (4, 16, 32)}, true_rates=rates(0.05))
    policy = Auto(known_profile, 1.0, TreeLimits(4, 4), budget=1.0)
    record = list(records(policy, RIGHT, WRONG, 1, 16))[-1]
    policy.probes.rested, policy.next_look = 10**6, 0
    for rows in 16, *[others] * 4:
        policy.plan([TokenTree([0])] * rows, 0)
        policy.observe(record)
    assert policy.phase is Phase.RESTING
    assert set(policy.probes.plain_steps) == {others.bit_length()}


def test_a_probe_whose_drafts_are_right_ends_a_rest() -> None:
    """Of many rows it was over before new prices were due, and the rest went on as though nothing had been found."""
    policy = Auto(profile(by_rows={16: costs(10.0, 4.0, 0.3)}, true_rates=rates(0.02)), 1.0, TreeLimits(4, 4))
    list(records(policy, RIGHT, WRONG, 1, 16))
    assert policy.phase is Phase.RESTING
    policy.steps, policy.probes.rested, policy.next_look = STEPS_PER_PRICING, 10**6, 0
    list(records(policy, RIGHT, RIGHT, STEPS_PER_PRICING - 1, 16))
    assert policy.phase is Phase.DRAFTING


def test_a_probe_of_many_rows_outweighs_what_was_learnt_long_ago() -> None:
    """A fourth of them draft in it: they moved nothing of what sixteen had shown."""
    policy = Auto(profile(by_rows={16: costs(10.0, 4.0, 0.3)}, true_rates=rates(0.02)), 1.0, TreeLimits(4, 4))
    list(records(policy, RIGHT, WRONG, 1, 16))
    policy.recent.add((1, CLASSES - 1), 1600.0, [16.0])
    policy.recent.roots[-1] += 1600.0
    policy.steps, policy.probes.rested, policy.next_look = STEPS_PER_PRICING, 10**6, 0
    list(records(policy, RIGHT, RIGHT, 2 * STEPS_PER_PRICING - 1, 16))
    assert policy.phase is Phase.DRAFTING


def test_a_probe_ends_though_fewer_rows_have_lost_as_many_tokens() -> None:
    """What many rows may lose before they rest again is more than few may: their probe once went on for ever."""
    known_profile = profile(by_rows={rows: costs(10.0, 8.0, 0.3) for rows in (4, 16)}, true_rates=rates(0.05))
    policy = Auto(known_profile, 1.0)
    policy.plan([TokenTree([0])] * 16, 0)
    policy.rests, policy.probes.rested, policy.next_look = True, 10**6, 0
    phases = list[Phase]()
    for step_number in range(30):
        policy.plan([TokenTree([0])] * (4 if step_number else 16), 0)
        phases.append(policy.phase)
    assert phases[0] is Phase.PROBING
    assert Phase.PROBING not in phases[2:]


@unchecked
@pytest.mark.parametrize(("budget", "seconds", "rest"), [(1e9, 1e9, 6400), (1e9, 70.0, 4800), (0.0, 1e9, 3200)])
def test_a_rest_does_not_last_for_hours_after_a_step_that_did(budget: float, seconds: float, rest: int) -> None:
    """As of a machine that slept, or compiled. Without a clock the second rest is as long as the first, or longer."""
    known_profile = profile(by_rows={16: costs(10.0, 8.0, 0.3)}, true_rates=rates(0.05))
    policy = Auto(known_profile, 1.0, TreeLimits(4, 4), budget=budget)
    record = list(records(policy, RIGHT, WRONG, 1, 16))[-1]
    record.seconds = {"measure": 0.0, "target": seconds}
    policy.probes.rested, policy.next_look = 10**6, 0
    for _ in range(3):
        policy.plan([TokenTree([0])] * 16, 0)
        policy.observe(record)
    assert policy.phase is Phase.RESTING
    assert policy.probes.rest_steps(policy.rows) == pytest.approx(rest)


def test_rows_for_which_drafts_pay_end_a_rest_at_once_though_most_of_its_steps_are_only_counted() -> None:
    known_profile = profile(by_rows={4: costs(10.0, 8.0, 0.3), 8: costs(10.0, 0.1, 0.01)}, true_rates=rates(0.5))
    policy = Auto(known_profile, 1.0, kind="mixed")
    for _ in range(STEPS_PER_LOOK + 2):
        policy.begin(4, NO_PROMPTS)
        policy.plan([TokenTree([0])] * 4, 0)
    assert policy.phase is Phase.RESTING
    assert policy.next_look > policy.steps
    policy.begin(8, NO_PROMPTS)
    assert all(policy.plan([TokenTree([0])] * 4, 0).nodes)
    assert policy.phase is Phase.DRAFTING


def test_many_rows_do_not_end_the_rest_of_few() -> None:
    """Sixteen clients came behind four that had rested: they were probed at once."""
    known_profile = profile(by_rows={n: costs(10.0, 8.0, 0.3) for n in (4, 16)}, true_rates=rates(0.05))
    policy, probed = Auto(known_profile, 1.0), list[int]()
    for step_number in range(3500):
        policy.plan([TokenTree([0])] * (4 if step_number < 200 else 16), 0)
        probed += [step_number] if policy.phase is Phase.PROBING else []
    assert probed[0] == pytest.approx(3200, abs=1)


@unchecked
def test_a_draft_that_is_never_right_is_given_up_and_probed_with_growing_pauses() -> None:
    step_records = list(records(auto(), RIGHT, WRONG, 400))
    assert num_accepted(step_records) == 0
    assert 1 <= num_steps_with_drafts(step_records[:200]) <= 70
    assert num_steps_with_drafts(step_records[200:]) <= 30


@unchecked
@pytest.mark.parametrize("rows", [1, 8])
def test_every_step_of_a_rest_is_forecast_though_few_are_looked_at(rows: int) -> None:
    policy = Auto(profile(by_rows={rows: costs(10.0, 8.0, 0.3)}, true_rates=rates(0.05)), 1.0)
    forecasts = [record.forecast for record in records(policy, RIGHT, WRONG, 31, rows)]
    assert forecasts == [StepForecast(rows, 10.0)] * 31
    assert policy.idle_steps == 31
    assert len(policy.timing.latest) == LATEST_STEPS[-1]  # each tells how fast the machine is


@unchecked
def test_the_temperature_is_followed_also_where_nothing_is_found_and_rows_come_and_go_in_each_step() -> None:
    policy = Auto(profile(by_rows={n: costs(10.0, 0.0, 0.3) for n in (1, 2)}), 1.0, kind="lookup")
    counting = TableModel(lambda prefix: torch.eye(10).double()[len(prefix) % 10], 10)  # no token comes twice
    for _ in zip(*(records(policy, counting, LOOKUP, 8, rows, temperature=0.0) for rows in (1, 2)), strict=False):
        assert not policy.asks_nobody
    assert policy.temperature == 0.0


@unchecked
def test_a_draft_that_has_become_good_is_used_again_and_deep() -> None:
    """For 100 tokens it is never right, then always."""
    late = constant_model(lambda length: CERTAIN_TOKEN.roll(1) if length < 100 else CERTAIN_TOKEN)
    step_records = list(records(auto(), RIGHT, late, 250))
    assert num_accepted(step_records) > 200
    assert max(step_records[-1].trees[0].depths) == 4


@unchecked
@pytest.mark.parametrize(("rows", "trial_rows"), [(1, 1), (2, 2), (4, 2), (16, 4), (17, 5)])
@pytest.mark.parametrize("kind", ["pass", "mixed", "lookup"])
def test_a_draft_model_that_is_only_tried_is_tried_in_a_few_rows(rows: int, trial_rows: int, kind: Cost) -> None:
    policy = Growing(8, 2, kind)
    for model_pays, is_probing in ((True, False), (True, True), (False, True), (False, False)):
        policy.model_pays, policy.is_probing = model_pays, is_probing
        nodes = policy.plan([TokenTree([5])] * rows, 0).nodes
        drafting_rows = trial_rows if kind != "lookup" and is_probing and not model_pays else rows
        expected = 0 if kind == "pass" and not (model_pays or is_probing) else drafting_rows
        assert nodes == [[0]] * expected + [[]] * (rows - expected)


@pytest.mark.parametrize("rate", [0.3, 0.9])
def test_the_first_trees_are_as_large_as_later_ones(rate: float) -> None:
    """Their price was once that of a run without drafts, which makes fewer tokens a second: too low."""
    share = torch.tensor([rate, 1 - rate, 0.0], dtype=torch.float64)
    known_profile = profile(by_rows={1: costs(10.0, 1.0, 0.5)}, true_rates=rates(rate, second=0.0))
    step_records = list(records(Auto(known_profile, 1.0), constant_model(lambda _: share), RIGHT, 40))
    sizes = [len(record.trees[0]) for record in step_records]
    assert sizes[0] == pytest.approx(sum(sizes[8:]) / 32, rel=0.4)


def run_with_a_clock(policy: Auto, monkeypatch: pytest.MonkeyPatch, seed: int) -> list[list[str]]:
    """The trees of a run while a clock shows anything."""
    chance = random.Random(seed)
    ticks = itertools.accumulate(chance.paretovariate(0.5) for _ in itertools.count())
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))
    return [[tree.name for tree in record.trees] for record in records(policy, RIGHT, RIGHT, 50)]


@unchecked
def test_with_a_plan_a_seed_repeats_a_run_whatever_the_clock_shows(monkeypatch) -> None:
    """Beside its twin, which measures, and shows that this test would notice."""
    for make_profile, budget, same in ((profile, 0.0, True), (lambda: Profile({}), 1e6, False)):
        runs = [run_with_a_clock(auto(make_profile(), budget), monkeypatch, seed) for seed in (0, 1)]
        assert (runs[0] == runs[1]) == same


@unchecked
def test_a_seed_repeats_a_run_whatever_had_to_be_made_in_it(monkeypatch) -> None:
    """As for the first pass of a size on a GPU, in the first run of a process."""
    policies = [Auto(profile(by_rows={1: costs(10.0, 2.5, 1.0)}), 1.0, kind="lookup") for _ in range(2)]
    sizes = itertools.count()
    for policy in policies:
        assert list(records(policy, TableModel(random_table(10, 1, 0, 1.0), 10), LOOKUP, 60))
        monkeypatch.setattr(TableModel, "recorded_sizes", property(lambda model: next(sizes)))
    speeds = [policy.speed for policy in policies]
    assert (speeds[0].tokens, speeds[0].seconds) == (speeds[1].tokens, speeds[1].seconds)


def test_strange_limits_are_refused() -> None:
    for text in (",nodes=0", ",width=3", " nodes=3", "matic", ",nodes=99999", ",nodes=5,nodes=6"):
        with pytest.raises(AdviceError, match="write auto, or auto,nodes=24,depth=6"):
            TreeLimits.parse(f"auto{text}")


@pytest.mark.parametrize(("gain", "drafts"), [(1.01, False), (1.05, True)])
def test_drafts_must_win_by_a_margin(gain: float, drafts: bool) -> None:
    rate, plain = 0.7, 10.0
    level = plain * (1 + rate) / gain - plain
    policy = Auto(profile(by_rows={1: costs(plain, level)}, true_rates=rates(rate, second=0.0)), 1.0, TreeLimits(1, 1))
    assert policy.begin(1).model_rests != drafts


def test_costs_of_the_rows_and_prompts_that_the_draft_model_would_have_to_read_decide() -> None:
    """A hundred tokens of a prompt for each new one: reading them takes more than drafts give."""
    policy = Auto(profile(by_rows={1: costs(), 4: costs(node=50.0)}), 1.0)
    for rows in (1, 4):
        policy.plan([TokenTree([0])] * rows, 0)
        assert policy.begin(rows).model_rests == (rows == 4)
    policy = Auto(profile(by_rows={1: costs(read=0.5)}), 1.0)
    for prompt, new_tokens in ((100, 1), (1, 100)):
        assert policy.begin(1, PromptReads(prompt / new_tokens)).model_rests == (prompt > new_tokens)


@pytest.mark.parametrize(("gain", "resumes"), [(1.12, False), (1.2, True)])
def test_a_model_that_rests_is_asked_again_for_more_than_it_goes_on_for(gain: float, resumes: bool) -> None:
    """Four rows have to catch up first: a model that drafts goes on in both cases."""
    rate, plain = 0.7, 10.0
    level = plain * (1 + rate) / gain - plain
    prices = profile(by_rows={4: costs(plain, level)}, true_rates=rates(rate, second=0.0))
    for phase, pays in ((Phase.DRAFTING, True), (Phase.RESTING, resumes)):
        policy = Auto(prices, 1.0, TreeLimits(1, 1))
        policy.phase = phase
        assert policy.begin(4).model_rests != pays


def test_a_step_that_takes_far_longer_than_expected_is_priced_at_once() -> None:
    """A first fit may hide what a node costs; eight steps with large trees lose a second where many rows decode."""
    policy, seen = Auto(profile(by_rows={1: costs()}), 1.0), list[int]()
    policy.choose = lambda rows, choose=policy.choose: (seen.append(policy.steps), choose(rows))[1]
    for _ in range(3):
        policy.plan([TokenTree([0])], 0)
    policy.is_surprised = True
    for _ in range(3):
        policy.plan([TokenTree([0])], 0)
    assert seen == [0, 3]


@pytest.mark.parametrize(("new_tokens", "rests"), [(4, True), (400, False)])
def test_a_pass_over_the_prompt_of_each_row_that_joins_is_paid_by_all(new_tokens: int, rests: bool) -> None:
    """Eight rows, one of which joins in two steps, and then in fifty: drafts gain less than another pass costs."""
    policy = Auto(profile(by_rows={8: costs(10.0, 3.0)}), 1.0)
    assert policy.begin(8, PromptReads(0.0, 1 / new_tokens)).model_rests == rests


def test_while_rows_join_nothing_is_drafted_that_does_not_pay_for_all() -> None:
    """A server's clients come one after another: the first two rows drafted, and every other prompt was read for it."""
    policy = Auto(profile(by_rows={1: costs(), 4: costs(node=50.0)}), 1.0)
    for joining, rests_before, rests in ((1, False, False), (4, True, True), *[(1, True, True)] * 6, (1, True, False)):
        assert policy.begin(joining).model_rests == rests_before  # until it is time to set prices again
        assert (policy.plan([TokenTree([0])], 0).nodes == [[]]) == rests


def test_what_few_rows_gain_does_not_shorten_the_pauses_of_many() -> None:
    """A server's clients are few between two bursts; each burst was then probed as at first."""
    policy = Auto(profile(by_rows={1: costs(), 16: costs(node=50.0)}), 1.0)
    policy.probes.pauses |= {(1).bit_length(): 128, (16).bit_length(): 512}
    policy.speed.gained = 1.0
    for rows in (16, 1, 16):
        policy.choose(rows)
    assert list(policy.probes.pauses.values()) == [64, 512]


@unchecked
def test_what_is_expected_is_what_comes() -> None:
    """Drafts that are right half of the time, by the profile and in truth: tokens a step as expected, within a tenth.

    Some 250 steps of about 2 tokens with a standard deviation below 1 have a standard error below 3 %.
    """
    half = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    step_records = list(
        records(auto(profile(true_rates=rates(0.5, second=0.0))), constant_model(lambda _: half), RIGHT, 250)
    )
    expected = sum(record.forecast.tokens for record in step_records if record.forecast)
    num_tokens = sum(len(emitted.tokens) for record in step_records for emitted in record.emitted)
    assert num_tokens == pytest.approx(expected, rel=0.1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    say_once.cache_clear()


def test_a_new_pair_begins_at_once_and_its_own_steps_are_timed(caplog) -> None:
    empty_profile = Profile({"target": "new"})
    policy = Auto(empty_profile, 1.0, budget=1e6)
    with caplog.at_level(logging.WARNING, "multidraft"):
        step_records = list(records(policy, *tables(), 40))
    policy.finish()
    first_names = [record.trees[0].name for record in step_records[: 2 * MIN_STEPS + 2]]
    assert first_names == [""] * (MIN_STEPS + 1) + ["1x6"] * (MIN_STEPS + 1)  # the first of a kind is not timed
    assert sum(len(runs) for runs in empty_profile.samples[1].values()) > 10
    assert empty_profile.acceptance[1.0].nodes > 5
    kept_profile = Profile.from_json(plans.place(empty_profile.identity).read_text())
    assert kept_profile.spent == pytest.approx(empty_profile.spent, abs=1e-3)
    assert caplog.text.count("for at most 1e+06 s in all; kept in") == 1
    assert "tune_budget=0" in caplog.text


def test_a_plan_that_cannot_be_kept_is_not_said_to_be(caplog, tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    list(records(Auto(Profile({"target": "new"}), 1.0, budget=1e6), *tables(), 12))
    assert (
        f"for at most 1e+06 s in every run, as nothing can be kept in {tmp_path}/file/multidraft/plans" in caplog.text
    )
    assert "; kept in" not in caplog.text


@pytest.mark.parametrize(
    ("spent", "budget", "rows", "steps"), [(0, 0.0, 1, 0), (0, 1e-9, 1, 6), (0, 1e6, 4, 15), (1, 1.0, 1, 0)]
)
def test_only_rows_that_come_are_timed_within_the_budget(spent, budget, rows, steps) -> None:
    known_profile = profile(spent=1.0) if spent else Profile({})
    before = known_profile.as_json()
    list(records(auto(known_profile, budget), *tables(), 20, rows=rows))
    timed = sum(len(runs) for runs in known_profile.samples.get(rows, {}).values())
    assert known_profile.as_json() == before if spent else timed == pytest.approx(steps, abs=steps // 3)
    assert {*known_profile.samples} == ({rows} if spent or steps else set())


@unchecked
def test_where_drafts_do_not_pay_it_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    with caplog.at_level(logging.WARNING, "multidraft"):
        for draft in (RIGHT, WRONG, WRONG):  # the first is good
            policy = auto()
            list(records(policy, RIGHT, draft, 210))
            policy.finish()
    assert caplog.text.count("no drafts are best here") == 1
    assert "--draft none" in caplog.text


def test_where_drafts_pay_and_texts_are_too_short_for_them_nothing_is_advised(caplog: pytest.LogCaptureFixture) -> None:
    say_once.cache_clear()
    policy = Auto(profile(by_rows={1: costs(level=0.1)}, true_rates=rates(0.9)), 1.0, budget=1e9)
    way = DecodeConfig(md.scheme("anchored:lorenz")), policy
    for _ in range(210):
        step(start([[0]], RIGHT, RIGHT, way, [Sampling()], 2), *way)
    policy.finish()
    assert (policy.phase, policy.steps_without_drafts) == (Phase.DRAFTING, 210)
    assert "no drafts are best here" not in caplog.text


def test_a_plain_step_s_seconds_are_told_once_they_are_well_known() -> None:
    """The first steps of a process may take long: they are no measure."""
    policy = auto(profile(by_rows={1: costs(0.25, 1.5, 0.5)}))
    assert policy.plain_seconds is None
    policy.choose(1)
    assert policy.plain_seconds == pytest.approx(policy.profile.costs(1).plain)
    for busy in ("has_busy_steps", "is_disturbed"):  # a ratio to steps of another time would mean nothing
        setattr(policy.profile, busy, True)
        assert policy.plain_seconds is None
        setattr(policy.profile, busy, False)
    policy.speed.measured_seconds, policy.speed.forecast_seconds = 2.0, 1.0
    assert policy.plain_seconds is None, "steps take twice as long as when plain ones were timed"
    policy.speed.measured_seconds = 1.2
    assert policy.plain_seconds == pytest.approx(policy.profile.costs(1).plain)
    timing, unknown = auto(profile(by_rows={1: costs(0.25, 1.5, 0.5)}), budget=math.inf), auto(Profile({}))
    for policy in timing, unknown:
        policy.choose(1)
        assert policy.plain_seconds is None


class FirstRows(Growing):
    """The first rows draft, whatever it costs; asked without an end, it fails."""

    def __init__(self, drafting: int):
        super().__init__(8, 4)
        self.drafting, self.asked = drafting, 0

    def counts_of_row(self, tree: TokenTree, depth: int) -> dict[int, int]:
        self.asked += 1
        assert self.asked < 1000
        return {0: 1} if tree.tokens[0] < self.drafting else {}


@pytest.mark.parametrize("rows", [15, 30, 31, 49, 64])  # (31 / 29) * 29 < 31, and so on
def test_padding_is_charged_to_the_rows_that_draft(rows: int) -> None:
    for drafting in range(1, rows + 1):
        policy = FirstRows(drafting)
        counts = policy.counts([TokenTree([row]) for row in range(rows)], 0)
        assert sum(map(bool, counts)) == drafting
        assert policy.rows_per_drafting_row == rows / drafting
