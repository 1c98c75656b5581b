"""The report of all studies: one page that needs nothing else, whole and escaped."""

import base64
import re
from html.parser import HTMLParser

from captures import keep
from commands import run
from multidraft_research.cli import everything
from multidraft_research.studies.acceptance import random_pairs
from multidraft_research.studies.listed import LISTED
from multidraft_research.studies.on_captures import top_k
from multidraft_research.studies.running.report import page
from multidraft_research.studies.running.results import Results

CELLS = [[top_k.RATE, top_k.ALL, float(n), n / 20, 1.0] for n in (2, 10)]
RECORDS = [{"id": str(i), "cells": CELLS} for i in range(3)]


class Balance(HTMLParser):
    """Counts what is opened and closed, and keeps what is linked to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes) -> None:
        self.links += [value for name, value in attributes if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else() -> None:
    results = Results.of(top_k.STUDY, RECORDS, {"about": "a < b"})
    made = page("x & y", {"seed": 0}, {"top-k": (results, b"<svg/>")})
    parser = Balance()
    parser.feed(made)
    assert parser.open == []
    assert parser.links == ["#top-k", "data:image/svg+xml;base64," + base64.b64encode(b"<svg/>").decode()]
    assert "x &amp; y" in made
    assert "a &lt; b" in made
    assert made.index("10 drafts accept more than 2") < made.index("<details")  # what was found comes first
    assert 'class="shown"' in made  # ten drafts accept more than two, by the same in every prompt
    assert ">50.00 ± 0.00<" in made
    assert ">+40.00 ± 0.00<" in made  # the paired difference, in the same units


def test_all_studies_of_a_capture_are_one_command(tmp_path, monkeypatch) -> None:
    """Those that need models are left out where a capture was given."""
    few = {name: LISTED[name] for name in ("randomised", "top-k", "trees")}
    monkeypatch.setattr(everything, "LISTED", few)
    monkeypatch.setattr(everything, "OTHERS", {})
    folder = keep(tmp_path / "capture", *(random_pairs(2, 20, seed) for seed in range(3)))
    result = run("study", "all", "--capture", str(folder), "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert "10 drafts accept more than 2" in result.stdout
    made = (tmp_path / "run" / "report.html").read_text()
    assert re.findall(r'<details id="([a-z-]+)"', made) == ["randomised", "top-k"]
    assert made.count("data:image/svg+xml") == 2
    assert "<td>prompts</td><td>3</td></tr><tr><td>positions</td><td>6</td>" in made
