"""Studies of whole generations: their entries are what the decoder reports, for runs of as many tokens.

Of trees that grow: exact tokens, time as it is counted, the best tree where it is known in closed form. Of several
drafts: the rows of each are those of a study of its own. Of acceptance: the table agrees with the rules.
"""

import json
from itertools import product
from pathlib import Path

import pytest
import torch
from captures import keep
from commands import ends_with_advice, printed, run, save_pair, written
from multidraft_research.captures.work import Passage
from multidraft_research.studies.acceptance import cases, measure, random_pairs
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_captures import candidates
from multidraft_research.studies.on_models import (
    adaptive,
    blocks,
    configurations,
    latency,
    multi_step,
    randomised_speed,
    trees,
    verification,
)
from multidraft_research.studies.on_models.gains import ALL, gain, gains
from multidraft_research.studies.on_models.tree_search import best_tree, common, menu, speed
from multidraft_research.studies.on_models.trials import expected_tokens, tried
from multidraft_research.studies.running.cells import Cell, ratio
from multidraft_research.studies.running.study import Decoding
from plans import costs, rates
from tiny import tiny_model

import multidraft as md
from multidraft.auditing.enumeration import all_trees, first_state, step_law
from multidraft.autotune.growing import Growing
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.models.table import TableModel, random_table
from multidraft.zoo import Pair

NEW, DEAR = 8, 1e6
ASKED = Decoding(
    Pair(tiny_model("llama"), tiny_model("mistral"), None),  # type: ignore[arg-type]  # no text here
    Passage("p", "task", [1, 2, 3]),
    NEW,
    seed=5,
)


def decoded(**how):
    """What the decoder says of the same run."""
    pair, generator = ASKED.pair, torch.Generator().manual_seed(ASKED.seed)
    return md.generate(
        pair.target, pair.draft, [[1, 2, 3]], max_new_tokens=NEW, generator=generator, measure=False, **how
    )[1]


def entries(cells) -> dict[tuple[str, str, str | float], Cell]:
    return {(cell.panel, cell.row, cell.column): cell for cell in cells}


def agree(found, row: str, column: str | float, info) -> None:
    """The entries are those of a run, and its seconds are compared with those of plain decoding."""
    efficiency, acceptance, speed = (found[panel, row, column] for panel in ("block efficiency", "acceptance", "speed"))
    assert efficiency.total / efficiency.weight == pytest.approx(info.block_efficiency)
    assert (acceptance.total, acceptance.weight) == (info.accepted, info.accepted + info.corrected)
    assert speed.total > 0
    assert speed.weight > 0


def test_trees_report_what_the_decoder_does(monkeypatch) -> None:
    monkeypatch.setattr(trees, "TREES", {"2x2x2x2": "2x2x2x2", "small": "2x1"})
    monkeypatch.setattr(trees, "TEMPERATURES", (0.6,))
    monkeypatch.setattr(trees, "SCHEMES", (trees.BASE, "spechub:spechub", "anchored:lorenz"))
    found = entries(trees.measure(ASKED))
    base = decoded(scheme=trees.BASE, tree="2x1", walk="commit", temperature=0.6)
    for scheme, walk in ((trees.BASE, "commit"), ("anchored:lorenz", "deferred")):
        info = decoded(scheme=scheme, tree="2x1", walk=walk, temperature=0.6)
        place = f"{scheme}, {walk}", "small, T = 0.6"
        agree(found, *place, info)
        assert (found["passes", *place].total, found["passes", *place].weight) == (base.row_passes, info.row_passes)
    assert ("speed", "spechub:spechub, commit", "small, T = 0.6") not in found
    assert ("speed", "spechub:spechub, commit", "2x2x2x2, T = 0.6") in found


def test_eagles_tree_has_25_nodes_and_five_levels() -> None:
    tree = Tree.parse(trees.TREES["EAGLE's"])
    assert (len(tree) - 1, max(tree.depths), tree.drafts[0]) == (25, 5, 4)


TREE = dict(scheme="without_replacement:recursive_rejection", tree="4x2", walk="commit", temperature=0.0)
SPECTR = dict(scheme="iid:k_sequential", tree="2 paths of 4", walk="commit")
SEVERAL = dict(scheme="iid:lorenz", tree="2 paths of 4", draft_top_k=10)
RANDOM = dict(scheme="iid:lorenz,draft_probability=0.5", tree="1", walk="commit")


