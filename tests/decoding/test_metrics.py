"""What a run reports, counted by hand, against exact expectations, and in vLLM's names."""

import json
import math
import time

import pytest
import torch
from torch import Tensor

import multidraft as md
from multidraft.auditing.enumeration import Branch, Forest, all_branches, first_state
from multidraft.decoding.batch import Batch
from multidraft.decoding.metrics import Info, coupling_rate
from multidraft.decoding.policy import Plan, StaticTree
from multidraft.decoding.record import Emitted, StepRecord
from multidraft.decoding.request import Request
from multidraft.decoding.state import MEASURED_AT_FIRST, MEASURED_EVERY_STEPS, DecodeConfig
from multidraft.decoding.targets import NodeTarget, Targets
from multidraft.decoding.tree import NodeLaw, TokenTree, Tree
from multidraft.decoding.walks import deferred
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.settings import Sampling
from multidraft.verification.registry import SCHEMES

SIZE = 5


def successor(step: int) -> Tensor:
    """One-hot tables by the last token."""
    return torch.eye(SIZE, dtype=torch.float64).roll(step, 1)


def second_guess(prefix: tuple[int, ...]) -> Tensor:
    """A draft model whose second guess is always right."""
    token = torch.tensor(prefix[-1])
    return 0.6 * successor(2)[token] + 0.3 * successor(1)[token] + 0.1 * successor(3)[token]


def counted(tree: str, draft=second_guess, scheme: str = "top:naive", **settings) -> Info:
    """A run of twelve tokens of a target that counts upwards."""
    target = TableModel(lambda prefix: successor(1)[prefix[-1]], SIZE)
    settings = dict(scheme=scheme, tree=tree, max_new_tokens=12, eos_token_id=[], measure=1) | settings
    tokens, info = md.generate(target, draft and TableModel(draft, SIZE), [[0]], **settings)
    assert tokens[0].tolist() == [token % SIZE for token in range(1, 13)]
    return info


def test_second_drafts_are_counted_by_hand():
    """Two of three levels draw a second token: each step accepts two, corrects one, and offers 3 + 6 + 6 nodes."""
    info = counted("3x2x1", temperature=0)
    assert (info.target_passes, info.row_passes, info.draft_steps) == (4, 4, 4)
    assert (info.lengths, info.ranks) == ([0, 0, 4, 0], [0, 8, 0])
    assert (info.accepted, info.recovered, info.bonus) == (8, 4, 0)
    assert info.rank_rates == [0, 2 / 3, 0]
    assert info.as_vllm() == {
        "mean_acceptance_length": 3,
        "draft_acceptance_rate": 8 / 60,
        "acceptance_histogram": [0, 0, 4, 0],
        "num_drafts": 4,
        "num_draft_tokens": 60,
        "num_accepted_tokens": 8,
        "num_accepted_tokens_per_pos": [4, 4, 0],
        "per_position_acceptance_rate": [1, 1, 0],
    }


@pytest.mark.parametrize(
    ("tree", "scheme", "nodes", "lengths", "ranks"),
    [("1x1x1", "top:naive", 9, [0, 0, 0, 3], [9]), ("3x2", "iid:lorenz", 8, [0, 0, 4], [8, 0, 0])],
)
def test_a_perfect_draft_is_accepted_whole_and_equal_draws_are_one_node(tree, scheme, nodes, lengths, ranks):
    """Independent draws of a certain token coincide: a 3x2 tree is a chain, and its first drafts are accepted."""
    info = counted(tree, draft=lambda prefix: successor(1)[prefix[-1]], scheme=scheme)
    assert (info.nodes, info.lengths, info.ranks, info.bonus) == (nodes, lengths, ranks, lengths[-1])
    assert info.draft_acceptance_rate == info.optimal_acceptance_rate == 1


def test_passes_without_drafts_do_not_count_as_drafts():
    plain = counted("1", draft=None)
    assert (plain.draft_steps, plain.lengths, plain.ranks, plain.mean_acceptance_length) == (0, [], [], 1)
    assert plain.as_vllm()["draft_acceptance_rate"] is plain.as_dict()["draft_acceptance_rate"] is None
    scheme = md.scheme("anchored:lorenz", draft_probability=0.5)
    generator = torch.Generator().manual_seed(1)
    info = counted("1x1", draft=lambda prefix: successor(1)[prefix[-1]], scheme=scheme, generator=generator)
    assert 0 < info.draft_steps < info.row_passes
    assert sum(info.lengths) == info.draft_steps
    assert info.mean_acceptance_length == 1 + info.accepted / info.draft_steps > info.block_efficiency


