"""Places that long runs write to: one run at a time, whichever command it is, and what two have left can be mended."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from captures import keep
from multidraft_research.captures.folder import MANIFEST, Capture
from multidraft_research.studies.acceptance import random_pairs
from typer.testing import CliRunner

from multidraft.cli.main import app
from multidraft.errors import AdviceError

OTHER = """
import sys
from pathlib import Path
from multidraft.io.lock import Held
held = [Held(Path(place)) for place in sys.argv[1:]]
print("held", flush=True)
sys.stdin.read()
"""
COMMANDS = {  # and the place that is held, in the folder that {} stands for
    "generate --prompt Once --jsonl {}/results": "results",
    "generate --prompt Once --jsonl {}/shards --workers 2": "shards",
    "generate --prompt Once --trace {}/trace": "trace",
    "tune --out {}/plan.json": "plan.json",
    "capture --limit 1 --out {}/kept": f"kept/{MANIFEST}",
    "study temperature --limit 1 --out {}/study": f"study/capture/{MANIFEST}",
    "study trees --limit 1 --out {}/trees": "trees/trees.jsonl",
    "study solve-time --out {}/solvers": f"solvers/capture/{MANIFEST}",
    "train --corpus {}/text --out {}/pair": "pair",
    "distill --capture {}/made --out {}/taught": "taught",
}


def run(command: str):
    """The result of `multidraft ...`."""
    return CliRunner().invoke(app, command.split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    """A folder with what commands read, whose other places another process holds."""
    folder = tmp_path_factory.mktemp("places")
    (folder / "text").write_text("Once upon a time. " * 40)
    keep(folder / "made", *(random_pairs(2, 10, seed) for seed in range(8)))
    places = [sys.executable, "-c", OTHER, *(str(folder / place) for place in COMMANDS.values())]
    with subprocess.Popen(places, stdin=-1, stdout=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield folder


@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_another_run_writes_to_is_left_alone(folder, command):
    result = run(command.replace("{}", str(folder)))
    assert result.exit_code == 2, result.output
    assert "is written by process" in result.stderr
    assert "--wait" in result.stderr
    assert not (folder / COMMANDS[command]).is_file()


def test_every_such_command_can_wait():
    for name in {command.partition(" --")[0] for command in COMMANDS}:
        assert "--wait" in run(f"{name} --help").stdout


def test_what_two_captures_left_in_one_folder_is_mended_by_the_command_that_makes_it(tmp_path):
    """The shards of one, beside the manifest of the other."""
    command = "capture --limit 2 --max-new-tokens 3 --out {}"
    for name, seed in ("whole", 0), ("both", 0), ("other", 1):
        assert run(command.format(tmp_path / name) + f" --seed {seed}").exit_code == 0
    file = "00001.safetensors"
    (tmp_path / "both" / file).write_bytes((tmp_path / "other" / file).read_bytes())
    with pytest.raises(AdviceError, match="run the command that makes it again"):
        Capture.open(tmp_path / "both").shard(1)
    assert run(command.format(tmp_path / "both")).exit_code == 0
    for path in (tmp_path / "whole").iterdir():
        assert (tmp_path / "both" / path.name).read_bytes() == path.read_bytes()