@pytest.mark.parametrize(
    ("study", "some", "place", "how"),
    [
        (configurations, {"CHAINS": ("1x1",), "PAIRS": ("4x2",), "LONGER": ()}, ("T = 0", "4x2"), TREE),
        (blocks, {"PATHS": (2,)}, ("SpecTr, L = 4", 2.0), SPECTR),
        (multi_step, {"PATHS": (2,)}, ("ours, deferred", 2.0), SEVERAL),
        (randomised_speed, {"PROBABILITIES": (0.5,)}, ("one draft", 0.5), RANDOM),
    ],
    ids=["configurations", "blocks", "several steps", "randomised"],
)
def test_studies_are_of_what_the_papers_do(monkeypatch, study, some, place, how) -> None:
    for name, kept in some.items():
        monkeypatch.setattr(study, name, kept)
    agree(entries(study.measure(ASKED)), *place, decoded(**how))


def test_a_pass_over_paths_is_timed_beside_one_over_a_tree(monkeypatch) -> None:
    asked = []

    def seconds(model, prompt, length, batch):
        asked.append((length, batch))
        return float(length * batch)

    monkeypatch.setattr(verification, "seconds", seconds)
    monkeypatch.setattr(verification, "TREES", ("4x2x2",))
    found = entries(verification.measure(ASKED))
    assert asked == [(28, 1), (3, 16)]
    assert found["attention", "a batch of paths", "4x2x2"][3:] == (48.0, 28.0)
    agree(found, "MCNS", "4x2x2", decoded(scheme="without_replacement:naive", tree="4x2x2", walk="commit"))


def test_latency_is_over_that_of_the_smallest_target_pass(monkeypatch) -> None:
    monkeypatch.setattr(latency, "one_pass", lambda model, read, new: float(new.numel() + (model is ASKED.pair.draft)))
    found = entries(latency.measure(ASKED))
    assert found["target", "length = 8", 4.0][3:] == (32.0, 4.0)
    assert found["draft", "length = 1", 2.0][3:] == (3.0, 4.0)


def test_a_pass_reads_the_prompt_first() -> None:
    """The model is called with the prompt, and then with the tokens that are timed, which it sees behind the prompt."""
    seen = []
    handle = ASKED.pair.target.register_forward_pre_hook(
        lambda model, given, named: seen.append((given[0].shape, named["past_key_values"].get_seq_length())),
        with_kwargs=True,
    )
    assert latency.seconds(ASKED.pair.target, [1, 2, 3], 4, 2) > 0
    handle.remove()
    assert seen[:2] == [((2, 3), 0), ((2, 4), 3)]


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, listed in LISTED.items() if listed.on_models])
def test_each_study_is_one_command(tmp_path, name) -> None:
    """Two prompts of the embedded pair, and again without any work."""
    asked = ["study", name, "--out", str(tmp_path), "--limit", "2", "--new-tokens", "3", "--json"]
    first = run(*asked)
    assert first.exit_code == 0, first.output
    data = json.loads(first.stdout)
    assert len(data["findings"]) == len(LISTED[name].study().findings)
    assert all((tmp_path / f"{name}.{ending}").stat().st_size > 5_000 for ending in ("png", "svg"))
    assert json.loads(run(*asked).stdout) == data


def tables() -> tuple[TableModel, TableModel]:
    one, other = (TableModel(random_table(3, 4, seed, 0.7), 3) for seed in (1, 2))
    return one, other


def fixed(name: str, walk: str = "deferred") -> DecodeConfig:
    tree = Tree.parse(name) if name else NO_DRAFTS
    return DecodeConfig(md.scheme("anchored:lorenz"), StaticTree(tree), walk, measure=0)


def growing(one: float) -> DecodeConfig:
    policy = Growing(8, 2)
    policy.price(rates(one, second=0.0), costs(1.0, 0.1, 0.02), 1.0)
    return DecodeConfig(md.scheme("anchored:lorenz"), policy, measure=0)


@pytest.mark.parametrize("walk", ["commit", "deferred"])
def test_expected_tokens_are_those_of_the_law_of_a_step(walk: str) -> None:
    """Averaged over all trees that can be drawn."""
    config = fixed("2x1", walk)
    law = step_law(*tables(), [0], config)
    forest = all_trees(first_state(*tables(), [0], config), config)
    tokens = zip(forest.probability, expected_tokens(forest.scored, config), strict=True)
    assert sum(chance * count for chance, count in tokens) == pytest.approx(1 + law.accepted, abs=1e-9)


