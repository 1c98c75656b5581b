"""The audit finds every scheme lossless and every mutant guilty, in each of its parts, with the odds it states."""

import dataclasses
import json
import runpy
from itertools import cycle
from pathlib import Path

import pytest
import torch
from commands import ends_with_advice, printed, run
from multidraft_research.audits.mutants import MUTANTS, audit_mutant
from multidraft_research.solvers.global_resolution_rule import GlobalResolution
from torch import Tensor

import multidraft as md
from multidraft.auditing.pairs import drafting, large_pair
from multidraft.auditing.statistical import Bets, Features, sample, surprises
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


class Unknown(Iid):
    """A law whose optimum nobody has a formula for."""

    optimal = None


def test_the_optimum_of_a_law_without_a_formula_is_a_solvers() -> None:
    known, solved = (md.audit(recursive_rejection, law=law(2), vocabulary=()).exact.optimum for law in (Iid, Unknown))
    assert solved == pytest.approx(known, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in SMALL if SCHEMES[name].law.can_repeat])
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
    assert "walking (impatient) over trees 2x1 of 3 tokens" in str(report)


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
    worst = report.exact.worst
    assert worst.law == pytest.approx(law, abs=1e-12)
    assert f"{report.total_variation:.2f}" == total_variation
    assert report.biased == (verifier != "matching")
    assert report.replay() == worst
    if report.biased:
        assert f"target={worst.target} with draft={worst.draft}" in report.sentence


def test_the_example_prints_the_numbers(capsys) -> None:
    EXAMPLES["main"]()
    printed = capsys.readouterr().out
    assert all(line in printed for line in ("total variation 0.30: biased", "0.00: lossless", "pairs=[("))


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
    table, mean, odds = features.table[:, features.parts[part]].double(), features.mean[features.parts[part]], 0.01
    p, q = (law.double() * (target > 0) / law[target > 0].double().sum() for law in (target, draft))
    bets = Bets(-mean, 1 - mean, 0.0, p @ table**2 - mean**2, 2_000, odds)
    leak = bets.smallest(features.shift[features.parts[part]])
    assert leak is not None
    assert leak < 0.7

    def alarms(law: Tensor, runs: int) -> int:
        tokens = torch.multinomial(law, 2_000 * runs, True, generator=generator).view(runs, 2_000)
        return sum(bets.p_value(table[row] - mean) < odds for row in tokens)

    assert alarms(p, 500) < 500 * odds + 6 * (500 * odds) ** 0.5
    assert alarms((1 - leak) * p + leak * q, 200) >= 194


@pytest.mark.parametrize("name", ["iid:lorenz", "anchored:lorenz", "without_replacement:naive", "distinct:naive"])
@pytest.mark.parametrize("draft_probability", [1.0, 0.6])
def test_surprises_are_zero_on_average(name: str, draft_probability: float) -> None:
    """Summed over every tuple, and with the coin that decides whether to draft at all."""
    law = md.scheme(name, 3, draft_probability=draft_probability).law
    draft = torch.tensor([0.24, 0.22, 0.2, 0.18, 0.16], dtype=torch.float64)
    draft = torch.stack([draft, draft.roll(1), draft.roll(2)]) if name.startswith("distinct") else draft
    drawn, weight = dataclasses.replace(law, draft_probability=1.0).tuples(draft)
    rows, values = draft.expand(len(drawn), *draft.shape), torch.tensor([[1, -0.3, 0.7, 0.1, 3], [0, 2, 5, 0.4, -1]]).T
    on, off = (
        surprises(law, rows, torch.full((len(drawn), 1), drafts), drawn, values.double()) for drafts in (True, False)
    )
    mean = weight @ (draft_probability * on + (1 - draft_probability) * off)
    assert mean.abs().max() < 1e-14
    assert on.abs().max() > 0.1


@pytest.mark.parametrize("name", ["greedy:maximal_coupling", "without_replacement:recursive_rejection", "iid:lorenz"])
def test_rare_tuples_raise_no_alarm(name: str) -> None:
    """100 audits of twelve tokens; two tests of each are below 1e-5 with odds of 0.2 % in all if the bets are fair.

    Bets on numbers that were cut to what the first draws showed were not: some tuple in 200 moves the mean.
    """
    scheme = md.scheme(name, 2)
    p_values = [sample(scheme, 12, "near", 500, 1e-6, 0.0, seed).p_values.values() for seed in range(100)]
    assert min(map(min, p_values)) > 1e-5


