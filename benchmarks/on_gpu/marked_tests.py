"""The tests that need a GPU, in the Python that runs this: `pytest -m gpu`."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from on_gpu.asked import Line, PieceOptions, Skipped

ROOT = Path(__file__).parents[2]
NEEDED = ("pytest", "scipy", "hypothesis")
# Hints are checked where beartype is; there they are checked by `make test`. A newer library may warn of other things.
OPTIONS = ["-q", "-o", "addopts=-ra", "-W", "default", "-p", "no:cacheprovider", "-m", "gpu"]


def measure(piece_options: PieceOptions) -> list[Line]:
    """The summary; a failure fails the piece."""
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise Skipped(f"the tests need {', '.join(missing)}")
    if piece_options.device.type != "cuda":
        raise Skipped(f"the device is {piece_options.device}; tests for a GPU need one")
    # Other files may need packages that are not here.
    files = [str(file) for file in sorted((ROOT / "tests").rglob("test_*.py")) if "mark.gpu" in file.read_text()]
    workers = ["-n", "4"] if find_spec("xdist") else []
    command = [sys.executable, "-m", "pytest", *OPTIONS, *workers, *files]
    environment = os.environ | dict(PYTHONPATH=os.pathsep.join([str(ROOT), str(ROOT / "research")]))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    (piece_options.out / "tests.log").write_text(done.stdout + done.stderr)
    last = (done.stdout.strip().splitlines() or ["no output"])[-1]
    if done.returncode:
        raise RuntimeError(f"{last}; see {piece_options.out / 'tests.log'}")
    return [dict(tests=last)]