def test_a_trial_leaves_the_state_as_it_was_and_time_is_counted_in_passes_of_the_target() -> None:
    state = first_state(*tables(), [0], fixed("4x2x2"))
    assert tried(state, fixed("")) == (1.0, (0, 0, 0))
    assert tried(state, fixed("1x1")).work == (2, 2, 2)
    assert tried(state, growing(0.6)).tokens > 1
    assert not state.used
    trial = tried(state, fixed("2x1"))
    found = {cell.row: cell for cell in adaptive.cells("model, prose", "2x1", 1.0, trial)}
    cell = found["level 0.12, node 0.02|2x1"]
    assert (cell.total, cell.weight) == (trial.tokens, pytest.approx(1 + 2 * 0.12 + 4 * 0.02))


def test_the_gain_is_that_of_shapes_chosen_elsewhere_by_kinds_of_text_and_over_all() -> None:
    """On each of three prompts another growing shape shines, which nobody could have known."""
    shapes = {name: dict.fromkeys("abc", (tokens, 1.0)) for name, tokens in (("2x1", 2.0), ("1", 1.0))}
    shapes |= {f"grows by {one}": dict.fromkeys("abc", (1.0, 1.0)) | {one: (5.0, 1.0)} for one in "abc"}
    assert ratio(gain(shapes)).value == pytest.approx(0.5)
    shapes["grows always"] = dict.fromkeys("abc", (4.0, 1.0))
    assert (ratio(gain(shapes)).value, ratio(gain(shapes)).standard_error) == pytest.approx((2.0, 0.0))
    places = gains(
        {
            (f"model, {kind}", f"level 1, node 1|{shape}", 0.0): {f"{kind}/1": (tokens, 1.0)}
            for kind, tokens in (("prose", 1.0), ("code", 3.0))
            for shape in ("1", "grows by it")
        }
    )
    assert {panel for panel, _, _ in places} == {"model, prose", "model, code", f"model, {ALL}"}
    assert len(places[f"model, {ALL}", "level 1, node 1", 0.0]) == 2


def test_without_confidence_growing_is_as_good_as_the_best_fixed_tree() -> None:
    """On a draft that says the same everywhere, and is right."""
    target = TableModel(lambda _: torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64), 3)
    state = first_state(target, target, [0], fixed("1x1"))
    assert tried(state, growing(0.99)).tokens == pytest.approx(tried(state, fixed("1x1")).tokens)


@pytest.mark.parametrize(
    ("found", "price", "limits", "tree"),
    [
        (rates(0.0, second=0.0), costs(), {}, NO_DRAFTS),
        (rates(0.9), costs(node=DEAR), {}, NO_DRAFTS),
        (rates(0.9), costs(level=DEAR), {}, NO_DRAFTS),
        (rates(0.5), costs(level=8.0), dict(depth=1), Tree.levels([8])),  # nodes are free
        (rates(1.0), costs(level=0.0, node=0.01), dict(depth=6), Tree.levels([1] * 6)),
    ],
)
def test_the_best_tree_where_something_costs_or_gives_nothing(found, price, limits, tree) -> None:
    assert best_tree(found, price, 1, **limits)[0] == tree


@pytest.mark.parametrize(("accepted", "level"), [(0.8, 1.0), (0.6, 2.0), (0.9, 3.0), (0.3, 2.9)])
def test_a_chain_has_the_best_length(accepted: float, level: float) -> None:
    """Further drafts add nothing, so that tokens and seconds are sums of a series."""
    one = rates(accepted, second=0.0)
    found, rho = best_tree(one, costs(level=level, node=1e-6), 1)
    lengths = {n: sum(accepted**d for d in range(n + 1)) / (10 + n * level) for n in (0, 1, 2, 3, 4, 6, 8)}
    assert rho == pytest.approx(max(lengths.values()), rel=1e-5)
    assert len(found) - 1 == max(lengths, key=lengths.__getitem__)