def test_without_measuring_all_but_the_optimum_is_the_same():
    """The generator's state shows that measuring draws nothing."""
    runs = {}
    for measure in (1, False):
        generator = torch.Generator().manual_seed(0)
        models = (TableModel(random_table(SIZE, 3, seed), SIZE) for seed in (1, 2))
        _, info = md.generate(*models, [[0]], tree="2x2", max_new_tokens=16, measure=measure, generator=generator)
        runs[measure] = info.as_dict()
    optimum = runs[1].pop("optimal_acceptance_rate")
    assert 0 < optimum <= 1
    for name in ("acceptance_error", "gap_error"):
        assert 0 < runs[1].pop(name) < 0.5
        assert runs[False].pop(name) is None
    assert runs[False].pop("optimal_acceptance_rate") is None
    assert (runs[1].pop("measured_steps"), runs[False].pop("measured_steps")) == (runs[1]["target_passes"], 0)
    for report in runs.values():
        del report["seconds"], report["tokens_per_second"]
    assert runs[1] == runs[False]
    assert runs[1]["acceptance_rate"] > 0


def test_sums_of_reports():
    """Different trees: the shorter lists are filled up."""
    total = counted("3x2x1", temperature=0) + counted("1", draft=lambda prefix: successor(1)[prefix[-1]])
    assert (total.lengths, total.ranks) == ([0, 6, 4, 0], [6, 8, 0])
    assert total.accepted_at_depth == [10, 4, 0]
    assert total.row_passes == total.measured == 10
    assert math.isnan(Info().optimal_acceptance_rate)
    assert json.loads(json.dumps(total.as_dict())) == total.as_dict()
    shown = dict(line.split(maxsplit=1) for line in str(total).splitlines() if len(line.split(maxsplit=1)) == 2)
    assert shown.keys() <= total.as_dict().keys()
    assert shown["tokens"] == str(total.tokens)
    assert float(shown["block_efficiency"]) == pytest.approx(total.block_efficiency, abs=1e-4)


def expectation(forest: Forest, depth: int, branches: list[Branch]) -> list[list[float]]:
    """Exact probabilities that depth d is accepted, and expected accepted tokens by their place in the tuple."""
    depths, ranks = [0.0] * depth, [0.0] * 4
    for branch in branches:
        tree = forest.targets.trees[branch.tree]
        for level, node in enumerate(branch.walk_result.path):
            depths[level] += branch.probability
            ranks[tree.tuples[tree.parents[node]].index(tree.tokens[node])] += branch.probability
    return [depths, ranks]


def counts(forest: Forest, depth: int, branches: list[Branch]) -> list[list[float]]:
    """The same from the reports of every branch."""
    sums = [[0.0] * depth, [0.0] * 4]
    for branch in branches:
        info = Info()
        info.add(record_of(forest.targets, branch))
        for sums_of_row, numbers in zip(sums, (info.accepted_at_depth, info.ranks), strict=True):
            for index, number in enumerate(numbers):
                sums_of_row[index] += number * branch.probability
    return sums


def record_of(targets: Targets, branch: Branch) -> StepRecord:
    """A step that went like this."""
    targets_of_row = Targets([targets.rows[branch.tree]], [targets.trees[branch.tree]], None)
    kinds = ["accepted"] * len(branch.walk_result.path) + [
        "bonus" if branch.walk_result.residual is None else "recovered"
    ]
    emitted = Emitted(list(branch.emitted), kinds)
    return StepRecord(targets_of_row, [[]], [branch.walk_result], [emitted], [0.0], [True], 1, {})


CASES = [("iid:lorenz", "2x1"), ("iid:lorenz", "2x2"), ("without_replacement:recursive_rejection", "2x2")]


