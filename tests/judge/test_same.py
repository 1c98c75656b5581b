"""With both packages installed, the judge of this one is that of multidraft-judge; without it, one line says so."""

import sys

import multidraft_judge
import pytest
from commands import ends_with_advice, run
from multidraft_judge.command import app
from typer.main import get_command

import multidraft as md
from multidraft.cli import main
from multidraft.errors import MissingExtra


def test_there_is_one_judge():
    assert md.judge is multidraft_judge.judge
    assert "judge" in run("--help").stdout
    ours = run("judge", "--help").stdout
    assert all(max(option.opts, key=len) in ours for option in get_command(app).params if option.name != "url")


def test_without_the_package_one_line_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "multidraft_judge", None)
    monkeypatch.setattr(main, "entry_points", lambda **_: ())
    with pytest.raises(MissingExtra, match="pip install"):
        md.judge("http://127.0.0.1:1", "x")
    ends_with_advice(run("judge", "http://127.0.0.1:1"), "this needs multidraft-judge; run in ")
