"""Studies of whole generations: their entries are what the decoder reports, for runs of as many tokens."""

import json

import pytest
import torch
from commands import run
from multidraft_research.captures.work import Passage
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_models import (
    blocks,
    configurations,
    latency,
    multi_step,
    randomised_speed,
    trees,
    verification,
)
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding
from tiny import tiny_model

import multidraft as md
from multidraft.decoding.tree import Tree
from multidraft.zoo import Pair

NEW = 12
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


def test_configurations_are_the_papers_algorithm(monkeypatch) -> None:
    for name, kept in (("CHAINS", ("1x1",)), ("PAIRS", ("4x2",)), ("LONGER", ())):
        monkeypatch.setattr(configurations, name, kept)
    found = entries(configurations.measure(ASKED))
    for temperature in (0.0, 1.0):
        scheme = "without_replacement:recursive_rejection"
        info = decoded(scheme=scheme, tree="4x2", walk="commit", temperature=temperature)
        agree(found, f"T = {temperature:g}", "4x2", info)


def test_blocks_are_paths(monkeypatch) -> None:
    monkeypatch.setattr(blocks, "PATHS", (2,))
    found = entries(blocks.measure(ASKED))
    agree(found, "SpecTr, L = 4", 2.0, decoded(scheme="iid:k_sequential", tree="2 paths of 4", walk="commit"))
    agree(found, "ours, L = 8", 2.0, decoded(scheme="iid:lorenz", tree="2 paths of 8"))


def test_drafts_of_several_steps_come_from_the_likeliest_tokens(monkeypatch) -> None:
    monkeypatch.setattr(multi_step, "PATHS", (2,))
    found = entries(multi_step.measure(ASKED))
    agree(found, "ours, deferred", 2.0, decoded(scheme="iid:lorenz", tree="2 paths of 4", draft_top_k=10))
    assert ("speed", "Global Resolution", 2.0) in found


def test_drafting_is_randomised(monkeypatch) -> None:
    monkeypatch.setattr(randomised_speed, "PROBABILITIES", (0.5,))
    found = entries(randomised_speed.measure(ASKED))
    agree(found, "one draft", 0.5, decoded(scheme="iid:lorenz,draft_probability=0.5", tree="1", walk="commit"))


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


def test_models_are_needed() -> None:
    result = run("study", "trees", "--capture", "x")
    assert result.exit_code == 2
    assert "decodes with models" in result.stderr
