"""Journals: one process at a time, a torn end is cut off, and any other line that cannot be read is named."""

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.io.journal import Journal

SETTINGS = {"run": "a test", "seed": 3}
RECORDS = [{"id": index, "text": "naïve \ud800 \x00", "number": 0.1 + 0.2} for index in range(4)]
OTHER = """
import sys
from pathlib import Path
from multidraft.io.files import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def made_journal(path: Path) -> Path:
    """A finished journal."""
    journal = Journal(path, SETTINGS)
    for record in RECORDS:
        journal.append(record)
    return path


@pytest.fixture
def busy(tmp_path) -> Iterator[subprocess.Popen]:
    """Another process that writes to the folder; it ends when its input does."""
    with subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process


def test_an_end_that_was_torn_anywhere_is_cut_off(tmp_path):
    """As after a kill in the middle of a line, the first one too."""
    whole = made_journal(tmp_path / "j").read_bytes()
    for size in range(len(whole) + 1):
        (tmp_path / "j").write_bytes(whole[:size])
        journal = Journal(tmp_path / "j", SETTINGS)
        assert journal.records == RECORDS[: max(whole[:size].count(b"\n") - 1, 0)]
        for record in RECORDS[len(journal.records) :]:
            journal.append(record)
        assert (tmp_path / "j").read_bytes() == whole


@pytest.mark.parametrize("number", [1, 2, 5])
@pytest.mark.parametrize("wrong", [b"once upon a time", b'{"id": ', b"", b"[]", b"\xff\xfe{}", b"\0" * 9, b"[" * 99999])
def test_a_line_that_is_no_record_is_named_and_the_file_left_as_it_is(tmp_path, number, wrong):
    lines = made_journal(tmp_path / "j").read_bytes().splitlines()
    lines[number - 1] = wrong
    content = b"\n".join(lines) + b"\n"
    (tmp_path / "j").write_bytes(content)
    with pytest.raises(AdviceError, match=rf"j line {number} .*remove this line and those after it") as raised:
        Journal(tmp_path / "j", SETTINGS)
    assert "\n" not in str(raised.value)
    assert (tmp_path / "j").read_bytes() == content
    assert [path.name for path in tmp_path.iterdir()] == ["j"]


def test_the_first_results_alone_can_be_kept(tmp_path):
    (tmp_path / "j").write_text("".join(json.dumps(record) + "\n" for record in [SETTINGS, *RECORDS]))
    journal = Journal(tmp_path / "j", SETTINGS)
    assert journal.records == RECORDS
    journal.keep(2)
    assert Journal(tmp_path / "j", SETTINGS).records == RECORDS[:2]


def test_a_record_is_on_the_disk_before_the_next_is_made(tmp_path, monkeypatch):
    """At a full disk that shows only then, the run ends with one line."""

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    journal = Journal(tmp_path / "j", SETTINGS)
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(AdviceError, match=r"cannot write .*No space left"):
        journal.append(RECORDS[0])
    assert journal.records == []


def test_a_place_is_held_by_one_process_until_it_ends(tmp_path, busy):
    refused = f"is written by process {busy.pid} on .* since .*--wait"
    with pytest.raises(AdviceError, match=refused), files.hold(tmp_path):
        pass
    made_journal(tmp_path / "j")  # another place
    busy.kill()
    busy.wait()
    with files.hold(tmp_path), files.hold(tmp_path):  # and one process may hold a place twice
        pass


def test_a_second_run_waits_for_the_first(tmp_path, busy):
    class Ends(logging.Handler):
        """The first ends when it is named."""

        def emit(self, record: logging.LogRecord) -> None:
            busy.stdin.close()

    files.NOTES.addHandler(ends := Ends())
    try:
        with files.hold(tmp_path, wait=True):
            assert busy.wait(60) == 0
    finally:
        files.NOTES.removeHandler(ends)


def test_a_journal_is_given_back_when_nobody_has_it(tmp_path):
    journal = Journal(made_journal(tmp_path / "j"), SETTINGS)
    refused = [sys.executable, "-c", OTHER, str(tmp_path / "j")]
    assert b"is written by process" in subprocess.run(refused, capture_output=True, input=b"").stderr
    del journal
    assert subprocess.run(refused, capture_output=True, input=b"").returncode == 0