@pytest.mark.parametrize(("kind", "tokens_alone"), [("near", 0.0181), ("far", 0.0085)])
def test_exact_laws_show_smaller_biases_than_five_times_as_many_tokens(kind: str, tokens_alone: float) -> None:
    """With 10,000 tuples of 4,096 tokens; `tokens_alone` is what chi-square on 50,000 emitted tokens reached."""
    sampled = sample(md.scheme("iid:lorenz", 2), 4096, kind, 10_000, 1e-6 / 8, 0.0, 0)
    assert not sampled.biased
    assert sampled.smallest_bias < tokens_alone


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
        ((3,), {}, "write law:rule"),
        ((lambda p, q, x: (p, q),), {}, "name the law that the drafts are drawn from"),
        ((lambda p, q, x: (p, q),), dict(law="iit"), "unknown drafting law 'iit'"),
        ((lambda p, q: p,), dict(law="iid"), "cannot call a rule with the arguments"),
        ((lambda p, q, x: p,), dict(law="iid"), "returns two tensors"),
        ((lambda p, q, x: (p, p),), dict(law="iid"), "accept of the rule .* has shape"),
        ((lambda p, q, x, generator: p,), dict(law="iid", vocabulary=9), "one token id for each"),
        ((lambda p, q, x, generator: x,), dict(law="iid", vocabulary=()), "give vocabulary sizes"),
        ((lambda p, q, x, generator: x,), dict(law="iid", walks=True), "cannot be walked with"),
        (("iid:naive",), dict(law="iid"), "has no setting law"),
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


def audit(*arguments: str):
    return run("audit", *arguments)


def test_command() -> None:
    assert "iid:lorenz is lossless" in audit("iid:lorenz", *BRIEF).output
    report = printed("audit", "anchored:naive,draft_probability=0.5", *BRIEF)
    assert (report["verdict"], report["draft_probability"]) == ("lossless", 0.5)
    assert [part["vocabulary"] for part in report["statistical"]] == [64, 64]
    tried = printed("audit", "iid:lorenz", "--corners", "100")["corners"]["iid:lorenz"]
    assert (tried["pairs"], tried["worst"] <= 1) == (100, True)
    assert "rounding allows" in audit("iid:lorenz", "--corners", "25").output


@pytest.mark.usefixtures("unchecked")
def test_command_advises_on_one_line() -> None:
    for arguments, advice in (
        (["iid:lorentz"], "unknown scheme"),
        ([], "give one scheme"),
        (["iid:naive", "--all"], "give one scheme"),
        (["iid:naive", "--trees", "0"], "draft"),
        (["anchored:lorenz,draft_probability=0.5", "--draft-probability", "0.6"], "set it once"),
        (["iid:lorenz,drafts=3"], "give the number of drafts beside it"),
        (["anchored:lorenz", "--draft-probability", "0"], "out of range"),
        (["iid:naive", "--corners", "100", "--trials", "500"], "no meaning with --corners"),
        (["iid:max_flow", "--corners", "100"], "small vocabularies only"),
        (["--all", "--draft-probability", "0.5"], "no meaning with --all"),
    ):
        ends_with_advice(audit(*arguments), advice)


def test_command_fails_where_a_verdict_is_not_the_expected_one(monkeypatch) -> None:
    """`--all` on one scheme and two mutants, one of which turns out not to be guilty."""
    guilty = "forgets the residual"
    monkeypatch.setitem(SCHEMES, "mine:broken", None)
    md.register("mine:broken", law="iid", rule=lambda p, q, x: 1 / 0)
    monkeypatch.setattr("multidraft_research.cli.audit.schemes", lambda: ["mine:broken", "iid:naive"])
    innocent = dataclasses.replace(MUTANTS[guilty], law="top", rule=EXAMPLES["matching"])
    monkeypatch.setattr("multidraft_research.audits.mutants.MUTANTS", {guilty: MUTANTS[guilty], "innocent": innocent})
    arguments = ["--all", "--vocabulary", "64", "--trials", "5000", "--trees", "2"]
    result = audit(*arguments, "--json")
    assert result.exit_code == 1
    as_expected = {item["name"]: item["as_expected"] for item in json.loads(result.stdout)["audits"]}
    assert as_expected == {"mine:broken": False, "iid:naive": True, guilty: True, "innocent": False}
    assert "Not as expected: mine:broken; mine:broken; innocent." in audit(*arguments).output
    monkeypatch.setattr("multidraft_research.audits.corners.ROUNDING", {torch.float64: 1e-20, torch.float32: 1e-20})
    assert audit("iid:lorenz", "--corners", "25").exit_code == 1  # an error that rounding does not excuse
