"""The audit finds every scheme lossless and every mutant guilty, in each of its parts, with the odds it states."""

import dataclasses
import json
import runpy
from itertools import cycle
from pathlib import Path

import pytest
import torch
from multidraft_research.audits.corners import Corners
from multidraft_research.audits.mutants import MUTANTS, audit_mutant
from multidraft_research.solvers.global_resolution_rule import GlobalResolution
from torch import Tensor
from typer.testing import CliRunner

import multidraft as md
from multidraft.auditing.bets import Alarm, Bets
from multidraft.auditing.pairs import drafting, large_pair
from multidraft.auditing.statistical import Features, sample, surprises
from multidraft.cli.main import app
from multidraft.verification.laws import Iid
from multidraft.verification.registry import entries
from multidraft.verification.rules.recursive_rejection import recursive_rejection

EXAMPLES = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "audit_verifiers.py"))
CHEAP = dict(drafts=2, vocabulary=300, trials=1_000, trees=["2"])
SCHEMES = entries()
QUICK = ("iid:linear_program", "iid:max_flow", "distinct:max_flow")
FAST = [name for name, entry in SCHEMES.items() if not entry.small]
SMALL = [name for name, entry in SCHEMES.items() if entry.small and entry.exact]
SOLVERS = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in SMALL]
ONLY_EXACT = dict(vocabulary=())
RULES = [name for name, mutant in MUTANTS.items() if mutant.rule is not None]


@pytest.mark.parametrize(("name", "draft_probability"), list(zip(FAST, cycle([1.0, 0.6]), strict=False)))
def test_every_scheme_is_lossless(name: str, draft_probability: float) -> None:
    assert_lossless(name, draft_probability=draft_probability, **CHEAP)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_is_lossless_and_optimal(name: str) -> None:
    report = assert_lossless(name, **CHEAP | dict(vocabulary=12, trials=500))
    assert report.exact.optimum is None or abs(report.exact.acceptance - report.exact.optimum) < 1e-9


def assert_lossless(name: str, **settings):
    report = md.audit(name, **settings)
    assert report.verdict == "lossless", report.sentence
    assert max(report.deviation, report.exact.impossible) <= 1e-12
    assert report.walks
    assert report.exact.optimum is None or report.exact.acceptance <= report.exact.optimum + 1e-9
    return report


@pytest.mark.parametrize("name", [name for name in SMALL if SCHEMES[name].law.repeats])
def test_solvers_know_nodes_that_drew_twice(name: str) -> None:
    """Where two drafts of a node are one token, its children come from two tuples."""
    draft = drafting(md.scheme(name, 2).law, torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64))
    report = md.audit(name, 2, vocabulary=(), pairs=[([0.5, 0.3, 0.2], draft)], trees=["2x1"])
    assert report.verdict == "lossless", report.sentence


@pytest.mark.parametrize("tolerance", [1e-2, pytest.param(1e-4, marks=pytest.mark.slow)])
def test_global_resolution_is_within_what_it_states_and_no_better(tolerance: float) -> None:
    settings = dict(vocabulary=12, trials=500, trees=["1x1"])
    report = md.audit(f"iid:global_resolution,tolerance={tolerance},fallback=lorenz", 2, **settings)
    assert report.verdict == "lossless within its stated deviation", report.sentence
    assert report.within == 7.5 * tolerance

    def rule(target, draft, drafted):
        return GlobalResolution(tolerance, "lorenz")(target, draft, drafted, Iid(2))

    assert md.audit(rule, 2, law="iid", within=tolerance / 100, **ONLY_EXACT).guilty() == ["exact"]


def test_global_resolution_without_a_fallback_says_that_it_failed() -> None:
    with pytest.raises(md.AdviceError, match=r"Global Resolution failed: .* fallback='k_sequential'"):
        md.audit("iid:global_resolution,tolerance=1e-6", 2, **ONLY_EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in SCHEMES if SCHEMES[name].exact])
