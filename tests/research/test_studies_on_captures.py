"""Studies over captures: what they report is what the schemes say, and a run that was stopped goes on."""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import pytest
import torch
from captures import keep
from commands import ends_with_advice, run
from multidraft_research.captures.recording import Recording
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_captures import (
    by_task,
    candidates,
    greedy_or_iid,
    lookups,
    randomised,
    rates,
    target_temperature,
    top_k,
)
from multidraft_research.studies.on_captures import multi_step_error as approximate
from multidraft_research.studies.printed.tables import printed_table
from multidraft_research.studies.running.cells import Cell, difference, ratio, sums
from multidraft_research.studies.running.results import Results
from multidraft_research.studies.running.study import Captured

import multidraft as md
from multidraft.auditing.enumeration import first_tokens, step_law, target_law
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling.from_logits import distribution
from multidraft.verification.outcome import over_all_tuples

VOCABULARY = 34  # more than any study drafts at a node
PAIRS = [random_pairs(count, VOCABULARY, seed) for seed, count in enumerate((2, 3, 4))]


def part(index: int = 0) -> Captured:
    return Captured(PAIRS[index], ("even", "odd")[index % 2], torch.Generator().manual_seed(index))


def entries(cells: Iterator[Cell]) -> dict[tuple[str, str, str | float], float]:
    return {(cell.panel, cell.row, cell.column): cell.total / cell.weight for cell in cells}


