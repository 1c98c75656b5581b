"""The tables of the report's page are those of a run's journals, in Markdown."""

import json
import sys

import report_page

CELLS = [["acceptance", row, float(n), n / total, 1.0] for n in (2, 10) for row, total in (("a", 20), ("b", 40))]


def test_a_table_is_that_of_its_journal(tmp_path, monkeypatch, capsys):
    records = [{"study": "top-k"}, *({"id": str(i), "cells": CELLS} for i in range(3))]
    (tmp_path / "top-k.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    monkeypatch.setattr(report_page, "PARTS", [report_page.Part("top-k", "acceptance", "Top k", "Per cent.")])
    monkeypatch.setattr(sys, "argv", ["report_page.py", str(tmp_path)])
    report_page.main()
    assert capsys.readouterr().out.splitlines() == [
        "",
        "## Top k",
        "",
        "Per cent.",
        "",
        "| drafts (T = 1) | 2 | 10 |",
        "| --- | ---: | ---: |",
        "| a | 10.00 ± 0.00 | 50.00 ± 0.00 |",
        "| b | 5.00 ± 0.00 | 25.00 ± 0.00 |",
    ]


def test_every_table_is_of_a_study_that_there_is():
    for part in report_page.PARTS:
        assert part.panel in report_page.study_of(part).panels