def test_every_scheme_is_lossless_at_real_sizes(name: str) -> None:
    report = md.audit(name, walks=True)
    assert report.verdict == "lossless", report.sentence


@pytest.mark.parametrize("name", RULES)
def test_a_biased_rule_is_found_guilty(name: str) -> None:
    report = audit_mutant(name, vocabulary=256, trials=20_000, trees=["2x2" if "replaced" in name else "2x1"])
    assert report.guilty() == list(MUTANTS[name].guilty), report.sentence
    assert report.verdict == "biased"
    assert report.exact.total_variation > 0.03


@pytest.mark.parametrize("name", set(MUTANTS) - set(RULES))
def test_only_walking_finds_a_biased_walk(name: str) -> None:
    report = audit_mutant(name, **ONLY_EXACT, trees=["2x1"])
    assert report.guilty() == ["walks"], report.sentence
    assert {part.walk for part in report.walks if part.deviation > 1e-3} == {"impatient"}


@pytest.mark.parametrize(
    ("verifier", "drafts", "law", "total_variation"),
    [
        ("recursive_rejection_of_top_tokens", 2, [0.75, 0, 0.25], "0.30"),
        ("ratio_test_of_the_top_token", 1, [5 / 6, 0, 1 / 6], "0.33"),
        ("ratio_tests_in_random_order", 2, [5 / 12, 1 / 2, 1 / 12], "0.20"),
        ("matching", 2, [0.5, 0.3, 0.2], "0.00"),
    ],
)
def test_published_rules_on_deterministic_drafts(verifier, drafts, law, total_variation) -> None:
    report = md.audit(EXAMPLES[verifier], drafts, law="top", pairs=[EXAMPLES["EXAMPLE"]], **ONLY_EXACT)
    assert report.exact.worst.law == pytest.approx(law, abs=1e-12)
    assert f"{report.total_variation:.2f}" == total_variation
    assert report.biased == (verifier != "matching")
    assert report.replay() == report.exact.worst


def test_the_example_prints_the_numbers(capsys) -> None:
    EXAMPLES["main"]()
    printed = capsys.readouterr().out
    for line in ("total variation 0.30: biased", "0.33: biased", "0.20: biased", "0.00: lossless", "pairs=[("):
        assert line in printed


def test_the_worst_case_can_be_pasted() -> None:
    """The numbers that are printed give the same law again."""
    report = audit_mutant("forgets the residual", **ONLY_EXACT)
    worst = report.exact.worst
    pasted = json.loads(json.dumps([(worst.target, worst.draft)]))
    again = md.audit(MUTANTS["forgets the residual"].rule, law="iid", pairs=pasted, **ONLY_EXACT).exact.worst
    assert again.law == worst.law
    assert str(worst.target) in report.sentence
    assert str(worst.draft) in report.sentence


# Samplers: nothing but tokens to look at


def speculative(leak: float):
    """One i.i.d. draft, verified as in the papers, but a share `leak` of the drafts is emitted without a test."""

    def verify(target: Tensor, draft: Tensor, drafted: Tensor, generator: torch.Generator) -> Tensor:
        token = drafted[:, 0]
        p, q = (values.gather(-1, drafted)[:, 0] for values in (target, draft))
        coin, slip = torch.rand(2, len(token), generator=generator)
        accepted = (coin < p / q) | ((slip < leak) & (p > 0))
        left = torch.multinomial((target[0] - draft[0]).clamp(min=0), len(token), True, generator=generator)
        return torch.where(accepted, token, left)

    return verify


def test_a_sampler_without_bias_passes_and_one_with_a_leak_does_not() -> None:
    settings = dict(law="iid", drafts=1, vocabulary=256, trials=50_000)
    right, leaky = (md.audit(speculative(leak), **settings) for leak in (0.0, 0.06))
    assert right.verdict == "no bias found"
    assert "99 % probability" in right.sentence
    assert min(part.smallest_leak for part in leaky.sampled) < 0.06, "the stated power covers the leak"
    assert leaky.guilty() == ["statistical"]
    assert "times their stakes" in leaky.sentence