@pytest.mark.parametrize("walk", ["deferred", "commit"])
@pytest.mark.parametrize(("name", "tree"), CASES)
def test_rates_have_the_exact_expectation(name, tree, walk):
    """Over all that one step can draw and decide; counting ranks slot by slot is the biased twin."""
    target, draft = (TableModel(random_table(2, 3, seed), 2) for seed in (1, 2))
    way, depth = (DecodeConfig(md.scheme(name), walk), StaticTree(Tree.parse(tree))), Tree.parse(tree).depth
    forest, branches = all_branches(first_state(target, draft, [0], *way), *way)
    expected, counted_rates = expectation(forest, depth, branches), counts(forest, depth, branches)
    assert counted_rates[0] == pytest.approx(expected[0], abs=1e-12)
    assert counted_rates[1] == pytest.approx(expected[1], abs=1e-12)
    assert sum(expected[1]) == pytest.approx(sum(expected[0]), abs=1e-12)
    if name.startswith("iid"):
        for drafted in forest.targets.trees:
            drafted.ranks = [(node - 1) % 2 if tree == "2x2" else 0 for node in range(len(drafted))]
        assert counts(forest, depth, branches)[1] != pytest.approx(expected[1], abs=1e-3)


def test_the_optimum_knows_of_drafting_sometimes() -> None:
    """A draft that is the target is accepted whenever it is drawn, and no rule can do better."""
    table = TableModel(random_table(4, 1, 0), 4)
    scheme = md.scheme("iid:lorenz", drafts=1, draft_probability=0.5)
    _, info = md.generate(table, table, [[0]], scheme=scheme, tree="1", max_new_tokens=5, measure=1)
    assert info.optimal_acceptance_rate == pytest.approx(0.5)


@pytest.mark.parametrize("name", ["iid:lorenz", "iid:k_sequential", "iid:naive", "anchored:lorenz"])
def test_the_acceptance_rate_is_not_above_its_optimum(name: str) -> None:
    """Never where there is a formula, and within four printed errors where there is none (one run in 10,000)."""
    above, tokens = [], 12 if name == "anchored:lorenz" else 3  # an error needs some steps to be estimated from
    for seed in range(10, 30):
        models = (TableModel(random_table(SIZE, 3, seed + model), SIZE) for model in (100, 200))
        settings = dict(scheme=name, tree="3", max_new_tokens=tokens, generator=torch.Generator().manual_seed(seed))
        settings["measure"] = 1
        _, info = md.generate(*models, [[0]], **settings)
        assert info.acceptance_rate <= info.optimal_acceptance_rate + 4 * info.gap_error + 1e-12
        assert (info.gap_error == 0) == (name != "anchored:lorenz")
        above.append(info.acceptance / info.row_passes > info.optimal_acceptance_rate)
    assert any(above) or name == "iid:naive", "what was drawn is above the optimum now and then"


@pytest.mark.parametrize("name", sorted(name for name, entry in SCHEMES.items() if entry.coupling))
def test_the_rate_of_a_single_draft_is_the_formula_of_every_coupling_scheme_and_its_optimum(name: str) -> None:
    """Beside a draft's law that has some tokens only; a rate that leaves out the minimum is another one."""
    scheme, chance = md.scheme(name).with_drafts(1), torch.Generator().manual_seed(11)
    target, draft = torch.rand(9, generator=chance, dtype=torch.float64), torch.zeros(9, dtype=torch.float64)
    ids = torch.tensor([1, 3, 4, 8])
    draft[ids], target = torch.tensor([0.01, 0.02, 0.5, 0.47], dtype=torch.float64), target / target.sum()
    rate = coupling_rate(NodeTarget(target, ids.numpy()), NodeLaw(ids.numpy(), draft[ids].numpy()))
    assert rate == pytest.approx(scheme.acceptance_rate(target, draft).item(), abs=1e-12)
    assert rate == pytest.approx(scheme.optimal_acceptance_rate(target, draft).item(), abs=1e-12)
    assert rate < target[ids].sum().item() - 1e-3


def test_the_error_is_that_of_the_difference() -> None:
    """Three differences of 0.1, 0.2 and 0.6: mean 0.3, standard deviation sqrt(0.07)."""
    info = Info(measured=4, gaps=3, gap=0.9, gap_squares=0.41)
    assert info.gap_error == pytest.approx((3 * 0.07) ** 0.5 / 4)
    assert (info + info).gap_error == pytest.approx((6 * 0.28 / 5) ** 0.5 / 8)
    assert math.isnan(Info(measured=1, gaps=1, gap=0.1, gap_squares=0.01).gap_error)