def test_batches_shrink_trees_to_chains_and_to_none() -> None:
    """The dearer a node is for all rows together, the smaller the tree."""
    sizes = [len(best_tree(rates(0.6), costs(node=node), 16)[0]) for node in (0.0, 0.3, 1.0, 3.0, 30.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 9
    assert sizes[-1] == 1


@pytest.mark.parametrize("one", [0.3, 0.6, 0.9])
@pytest.mark.parametrize("price", [costs(level=0.7, node=0.2, more=0.1), costs(level=2.0, node=0.05)])
def test_no_k_config_is_faster_than_what_is_found(one: float, price: object) -> None:
    """All that shrink with depth, up to four drafts a node and 32 nodes; and trees to choose from are within limits."""
    best = best_tree(rates(one), price, 1)[1]
    for first, second, length in product(range(1, 5), range(1, 5), range(5)):
        tree = Tree.levels([first, second, *[1] * length])
        if second <= first and len(tree) <= 33:
            assert speed(tree, rates(one), price, 1) <= 1.005 * best
    trees = menu(rates(one), price, 1, nodes=6, depth=3)
    assert {*trees} >= {NO_DRAFTS, *common(6, 3)}
    assert all(len(tree) <= 7 and tree.depth <= 3 for tree in trees)


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a target, a draft model and prompts."""
    folder = save_pair(tmp_path_factory.mktemp("models"))
    written(folder / "prompts.jsonl", "the old", "a storm", "and alone")
    return folder


def asked(name: str, models: Path, out: Path, *drafts: str) -> tuple[object, ...]:
    """The command of a study of the target with some drafts, of which it may be one itself."""
    named = [word for draft in drafts for word in ("--draft", models / draft)]
    call = ["study", name, "--target", models / "target", *named, "--prompts", models / "prompts.jsonl"]
    return (*call, "--new-tokens", 6, "--out", out)


def values(results: dict) -> dict[tuple, tuple]:
    """Values and errors by their places."""
    return {(e["panel"], e["row"], e["column"]): (e["value"], e["standard_error"]) for e in results["entries"]}


def test_every_draft_has_the_rows_of_its_own_study(models, tmp_path, monkeypatch, unchecked) -> None:
    monkeypatch.setattr(candidates, "COUNTS", (4,))
    monkeypatch.setattr(candidates, "TEMPERATURES", (1.0,))
    both = printed(*asked("candidates", models, tmp_path / "both", "draft", "target"))
    assert both["draft"] == [str(models / draft) for draft in ("draft", "target")]
    expected = {}
    for draft in ("draft", "target"):
        own = printed(*asked("candidates", models, tmp_path / draft, draft))
        expected |= {(p, f"{models / draft}: {r}", c): value for (p, r, c), value in values(own).items()}
    assert values(both) == expected
    assert json.loads((tmp_path / "both" / "candidates.json").read_text()) == both
    verdicts = [one["verdict"] for one in both["findings"]]
    assert len(verdicts) == 2 * 2 + 2
    assert verdicts[-2:] == ["shown", "shown"]  # the target drafts for itself better than a stranger does


def test_whole_generations_of_several_drafts_are_compared(models, tmp_path, monkeypatch, unchecked) -> None:
    monkeypatch.setattr(blocks, "PATHS", (2,))
    monkeypatch.setattr(blocks, "LENGTHS", (4,))
    found = values(printed(*asked("blocks", models, tmp_path, "draft", "target")))
    assert found["block efficiency", f"{models / 'target'}: SpecTr, L = 4", 2.0] == (5.0, 0.0)
    assert found["block efficiency", f"{models / 'draft'}: SpecTr, L = 4", 2.0][0] < 5
    assert sum(path.is_dir() for path in tmp_path.iterdir()) == 2
    assert (tmp_path / "blocks.svg").stat().st_size > 5_000
    ends_with_advice(run(*asked("all", models, tmp_path, "draft", "target")), "takes one --draft")


def test_the_table_of_acceptance_agrees_with_the_schemes(tmp_path) -> None:
    pairs = random_pairs(3, 40, seed=1)
    lines = {(li.scheme, li.drafts): li for li in measure(pairs, cases([1.0], [2, 3]))}
    p, q = pairs.target.double().softmax(-1), pairs.draft.double().softmax(-1)
    rate = float(md.optimal_acceptance_rate(p, q, law="iid", drafts=3).mean())
    assert lines["iid:lorenz", 3].acceptance_rate == pytest.approx(rate, abs=1e-12)
    assert lines["iid:lorenz", 3].optimal_acceptance_rate == pytest.approx(rate, abs=1e-12)
    assert ("spechub:spechub", 2) in lines
    assert ("spechub:spechub", 3) not in lines
    for line in lines.values():  # a sampled one is within five of its errors but once in 10^6, and no seed is drawn
        noise = 0.0 if line.method == "formula" else 5 * line.standard_error
        assert line.acceptance_rate <= line.optimal_acceptance_rate + noise + 1e-9, line
    folder = keep(tmp_path, random_pairs(2, 20, seed=0))
    asked = ["acceptance", "--capture", folder, "--temperature", 1, "--drafts", 2]
    names = {line["scheme"] for line in printed(*asked)["results"]}
    assert {"anchored:lorenz", "without_replacement:recursive_rejection"} <= names
    assert "anchored:lorenz" in run(*asked).stdout
    ends_with_advice(run("acceptance", "--capture", "nowhere"), "multidraft capture")