def test_a_sampler_may_not_emit_what_is_no_token_or_never_comes() -> None:
    settings = dict(law="iid", drafts=1, vocabulary=50, trials=1_000)
    outside = md.audit(lambda p, q, x, generator: torch.full((len(x),), 50), **settings)
    assert "ids are no tokens" in outside.sentence
    drafts_only = md.audit(lambda p, q, x, generator: x[:, 0], **settings)
    assert drafts_only.sampled[0].p_values["fine"] < 1e-12


@pytest.mark.parametrize("part", ["coarse", "fine"])
def test_odds_and_power_are_as_stated(part: str) -> None:
    """500 runs of 2,000 tokens: false alarms at most as stated, and 97 % caught where 99 % is stated."""
    target, draft = large_pair(Iid(1), 200, "near", 0)
    features, generator = Features.of(target, draft), torch.Generator().manual_seed(5)
    table, p, odds = features.table[:, features.parts[part]], features.target, 0.01
    mean = p @ table
    low, high = table.min(0).values - mean, table.max(0).values - mean
    bets = Bets.place(low, high, torch.zeros_like(mean), p @ table**2 - mean**2, 2_000, odds)
    leak = bets.smallest(features.draft @ table - mean)
    assert leak is not None
    assert leak < 0.7

    def alarms(law: Tensor, runs: int) -> int:
        tokens = torch.multinomial(law, 2_000 * runs, True, generator=generator).view(runs, 2_000)
        return sum(bets.p_value(table[row] - mean) < odds for row in tokens)

    assert alarms(p, 500) < 500 * odds + 6 * (500 * odds) ** 0.5
    assert alarms((1 - leak) * p + leak * features.draft, 200) >= 194


@pytest.mark.parametrize("name", ["iid:lorenz", "anchored:lorenz", "without_replacement:naive", "distinct:naive"])
@pytest.mark.parametrize("draft_probability", [1.0, 0.6])
def test_surprises_are_zero_on_average(name: str, draft_probability: float) -> None:
    """Summed over every tuple, and with the coin that decides whether to draft at all."""
    law = md.scheme(name, 3, draft_probability=draft_probability).law
    draft = torch.tensor([0.24, 0.22, 0.2, 0.18, 0.16], dtype=torch.float64)
    draft = torch.stack([draft, draft.roll(1), draft.roll(2)]) if name.startswith("distinct") else draft
    drawn, weight = dataclasses.replace(law, draft_probability=1.0).tuples(draft)
    rows, values = draft.expand(len(drawn), *draft.shape), torch.tensor([[1, -0.3, 0.7, 0.1, 3], [0, 2, 5, 0.4, -1]]).T
    on = surprises(law, rows, drawn, drawn, values.double())
    off = surprises(law, rows, drawn, torch.full_like(drawn, -2), values.double())
    mean = weight @ (draft_probability * on + (1 - draft_probability) * off)
    assert mean.abs().max() < 1e-14
    assert on.abs().max() > 0.1


@pytest.mark.parametrize(("kind", "tokens_alone"), [("near", 0.0181), ("far", 0.0085)])
def test_exact_laws_show_smaller_biases_than_ten_times_as_many_tokens(kind: str, tokens_alone: float) -> None:
    """With 5,000 tuples of 4,096 tokens; `tokens_alone` is what chi-square on 50,000 emitted tokens reached."""
    found = sample(md.scheme("iid:lorenz", 2), 4096, kind, 5_000, Alarm(1e-6 / 8), 0)
    assert not found.biased
    assert found.smallest_bias < tokens_alone


# Settings, reports, messages