def pair(temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    return tuple(distribution(x.double(), temperature) for x in (PAIRS[0].target, PAIRS[0].draft))


def test_acceptance_is_that_of_every_tuple() -> None:
    """Two drafts of 34 tokens can be summed over; the scheme with sampled tuples lies within five of its errors."""
    cells = entries(rates.compare_schemes(part(), 0.7, 2, "x"))
    target, draft = pair(0.7)
    for name in rates.COMPARED:
        s = md.scheme(name, drafts=2)
        exact = over_all_tuples(s.entry.rule, s.law, target, draft).acceptance.tolist()
        close = 1e-9 if s.expected_acceptance(target, draft) is not None else 0.15
        assert cells["acceptance", name, "x"] == pytest.approx(sum(exact) / len(exact), abs=close)
        best = md.optimal_acceptance_rate(target, draft, law=s.law.name, drafts=2)
        assert cells["acceptance", f"{s.law.name} optimum", "x"] == pytest.approx(float(best.mean()), abs=1e-9)
        gap = cells["acceptance", name, "x"] - cells["acceptance", f"{s.law.name} optimum", "x"]
        assert cells["below the optimum", name, "x"] == pytest.approx(gap, abs=1e-9)


def test_schemes_of_a_user_are_compared_too() -> None:
    """A rule by its place, and one by its name, in the studies that compare schemes; others refuse them."""
    names = ("multidraft.verification.rules.naive:naive,law=iid", "top:naive")
    cells = entries(rates.compare_schemes(replace(part(), schemes=names), 0.7, 2, "x"))
    assert cells["acceptance", names[0], "x"] < cells["acceptance", "iid optimum", "x"]
    assert cells["acceptance", names[1], "x"] == pytest.approx(cells["acceptance", "top optimum", "x"], abs=1e-9)


def test_every_prompt_counts_for_its_task_and_for_all() -> None:
    records = [{"id": str(i), "cells": list(by_task.measure(part(i)))} for i in range(3)]
    ratios = {place: ratio(sums_of_place) for place, sums_of_place in sums(records).items()}
    everything, even, odd = (ratios["acceptance", "iid:lorenz", column] for column in ("all", "even", "odd"))
    assert (everything.prompts, even.prompts, odd.prompts) == (3, 2, 1)
    assert odd.standard_error is None
    assert everything.value == pytest.approx((6 * even.value + 3 * odd.value) / 9)
    titles = [title for title, _, _ in Results.of(by_task.STUDY, records, {}).printed_tables()]
    assert sum("measured here" in title for title in titles) == 2
    assert sum(title.startswith("Printed in") for title in titles) == 1


def test_at_temperature_zero_the_target_is_accepted_where_it_is_among_the_likeliest() -> None:
    cells = entries(candidates.measure(part()))
    best = PAIRS[0].target.argmax(-1)
    rank = (PAIRS[0].draft > PAIRS[0].draft.gather(-1, best[:, None])).sum(-1)
    for n in candidates.COUNTS:
        with_others = cells["acceptance", candidates.row("without_replacement:recursive_rejection", 0.0), float(n)]
        assert with_others == pytest.approx(float((rank < n).double().mean()), abs=1e-6)
        alone = cells["acceptance", candidates.row("iid:recursive_rejection", 0.0), float(n)]
        assert alone == pytest.approx(float((rank < 1).double().mean()), abs=1e-6)


def test_randomised_drafting_is_counted_step_by_step() -> None:
    """Over every draft and none: tokens of a step over its time, and the paper's mean of rates."""
    cells = entries(randomised.measure(part()))
    target, draft = pair()
    a, ratio_of_costs = 0.7, 0.6
    accepted = (draft * torch.minimum(torch.ones(()), target / (a * draft))).sum(-1)  # of a draft that was made
    tokens, time = 1 + a * accepted.mean(), 1 + a * ratio_of_costs
    assert cells["acceptance", "per drafted token", a] == pytest.approx(float(accepted.mean()), abs=1e-9)
    name = randomised.row(ratio_of_costs)
    assert cells["long run", name, a] == pytest.approx(float(tokens / time), abs=1e-9)
    rate = a * (1 + accepted) / (1 + ratio_of_costs) + (1 - a)
    assert cells["mean of rates", name, a] == pytest.approx(float(rate.mean()), abs=1e-9)
    assert cells["long run", name, a] != pytest.approx(float(rate.mean()), abs=1e-3)


def test_optima_of_cut_drafts_are_those_of_the_cut_distribution() -> None:
    cut_cells, greedy_cells = entries(top_k.measure(part())), entries(greedy_or_iid.measure(part()))
    target, draft = pair()
    kept = draft >= draft.topk(10).values[:, -1:]
    cut = torch.where(kept, draft, 0.0)
    cut /= cut.sum(-1, keepdim=True)
    for n, law in product((2, 4), ("iid", "greedy")):
        best = float(md.optimal_acceptance_rate(target, cut, law=law, drafts=n).mean())
        name = "i.i.d." if law == "iid" else law
        assert greedy_cells["acceptance", f"{name}, k = 10", float(n)] == pytest.approx(best, abs=1e-9)
        if law == "iid":
            assert cut_cells["acceptance", "k = 10", float(n)] == pytest.approx(best, abs=1e-9)


def test_only_the_target_is_cooled() -> None:
    cells = entries(target_temperature.measure(part()))
    target, draft = distribution(PAIRS[0].target.double(), 0.4), distribution(PAIRS[0].draft.double(), 1.0, 10)
    best = float(md.optimal_acceptance_rate(target, draft, law="iid", drafts=4).mean())
    assert cells["acceptance", "k = 10, 4 drafts", 0.4] == pytest.approx(best, abs=1e-9)
    assert ("failures", "(100, 2)", 0.4) not in cells  # no 100 tokens


@pytest.mark.parametrize(
    ("name", "text", "drafts"),
    [
        (lookups.PROMPT_LOOKUP, [1, 2, 5, 9, 1, 2, 6, 1, 2], [5, 9, 1, 2, 6, 1, 2]),  # the first place, to the end
        (lookups.PROMPT_LOOKUP, [2, 5, 3, 1, 2], [5, 3, 1, 2]),  # of a single token
        (lookups.NGRAM, [1, 2, 5, 9, 8, 7, 1, 2], [5, 9, 8, 7, 1]),
        (lookups.NGRAM, [3, 1, 2, 5, 3, 1, 2, 6, 4, 1, 2, 6, 3, 1, 2, 6, 4, 1, 2], [6, 3, 1, 2, 6]),  # of the longest
        (lookups.NGRAM, [2, 5, 3, 1, 2], []),
        (lookups.SIMPLE, [*range(12), 50, *range(12), 60, *range(12)], [60, *range(12)]),  # the latest place
        (lookups.SIMPLE, [*range(11), 50, *range(11)], []),
        (lookups.SUFFIX, [1, 2, 5, 1, 2, 6, 1, 2, 6, 1, 2], [6, 1, 2]),  # the chain with the largest sum
        (lookups.SUFFIX, [1, 5, 1, 6, 1, 6, 1], [6, 1]),  # as many as the run has tokens
        (lookups.OURS, [7, 1, 2, 3, 4, 5, 8, 1, 2, 3, 4], [5, 8]),  # as long as it pays
    ],
)
def test_what_engines_look_up(name, text, drafts) -> None:
    assert lookups.KINDS[name]()(text, 0.4) == drafts


def test_look_ups_are_counted_pass_by_pass() -> None:
    prompt, answer = [1, 2, 3, 4, 5, 6, 7, 1, 2], [3, 4, 5, 9, 9]
    assert lookups.decode(lookups.KINDS[lookups.NGRAM](), prompt, answer, 0.1) == (2, 4)
    cells = entries(lookups.measure(replace(part(), prompt=prompt, answer=answer)))
    assert cells[lookups.TOKENS, lookups.NGRAM, 0.1] == 5 / 2
    assert cells[lookups.SPEED, lookups.NGRAM, 0.1] == 5 / 2.4
    assert cells[lookups.TOKENS, lookups.SIMPLE, 0.1] == 1


def test_a_paired_error_is_that_of_the_differences() -> None:
    """The difference of two entries, and the entry that is made of differences, are one number with one error."""
    records = [{"id": str(i), "cells": list(rates.compare_schemes(part(i), 1.0, 3, "x"))} for i in range(3)]
    sums_by_place = sums(records)
    name = "iid:recursive_rejection"
    apart = difference(sums_by_place["acceptance", name, "x"], sums_by_place["acceptance", "iid optimum", "x"])
    together = ratio(sums_by_place["below the optimum", name, "x"])
    assert apart.value == pytest.approx(together.value, abs=1e-12)
    assert apart.standard_error == pytest.approx(together.standard_error, abs=1e-12)
    unpaired = ratio(sums_by_place["acceptance", name, "x"]).standard_error
    assert apart.standard_error < unpaired


def test_the_error_of_a_ratio_is_its_spread() -> None:
    """Over 400 samples of 60 prompts; the spread of so many is within 15 % of the truth but once in 10^4."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.randint(1, 20, (400, 60), generator=generator).double()
    totals = weights * torch.rand(400, 60, generator=generator, dtype=torch.float64)
    ratios = [
        ratio({str(i): pair for i, pair in enumerate(zip(t, w, strict=True))})
        for t, w in zip(totals.tolist(), weights.tolist(), strict=True)
    ]
    spread = torch.tensor([estimate.value for estimate in ratios]).std()
    claimed = torch.tensor([estimate.standard_error for estimate in ratios]).mean()
    assert float(claimed / spread) == pytest.approx(1, abs=0.15)
    naive = (totals / weights).std(-1).mean() / 60**0.5  # as if all prompts weighed the same
    assert abs(float(naive / spread) - 1) > 0.1


def study(*arguments: object):
    return run("study", *arguments)


SHORT = ("randomised",)  # and top-k, in the report of all
NAMES = [name for name, listed in LISTED.items() if not listed.on_models]


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in SHORT else pytest.mark.slow) for n in NAMES])
def test_each_study_is_one_command(tmp_path, name, unchecked) -> None:
    folder, out = keep(tmp_path / "capture", *PAIRS), tmp_path / "run"
    result = study(name, "--capture", folder, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    data = json.loads(result.stdout)
    assert data["paper"]
    assert {entry["prompts"] for entry in data["entries"]} <= {1, 2, 3}
    assert data == json.loads((out / f"{name}.json").read_text())
    for ending in ("png", "svg"):
        assert (out / f"{name}.{ending}").stat().st_size > 5_000
    again = study(name, "--capture", folder, "--out", out)
    assert "measured here" in again.stdout
    assert all(finding["verdict"] in ("shown", "contradicted", "undecided", "equal") for finding in data["findings"])
    stated = LISTED[name].study().findings
    too_large = [finding for finding in stated if "(100, 2)" in finding.above or name == "multi-step-error"]
    assert len(data["findings"]) == len(stated) - len(too_large)  # 100 tokens to draft, or texts of eight: not here


def test_what_does_not_fit_is_refused(tmp_path) -> None:
    first, second = keep(tmp_path / "first", PAIRS[0]), keep(tmp_path / "second", random_pairs(2, 20, 0))
    assert study("top-k", "--capture", first, "--out", tmp_path / "run").exit_code == 0
    ends_with_advice(study("top-k", "--capture", second, "--out", tmp_path / "run"), "is of a run with capture")
    ends_with_advice(study("candidates", "--capture", second, "--out", tmp_path / "other"), "makes up to 32 drafts")
    ends_with_advice(study("candidates", "--capture", second, "--target", "x"), "two sources")
    ends_with_advice(study("top-k", "--scheme", "top:naive", "--out", tmp_path), "compares no schemes")
    ends_with_advice(study("trees", "--capture", "x"), "decodes with models")


def test_what_the_papers_print_is_whole() -> None:
    for listed in LISTED.values():
        for name in listed.study().printed:
            table = printed_table(name)
            assert all(len(row) == len(table.columns) for row in table.rows), name
    first = printed_table("towards_optimal_table_1").rows[0][:4]
    assert first == ["OPT-125M OPT-6.7B", "With Replacement", "RRS", "85.4 ± 0.1"]


TOLERANCE = 0.01
RULE = f"iid:global_resolution,tolerance={TOLERANCE},fallback=naive"
LAW, SUM = (approximate.row(TOLERANCE, what) for what in (approximate.LAW, approximate.SUM))


def deviations(recording: Recording, drawn: list[int] | None) -> dict[tuple[str, float], float]:
    """What the study of several approximate steps reports."""
    cells = approximate.measure(Captured(recording, "task", torch.Generator(), drawn and torch.tensor(drawn)))
    cells_of_panel = entries(cell for cell in cells if cell.panel == approximate.DEVIATION)
    return {place[1:]: value for place, value in cells_of_panel.items()}


def emitted(recording: Recording) -> tuple[torch.Tensor, torch.Tensor]:
    """The target, and the rule's law summed over every tuple, at every position."""
    target, laws = distribution(recording.target.double()), []
    for p, q in zip(target, distribution(recording.draft.double(), 1.0, approximate.TOP_K), strict=True):
        s = md.scheme(RULE, drafts=approximate.DRAFTS)
        drafted, weight = s.tuples(q)
        outcome = s.outcome(p.expand(len(drafted), -1), q.expand(len(drafted), -1), drafted)
        laws.append((weight[:, None] * outcome.law()).sum(0))
    return target, torch.stack(laws)


@pytest.mark.usefixtures("unchecked")
def test_the_deviation_of_approximate_steps_is_that_of_every_tuple_and_on_the_average_the_norm() -> None:
    recording, text = random_pairs(3, 12, 4), [1, 5, 7]
    target, laws = emitted(recording)
    measured, single = deviations(recording, text), (laws - target).abs().sum(-1)
    assert single.max() > 1e-4
    ratio = laws[range(3), text] / target[range(3), text]
    expected = [float(value) for value in (single.mean(), single[:2].sum(), (ratio[:2].prod() - 1).abs())]
    assert [measured[place] for place in ((SUM, 1.0), (SUM, 2.0), (LAW, 2.0))] == pytest.approx(expected, abs=1e-9)
    untold = {row for row, _ in deviations(recording, None)}  # text that the target did not draw
    assert not any(approximate.LAW in row for row in untold)
    recording = random_pairs(2, 4, 1)
    target, laws = emitted(recording)
    texts = product(range(4), repeat=2)
    mean = sum(float(target[0, i] * target[1, j]) * deviations(recording, [i, j])[LAW, 2.0] for i, j in texts)
    exact = (torch.outer(laws[0], laws[1]) - torch.outer(target[0], target[1])).abs().sum()
    assert mean == pytest.approx(float(exact), abs=1e-9)
    assert mean > 1e-4


@pytest.mark.parametrize(("tolerance", "kept"), [(TOLERANCE, True), (0.3, False)])
def test_the_decoder_keeps_the_bound(tolerance, kept) -> None:
    """Two drafted steps of a whole tree, enumerated; a rule that is coarser than it says is found out."""
    target, draft = (random_table(3, 3, model, 0.7) for model in (0, 1))
    after = lambda tokens: target((0, *tokens))  # noqa: E731
    way = DecodeConfig(md.scheme(RULE.replace(str(TOLERANCE), str(tolerance)))), StaticTree(Tree.parse("2x1"))
    law = first_tokens(step_law(TableModel(target, 3), TableModel(draft, 3), [0], *way).law, after, 2)
    true = target_law(after, 2)
    norm = sum(abs(law.get(tokens, 0.0) - true.get(tokens, 0.0)) for tokens in law | true)
    assert (norm <= 2 * 15 * TOLERANCE) == kept
    assert norm > TOLERANCE  # it is not lossless
