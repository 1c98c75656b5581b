"""Files are written whole by however many threads; a place is held also where the user's cache cannot be written."""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from multidraft.errors import AdviceError
from multidraft.io import files

HOLDS_BRIEFLY = """
import sys
from pathlib import Path
from multidraft.io.files import hold
with hold(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder in which nobody can write, root included: it lies below a file. And a folder beside it."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    (tmp_path / "output").mkdir()
    return tmp_path / "output"


def test_threads_that_write_into_one_folder_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every temporary file gets its content before any is put in place: with one name for all, the last one wins."""
    write_bytes, threads = Path.write_bytes, 4
    barrier = Barrier(threads)

    def together(path: Path, content: bytes) -> int:
        size = write_bytes(path, content)
        barrier.wait(10)
        return size

    monkeypatch.setattr(Path, "write_bytes", together)
    paths = [tmp_path / f"{number}.json" for number in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda path: files.write(path, path.name.encode()), paths))
    assert {path.name: path.read_bytes().decode() for path in tmp_path.iterdir()} == {p.name: p.name for p in paths}


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_permissions_that_a_plain_open_gives(tmp_path: Path, umask: int, mode: int) -> None:
    before = os.umask(umask)
    try:
        files.write(tmp_path / "report.json", b"content")
    finally:
        os.umask(before)
    assert (tmp_path / "report.json").stat().st_mode & 0o777 == mode


def test_without_a_cache_the_lock_lies_beside_the_output(no_cache: Path) -> None:
    """Two runs must still not write one file at once, and both may come before the output is there."""
    place = no_cache / "results.jsonl"
    command = [sys.executable, "-c", HOLDS_BRIEFLY, str(place)]
    with subprocess.Popen(command, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        refused = f"{re.escape(repr(str(place)))} is written by another process; wait for it with --wait"
        with pytest.raises(AdviceError, match=refused), files.hold(place):
            pass
        with files.hold(no_cache / "other.jsonl"):
            pass
    with files.hold(place), files.hold(place):
        files.write(place, b"content")
    assert place.read_bytes() == b"content"


def test_where_neither_the_cache_nor_the_output_can_be_written_the_output_is_named(no_cache: Path) -> None:
    place = no_cache.parent / "file" / "results.jsonl"
    with pytest.raises(AdviceError, match=re.escape(f"cannot write {str(place)!r}")), files.hold(place):
        pass