def float32_rule(target: Tensor, draft: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """Right but for rounding."""
    outcome = recursive_rejection(target.float(), draft.float(), drafted, Iid(drafted.shape[-1]))
    return outcome.accept, outcome.residual


def test_a_stated_deviation_counts() -> None:
    strict = md.audit(float32_rule, law="iid", **ONLY_EXACT)
    assert strict.biased
    assert "state it: within=1e-5" in strict.sentence
    stated = md.audit(float32_rule, law="iid", within=1e-5, vocabulary=300, trials=4_000)
    assert stated.verdict == "lossless within its stated deviation"
    assert md.audit(MUTANTS["accepts 5 % too often"].rule, law="iid", within=1e-5, **ONLY_EXACT).biased


def test_outcomes_that_are_no_laws_are_found() -> None:
    """It averages to the target, and yet nobody can draw a token with probability 1.2."""

    def impossible(target: Tensor, draft: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        outcome = recursive_rejection(target, draft, drafted, Iid(drafted.shape[-1]))
        accept = outcome.accept + 0.5
        return accept, outcome.residual.scatter_add(-1, drafted, torch.full_like(accept, -0.5))

    report = md.audit(impossible, law="iid", **ONLY_EXACT)
    assert report.deviation < 1e-12
    assert report.biased
    assert "outcomes that are no law" in report.sentence
    not_numbers = md.audit(lambda p, q, x: (p.gather(-1, x) * float("nan"), p), law="iid", **ONLY_EXACT)
    assert not_numbers.biased


def test_a_rule_may_change_its_arguments() -> None:
    def destructive(target: Tensor, draft: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
        accept, residual = EXAMPLES["matching"](target, draft, drafted)
        for values in (target, draft, drafted):
            values.zero_()
        return accept, residual

    assert md.audit(destructive, law="top", vocabulary=300, trials=1_000, walks=True).verdict == "lossless"


def test_the_same_seed_gives_the_same_report_and_json_has_no_surprises() -> None:
    first, second = (md.audit("iid:naive", seed=3, **CHEAP).as_dict() for _ in range(2))
    assert first == second
    assert json.loads(json.dumps(first, allow_nan=False)) == first
    keys = "name law drafts verdict sentence deviation total_variation exact statistical walks"
    assert set(keys.split()) <= first.keys()
    assert {"target", "draft", "drafts", "law"} <= first["exact"]["worst"].keys()
    assert {"smallest_bias", "p_values", "alarm", "acceptance", "optimum"} <= first["statistical"][0].keys()


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        (("iid:kseqq",), {}, "unknown scheme"),
        ((3,), {}, "cannot audit int"),
        ((lambda p, q, x: (p, q),), {}, "name the law that the drafts are drawn from"),
        ((lambda p, q, x: (p, q),), dict(law="iit"), "unknown drafting law 'iit'"),
        ((lambda p, q: p,), dict(law="iid"), "cannot call a verifier with the arguments"),
        ((lambda p, q, x: p,), dict(law="iid"), "returns two tensors"),
        ((lambda p, q, x: (p, p),), dict(law="iid"), "the rule's accept has shape"),
        ((lambda p, q, x, generator: p,), dict(law="iid", vocabulary=9), "one token id for each"),
        ((lambda p, q, x, generator: x,), dict(law="iid", vocabulary=()), "give vocabulary sizes"),
        ((lambda p, q, x, generator: x,), dict(law="iid", walks=True), "cannot be walked with"),
        (("iid:naive",), dict(law="iid"), "leave out law='iid'"),
        (("iid:naive",), dict(anchors=2), "has no setting anchors"),
        (("iid:naive",), dict(vocabulary=1), "tell nothing"),
        (("iid:naive",), dict(trials=0), "tell nothing"),
        (("iid:naive",), dict(within=-1), "no total variation"),
        (("iid:naive",), dict(odds=0), "make no test"),
        (("iid:naive",), dict(pairs=[([0.5, 0.4], [0.5, 0.4])]), "draft of pair 0 .* sums to 0.9"),
        (("iid:naive",), dict(pairs=[([0.5, 0.5], [1.0])]), "pair 0 has shapes"),
        (("iid:naive",), dict(pairs=[]), "no pairs"),
        (("iid:naive",), dict(trees=["9x9"]), "too many to enumerate"),
        (("spechub:naive",), dict(trees=["3"]), "cannot draw the trees"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_bad_input_gets_advice(arguments: tuple, settings: dict, message: str) -> None:
    with pytest.raises(md.AdviceError, match=message):
        md.audit(*arguments, **settings)


BRIEF = ["--vocabulary", "64", "--trials", "1000", "--trees", "2"]


def run(*arguments: str):
    return CliRunner().invoke(app, ["audit", *arguments])


def test_command() -> None:
    result = run("iid:lorenz", *BRIEF)
    assert result.exit_code == 0, result.output
    assert "iid:lorenz is lossless" in result.output
    report = json.loads(run("anchored:naive,draft_probability=0.5", *BRIEF, "--json").stdout)
    assert (report["verdict"], report["draft_probability"]) == ("lossless", 0.5)
    assert [part["vocabulary"] for part in report["statistical"]] == [64, 64]


@pytest.mark.parametrize(
    "arguments",
    [
        ["iid:lorentz"],
        [],
        ["iid:naive", "--all"],
        ["iid:naive", "--trees", "0"],
        ["anchored:lorenz,draft_probability=0"],
        ["anchored:lorenz,draft_probability=0.5", "--draft-probability", "0.6"],
        ["anchored:lorenz", "--draft-probability", "0"],
        ["iid:naive", "--corners", "100", "--trials", "500"],
        ["iid:max_flow", "--corners", "100"],
        ["--all", "--draft-probability", "0.5"],
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_command_advises_on_one_line(arguments: list) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("multidraft: ")
    assert result.stderr.count("\n") == 1


def test_command_fails_where_a_verdict_is_not_the_expected_one(monkeypatch) -> None:
    """`--all` on one scheme and two mutants, one of which turns out not to be guilty."""
    guilty = "forgets the residual"
    monkeypatch.setattr("multidraft_research.cli.audit.schemes", lambda: ["iid:naive"])
    innocent = dataclasses.replace(MUTANTS[guilty], law="top", rule=EXAMPLES["matching"])
    monkeypatch.setattr("multidraft_research.audits.mutants.MUTANTS", {guilty: MUTANTS[guilty], "innocent": innocent})
    arguments = ["--all", "--vocabulary", "64", "--trials", "5000", "--trees", "2"]
    result = run(*arguments, "--json")
    assert result.exit_code == 1
    found = {item["name"]: item["as_expected"] for item in json.loads(result.stdout)["audits"]}
    assert found == {"iid:naive": True, guilty: True, "innocent": False}
    assert "Not as expected: innocent." in run(*arguments).output


@pytest.mark.slow
def test_command_over_everything() -> None:
    result = run("--all")
    assert result.exit_code == 0, result.output


def test_command_tries_corners() -> None:
    result = run("iid:lorenz", "--corners", "100", "--json")
    assert result.exit_code == 0, result.output
    tried = json.loads(result.stdout)["corners"]["iid:lorenz"]
    assert tried["pairs"] == 100
    assert 0 < tried["worst"] <= 1


def test_command_tells_errors_in_corners(monkeypatch) -> None:
    """A law that is off by 1e-11 is not excused by rounding."""
    tried = Corners(pairs=25, tuples=100, law=10.0)
    monkeypatch.setattr("multidraft_research.audits.corners.try_corners", lambda *_: tried)
    result = run("iid:lorenz", "--corners", "25")
    assert result.exit_code == 1
    assert " 10 " in result.output


def test_the_documented_example_prints_what_the_page_says(capsys) -> None:
    page = (Path(__file__).parents[2] / "docs" / "lossless.md").read_text()
    code, printed = page.split("```python\n")[1].split("```")[0], page.split("```text\n")[1].split("```")[0]
    exec(code, {})
    assert capsys.readouterr().out == printed