def test_the_acceptance_rate_has_the_error_of_an_average_and_one_step_has_none() -> None:
    """Rates of 0.1, 0.4 and 0.7: mean 0.4, standard deviation 0.3; of one step no error is known, and 0 is none."""
    info = Info(measured=3, expected_acceptance=1.2, expected_squares=0.66)
    assert (info.acceptance_rate, info.acceptance_error) == pytest.approx((0.4, 0.3 / 3**0.5))
    single = Info(measured=1, expected_acceptance=0.0)
    assert math.isnan(single.acceptance_error)
    assert single.as_dict()["acceptance_error"] is single.as_dict()["gap_error"] is None
    assert Info(row_passes=3).as_dict()["acceptance_rate"] is None, "nothing was drafted"


@pytest.mark.parametrize("tree", ["1", "2"])
def test_a_walker_that_asks_twice_does_not_double_the_acceptance(tree: str) -> None:
    def twice(node, weight, has_drafts, coin):
        if has_drafts(node):
            yield node, weight
        return (yield from deferred(node, weight, has_drafts, coin))

    infos = []
    for walk in ("deferred", twice):
        models = (TableModel(random_table(SIZE, 3, seed), SIZE) for seed in (1, 2))
        generator = torch.Generator().manual_seed(0)
        settings = dict(scheme="iid:lorenz", tree=tree, walk=walk, max_new_tokens=6, generator=generator)
        infos.append(md.generate(*models, [[0]], **settings)[1])
    assert infos[0].acceptance == infos[1].acceptance > 0


class Seldom(StaticTree):
    """Drafts in every second step only, as `auto` may."""

    steps = 0

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        self.steps += depth == 0
        return super().plan(trees, depth) if self.steps % 2 else Plan([[]] * len(trees))

    def counts(self, trees: list[TokenTree], depth: int) -> list[dict[int, int]]:
        return super().counts(trees, depth) if self.steps % 2 else [{} for _ in trees]


def test_steps_without_drafts_are_no_part_of_the_acceptance_rate() -> None:
    """The draft is always right: whatever share of the steps has one, 1.0 of those are accepted, and 0 of none."""
    info = counted("1", draft=lambda prefix: successor(1)[prefix[-1]], measure=True)
    seldom = counted(Seldom(Tree.parse("1")), draft=lambda prefix: successor(1)[prefix[-1]], measure=True)
    assert seldom.row_passes > info.row_passes == info.measured
    assert 0 < seldom.draft_steps == seldom.measured < seldom.row_passes
    assert seldom.acceptance_rate == seldom.optimal_acceptance_rate == 1


def test_by_default_thirty_steps_are_compared_with_the_optimum_then_few_and_every_second_is_counted() -> None:
    """What a run says of itself must mean something, cost little, and not be left out of its time."""
    models, began = [TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2)], time.perf_counter()
    _, info = md.generate(*models, [[0]], tree="2x1", max_new_tokens=200)
    steps_left = info.row_passes - MEASURED_AT_FIRST
    assert steps_left > 2 * MEASURED_EVERY_STEPS
    assert info.measured - MEASURED_AT_FIRST == pytest.approx(steps_left / MEASURED_EVERY_STEPS, abs=1)
    cheap = Batch(*models, DecodeConfig(md.scheme("iid:lorenz"), measure_first=1), StaticTree(Tree.parse("1")))
    cheap.info.seconds["target"] = 1e6  # against which measuring takes no time
    cheap.add([Request([0], 50, Sampling(temperature=1.0), generator=torch.Generator().manual_seed(0))])
    while cheap.requests:
        cheap.step()
    assert cheap.info.measured == cheap.info.draft_steps > MEASURED_EVERY_STEPS
    _, sparse = md.generate(*models, [[0]], tree="2x1", max_new_tokens=60, measure=MEASURED_EVERY_STEPS)
    assert sparse.measured <= sparse.row_passes / MEASURED_EVERY_STEPS + 1, "a number of steps is taken at its word"
    assert info.seconds["measure"] > 0
    assert info.decoding_seconds == info.total_seconds - info.seconds["measure"]
    assert info.total_seconds == sum(info.seconds.values()) <= time.perf_counter() - began
