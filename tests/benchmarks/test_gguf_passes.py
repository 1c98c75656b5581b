"""The benchmark of passes over GGUF files: every library that reads a file has its numbers; others are named."""

import json
import sys

import gguf_passes
import pytest
from ggufs import INSTALLED, tiny_file


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_every_library_that_reads_a_file_has_its_numbers(form, capsys, monkeypatch):
    file = tiny_file("llama")
    monkeypatch.setattr(sys, "argv", ["gguf_passes", str(file), "--tokens", "1", "8", "--rounds", "2", *form])
    gguf_passes.main()
    printed, errors = capsys.readouterr()
    assert errors.count("left out") == 2 - len(INSTALLED)
    for library in INSTALLED:
        assert library in printed
    if form:
        assert all(set(row["milliseconds"]) == {"1", "8", "keep one of 8"} for row in json.loads(printed))
