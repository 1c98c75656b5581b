"""The plug-in of pytest, found by the entry point that pyproject.toml names, in runs of pytest of their own."""

import tomllib
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
JUDGE = Path(__file__).parents[1]
SAMPLER = """
import math
import random
import sys

def sampler(law, rng=random):
    def sample(prompt, n):
        return rng.choices("ab", law, k=n), [{"a": math.log(0.6), "b": math.log(0.4)}] * n
    return sample

INNOCENT, BIASED, FEW = sampler((0.6, 0.4)), sampler((0.8, 0.2)), {"budget_tokens": 2000}  # odds of 1e-6 at most
"""


@pytest.fixture
def run(pytester, monkeypatch):
    """Runs tests written after the samplers above, where the package's entry points are installed."""
    facts = pytester.mkdir("installed") / "multidraft_judge-1.dist-info"
    facts.mkdir()
    points = tomllib.loads((JUDGE / "pyproject.toml").read_text())["project"]["entry-points"]["pytest11"]
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: multidraft-judge\nVersion: 1\n")
    (facts / "entry_points.txt").write_text(
        "\n".join(["[pytest11]", *(f"{name} = {module}" for name, module in points.items())])
    )
    monkeypatch.setenv("PYTHONPATH", f"{facts.parent}:{JUDGE}")

    def call(tests: str, *options: str) -> pytest.RunResult:
        pytester.makepyfile(SAMPLER + tests)
        return pytester.runpytest_subprocess("-p", "no:cacheprovider", *options)

    return call


def test_an_innocent_sampler_passes_and_a_biased_one_fails(run):
    result = run("""
def test_innocent(judge):
    judge(INNOCENT, **FEW)

def test_biased(judge):
    judge(BIASED, **FEW)
""")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*judge(BIASED, [*][*]FEW)*",
            "E*AssertionError: sample is guilty: its tokens are not drawn from the law that it reports",
            "E*bets against the reported law: 10^*, guilty from 10^6.0: *",
            "E*the bets find an innocent one guilty with probability 1e-06 at most",
        ]
    )
    result.stdout.no_fnmatch_line("*raise AssertionError*")  # the trace ends in the test


def test_a_verdict_is_returned_for_asserts_of_ones_own(run):
    result = run("""
def test_verdicts(judge):
    assert judge(INNOCENT, **FEW).innocent
    assert judge(BIASED, check=False, **FEW).guilty

def test_an_assert_that_fails(judge):
    assert judge(BIASED, check=False, **FEW).innocent
""")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*where False = <Verdict, odds of a false alarm 1e-06, * tokens, guilty: its *"])


def test_what_cannot_be_judged_does_not_pass(run):
    result = run("""
def test_nothing(judge):
    judge(lambda prompt, n: "text")
""")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*AdviceError: sample(prompt, n) returned 'text'; return tokens*"])


def test_draws_are_the_same_in_every_run_and_others_go_on_as_before(run):
    """Its twins: other seeds give other texts, and without the fixture the generator moves on."""
    result = run("""
def texts(judge, **settings):
    seen = []
    judge(lambda prompt, n: seen.append(answer := INNOCENT(prompt, n)) or answer, budget_tokens=300, **settings)
    return [tokens for tokens, _ in seen]

def test_seeds(judge):
    random.seed(7)
    first, after = texts(judge), random.random()
    random.seed(7)
    assert random.random() == after
    assert texts(judge) == first != texts(judge, seed=1)
    INNOCENT("", 3)
    assert random.random() != after
""")
    result.assert_outcomes(passed=1)


def test_the_judge_is_imported_when_a_test_asks_for_it(run):
    result = run("""
def ours():
    return {name for name in sys.modules if name.startswith("multidraft_judge")}

def test_one_that_does_not_ask():
    assert ours() == {"multidraft_judge", "multidraft_judge.pytest_plugin"}

def test_one_that_does(judge):
    judge(INNOCENT, **FEW)
    assert "multidraft_judge.judgement" in ours()
""")
    result.assert_outcomes(passed=2)


def test_a_fixture_of_this_name_of_ones_own_is_left_alone(run):
    tests = """
import pytest

@pytest.fixture
def judge():
    return "mine"

def test_mine(judge):
    assert judge == "mine"
"""
    run(tests).assert_outcomes(passed=1)
    run(tests, "-p", "no:multidraft_judge").assert_outcomes(passed=1)


def test_it_can_be_switched_off(run):
    result = run("def test_it(judge):\n    pass\n", "-p", "no:multidraft_judge")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'judge' not found*"])
