"""Rules from outside: registered, imported by name or passed on, they go wherever a scheme of ours does."""

import importlib
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from commands import ends_with_advice, run

import multidraft as md
from multidraft.cli.imports import IMPORTED_MODULES
from multidraft.verification import registry
from multidraft.verification.laws import Iid
from multidraft.verification.rules.recursive_rejection import recursive_rejection
from multidraft.zoo import load_pair

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_rule.py"
ONLY_EXACT = dict(drafts=2, vocabulary=())
PLACES = "no_such_package:register", f"{__name__}:register_one"
P, Q = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.5])


def naive(target, draft, drafted):
    """Accept where the target's own sample was drafted."""
    accept = target.gather(-1, drafted)
    return accept, target.scatter(-1, drafted, 0.0)


def register_one() -> None:
    """What a package's entry point does."""
    md.register("mine:rule", law="iid", rule=naive)


@pytest.fixture(autouse=True)
def forgotten(monkeypatch):
    """No test leaves a scheme behind."""
    for name in ("mine:naive", "mine:rule", "mine:right", "mine:wrong"):
        monkeypatch.setitem(registry.SCHEMES, name, None)
        del registry.entries()[name]


@pytest.fixture
def module(tmp_path, monkeypatch) -> str:
    """A module that can be imported, with the rules of the example."""
    (tmp_path / "rules_of_mine.py").write_text(EXAMPLE.read_text())
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "rules_of_mine", raising=False)
    return "rules_of_mine"


@pytest.fixture
def module_folder(tmp_path, monkeypatch) -> Iterator[Path]:
    """A current folder where Python does not look for modules, with one that notes in a file that it has run."""
    (tmp_path / "top.py").write_text(f"open('ran', 'w').close()\n{EXAMPLE.read_text().partition('for name')[0]}")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.delitem(sys.modules, "top", raising=False)
    yield tmp_path
    IMPORTED_MODULES.clear()


def test_the_example_audits_both_rules(capsys) -> None:
    runpy.run_path(str(EXAMPLE))
    right, wrong = capsys.readouterr().out.splitlines()
    assert (right, wrong) == ("mine:right: lossless", "mine:wrong: biased")
    assert len(EXAMPLE.read_text().splitlines()) <= 30


def test_a_registered_rule_is_listed_and_found() -> None:
    md.register("mine:naive", law="iid", rule=naive, source="here")
    entry = next(entry for entry in md.schemes() if entry["name"] == "mine:naive")
    assert (entry["law"], entry["rule"], entry["source"]) == ("iid", "naive", "here")
    assert [entry["name"] for entry in md.schemes() if entry["registered"]] == ["mine:naive"]
    (line,) = [line for line in run("schemes").stdout.splitlines() if "mine:naive" in line]
    assert "not audited" in line
    assert "yes" not in line
    assert md.scheme("mine:naive", 1).acceptance_rate(P, Q) == md.scheme("iid:naive", 1).acceptance_rate(P, Q)


@pytest.mark.parametrize("form", ["registered", "function", "imported", "wrong", "with a law"])
def test_every_form_is_audited(form: str, module: str) -> None:
    md.register("mine:naive", law="iid", rule=naive)
    importlib.import_module(module)
    forms = {
        "registered": lambda: md.audit("mine:naive", **ONLY_EXACT),
        "function": lambda: md.audit(md.scheme(naive, 1, law="iid"), vocabulary=()),
        "imported": lambda: md.audit(f"{module}:right,law=iid", **ONLY_EXACT),
        "wrong": lambda: md.audit(f"{module}:wrong,law=iid", **ONLY_EXACT),
        "with a law": lambda: md.audit(recursive_rejection, law=Iid(2), vocabulary=(), trees=["2"]),
    }
    report = forms[form]()
    assert report.biased == (form in ("registered", "wrong"))  # the first counts two equal drafts twice
    assert report.verdict == ("biased" if report.biased else "lossless")
    assert form != "wrong" or report.sentence.startswith(f"{module}:wrong is biased")


@pytest.mark.parametrize("name", ["top:naiv", "top:right", "top:right,law=iid"])
def test_no_name_runs_a_file_of_the_current_folder(name: str, module_folder: Path) -> None:
    with pytest.raises(md.AdviceError, match=r"unknown scheme 'top:\w+'; .*--import MODULE"):
        md.scheme(name)
    ends_with_advice(run("audit", name), "unknown scheme 'top:")
    assert not (module_folder / "ran").exists()


