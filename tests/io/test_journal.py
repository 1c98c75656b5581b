"""Journals: one process at a time, every line with a checksum, and nothing is lost of what two runs have left."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from multidraft.errors import AdviceError
from multidraft.io import files
from multidraft.io.journal import DAMAGED_SUFFIX, Journal

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


def made(path: Path) -> Path:
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


@pytest.mark.parametrize("number", [1, 2, 4])
def test_a_changed_byte_is_found_wherever_it_is(tmp_path, number, caplog):
    """Every byte of a line, one after another: what comes before the line is kept, and the file as it was, too."""
    whole = made(tmp_path / "j").read_bytes()
    assert Journal(tmp_path / "j", SETTINGS).records == RECORDS
    assert [path.name for path in tmp_path.iterdir()] == ["j"]
    lines = whole.splitlines(keepends=True)
    start = len(b"".join(lines[:number]))
    for place in range(start, start + len(lines[number]) - 1, 7):
        changed = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        (tmp_path / "j").write_bytes(changed)
        caplog.clear()
        assert Journal(tmp_path / "j", SETTINGS).records == RECORDS[: number - 1]
        assert f"line {number + 1} was changed" in caplog.text
        assert (tmp_path / f"j{DAMAGED_SUFFIX}").read_bytes() == changed


def test_what_two_runs_wrote_into_one_file_is_mended(tmp_path):
    lines = made(tmp_path / "j").read_text().splitlines()
    twice = [lines[0], *(line for line in lines[1:] for _ in range(2))]
    (tmp_path / "j").write_text("\n".join(twice) + "\n")
    journal = Journal(tmp_path / "j", SETTINGS)
    assert journal.records == RECORDS[:1]
    for record in RECORDS[1:]:
        journal.append(record)
    assert (tmp_path / "j").read_text().splitlines() == lines


def test_journals_of_older_versions_have_no_checksums(tmp_path):
    (tmp_path / "j").write_text("".join(json.dumps(one) + "\n" for one in [SETTINGS, *RECORDS]))
    journal = Journal(tmp_path / "j", SETTINGS)
    assert journal.records == RECORDS
    journal.keep(2)
    assert Journal(tmp_path / "j", SETTINGS).records == RECORDS[:2]


def test_a_place_is_held_by_one_process_until_it_ends(tmp_path, busy):
    refused = f"is written by process {busy.pid} on .* since .*--wait"
    with pytest.raises(AdviceError, match=refused), files.hold(tmp_path):
        pass
    made(tmp_path / "j")  # another place
    busy.kill()
    busy.wait()
    with files.hold(tmp_path), files.hold(tmp_path):  # and one process may hold a place twice
        pass


def test_a_second_run_waits_for_the_first(tmp_path, busy, monkeypatch):
    monkeypatch.setattr(files, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(files.NOTES, "warning", lambda *words: busy.stdin.close())  # the first ends when it is named
    with files.hold(tmp_path, wait=True):
        assert busy.wait(60) == 0


def test_a_journal_is_given_back_when_nobody_has_it(tmp_path):
    journal = Journal(made(tmp_path / "j"), SETTINGS)
    refused = [sys.executable, "-c", OTHER, str(tmp_path / "j")]
    assert b"is written by process" in subprocess.run(refused, capture_output=True, input=b"").stderr
    del journal
    assert subprocess.run(refused, capture_output=True, input=b"").returncode == 0