@pytest.mark.parametrize("name", ["rules_of_mine:right", "rules_of_mine:rihgt"])
@pytest.mark.parametrize("law", [None, "iid"])
def test_a_name_imports_nothing(name: str, law: str | None, module: str) -> None:
    """Whether it is one of a registered scheme that is mistyped, or a place in a module that Python would find."""
    with pytest.raises(md.AdviceError, match=r"unknown scheme.*imported first"):
        md.scheme(name, law=law)
    with pytest.raises(md.AdviceError, match="unknown scheme"):
        md.scheme(f"{name},law=iid")
    assert module not in sys.modules
    importlib.import_module(module)
    assert md.scheme("rules_of_mine:right", law="iid").law.name == "iid"
    with pytest.raises(md.AdviceError, match="has no rihgt"):
        md.scheme("rules_of_mine:rihgt", law="iid")


@pytest.mark.parametrize("name", ["mine:right", "top:right,law=iid"])
def test_the_command_line_imports_what_it_is_asked_to(name: str, module_folder: Path) -> None:
    """Whether the module registers a name, or has a rule to name."""
    result = run("--import", "top", "audit", name, "--drafts", 1, "--vocabulary", 16, "--trials", 100, "--json")
    assert result.exit_code == 0, result.output
    assert (module_folder / "ran").exists()
    ends_with_advice(run("--import", "no_such_module", "schemes"), "--import no_such_module fails with ModuleNotFound")
    (module_folder / "broken.py").write_text("raise OSError('several\\nlines')")
    ends_with_advice(run("--import", "broken", "schemes"), "--import broken fails with OSError: several lines")


def test_an_installed_package_that_fails_is_left_out(tmp_path, monkeypatch, caplog) -> None:
    """The schemes of the others are there, and one line says which are not."""
    (folder := tmp_path / "rules_of_others-1.0.dist-info").mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: rules-of-others\nVersion: 1.0\n")
    points = "".join(f"p{number} = {place}\n" for number, place in enumerate(PLACES))
    (folder / "entry_points.txt").write_text(f"[{registry.ENTRY_POINT_GROUP}]\n{points}")
    monkeypatch.syspath_prepend(tmp_path)
    schemes = registry.entries.__wrapped__()
    assert "mine:rule" in schemes
    (line,) = caplog.messages
    assert line.startswith("the schemes of no_such_package:register are left out, for it fails with ModuleNotFound")


def test_an_unknown_name_is_told_what_comes_closest() -> None:
    for name, near in {"iid:lornez": "iid:lorenz", "topp:naive": "top:naive", "x" * 10_000: "unknown"}.items():
        with pytest.raises(md.AdviceError, match=near) as caught:
            md.scheme(name)
        assert len(str(caught.value)) < 300
        assert "lists all" in str(caught.value)


def test_it_decodes_with_the_walk_that_it_is_right_for() -> None:
    pair, rule = load_pair(), md.scheme(naive, 1, law="iid")
    settings = dict(scheme=rule, tree="1x1", max_new_tokens=8)
    with pytest.raises(md.AdviceError, match="use walk='commit'"):
        md.generate(pair.target, pair.draft, [[1, 2, 3]], **settings)
    tokens, _ = md.generate(pair.target, pair.draft, [[1, 2, 3]], walk="commit", **settings)
    assert len(tokens[0]) == 8


def test_settings_make_two_schemes_of_one_rule() -> None:
    coarse, fine = md.scheme("iid:binned_lorenz", bins=8), md.scheme("iid:binned_lorenz", bins=16)
    assert coarse != fine
    assert coarse.with_drafts(2).entry.rule.function.bins == 8
    assert md.scheme(naive, 1, law="iid") != md.scheme(lambda p, q, x: naive(p, q, x), 1, law="iid")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: md.register("iid:lorenz", law="iid", rule=naive), "multidraft's own"),
        (lambda: md.register("mine", law="iid", rule=naive), "write one as in mine:rule"),
        (lambda: md.register("mine:rule", law="idd", rule=naive), "laws are iid, without_replacement"),
        (lambda: md.register("mine:rule", law="iid", rule=lambda p: p), "cannot call a rule with the arguments p"),
        (lambda: md.register("mine:rule", law="iid", rule=3), "give a function"),
        (lambda: md.register("mine:rule", law="iid", rule=naive, speed=3), "a scheme has no speed"),
        (lambda: md.scheme(naive), "name the law that the drafts are drawn from"),
        (lambda: md.scheme("no_such_module:rule"), "unknown scheme"),
        (lambda: md.scheme("json:no_such_rule"), "the module json has no no_such_rule"),
        (lambda: md.scheme(3), "write law:rule"),
        (lambda: md.scheme(md.scheme("iid:naive"), bins=3), "has its own law and settings"),
    ],
)
def test_what_is_no_rule_gets_advice(call, message: str, unchecked) -> None:
    with pytest.raises(md.AdviceError, match=message):
        call()
