"""All that awaits a GPU, in one go: what a pass, a step, a rule and a decoded token cost there.

    make gpu                                                     # PYTHON=python3 DEVICE=cuda OUT=runs/gpu HOURS=0.5
    python benchmarks/gpu.py --hours 0.5 --out runs/gpu          # the same; again, it goes on with what is left
    python benchmarks/gpu.py --device cpu --quick --out runs/dry    # tiny shapes, to see that it runs: some minutes

Each piece is a process of its own, which ends after ten minutes at most. What it found is a line of `pieces.jsonl` as
soon as it is done; a piece that is there is not run again. `report.md` and `report.json` say what is known so far.
Nothing is downloaded or installed: a piece whose packages are missing is skipped, and says so.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT)] * (str(ROOT) not in sys.path)  # where nothing could be installed

from on_gpu.asked import PieceOptions, Skipped  # noqa: E402
from on_gpu.pieces import PIECES, Piece  # noqa: E402
from on_gpu.report import write_report  # noqa: E402

from multidraft.cli.models import silence  # noqa: E402
from multidraft.errors import AdviceError  # noqa: E402
from multidraft.io import files  # noqa: E402
from multidraft.io.journal import Journal, Record  # noqa: E402
from multidraft.machine import commit, hardware, versions  # noqa: E402

LIMIT = 590.0  # seconds of a piece


@dataclass
class Run:
    """The pieces of a folder, and the time that is left."""

    options: argparse.Namespace
    journal: Journal
    end: float

    @property
    def records_by_piece(self) -> dict[str, Record]:
        """The last record of every piece that has one."""
        return {record["piece"]: record for record in self.journal.records}

    @property
    def failed(self) -> list[str]:
        """The pieces that ended with an error."""
        return [name for name, record in self.records_by_piece.items() if record["status"] == "failed"]

    def left(self) -> Iterator[Piece]:
        """The pieces that are not done, as long as there is time; one that goes on by itself is begun again."""
        for piece in PIECES:
            if piece.again and self.options.quick:
                continue
            tries = 0
            while self.records_by_piece.get(piece.name, {}).get("status") != "done" and time.monotonic() < self.end:
                if tries and (self.records_by_piece[piece.name]["status"] != "out of time" or not piece.goes_on):
                    break
                tries += 1
                yield piece

    def go(self) -> None:
        """Run them, and write the report after each."""
        for piece in self.left():
            print(f"{piece.name} ...", flush=True)
            start = time.monotonic()
            record = in_a_process(piece, self.options, min(LIMIT, max(self.end - start, 60.0)))
            took = dict(seconds=round(time.monotonic() - start, 1), day=time.strftime("%Y-%m-%d"))
            self.journal.append(record | took)
            print(f"{piece.name}: {record['status']}{': ' * bool(record['why'])}{record['why']}", flush=True)
            write_report(self.options.out, self.journal.settings, self.records_by_piece)


def in_a_process(piece: Piece, options: argparse.Namespace, limit: float) -> Record:
    """A piece in a process of its own, so that neither its memory nor its faults reach the next one."""
    result = options.out / "piece.json"
    result.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--piece", piece.name, "--device", options.device, "--out", str(options.out)]
    command += ["--quick"] * options.quick + (["--corpus", str(options.corpus)] if options.corpus else [])
    record: Record = dict(piece=piece.name, status="out of time", why="", lines=[])
    try:
        done = subprocess.run(command, timeout=limit)
        if result.exists():
            return record | json.loads(result.read_text())
        return record | dict(status="failed", why=f"the process ended with {done.returncode}")
    except subprocess.TimeoutExpired:
        return record | dict(why=f"after {limit:.0f} seconds")
    finally:
        result.unlink(missing_ok=True)


def measure(piece: Piece, piece_options: PieceOptions) -> Record:
    """What a piece finds, or why it finds nothing."""
    try:
        silence()
        return dict(status="done", lines=piece.measure(piece_options))
    except (Skipped, ImportError) as reason:
        return dict(status="skipped", why=str(reason))
    except Exception as error:  # whatever a device may raise: the other pieces go on
        traceback.print_exc()
        return dict(status="failed", why=f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder; it goes on with what is there")
    parser.add_argument("--hours", type=float, default=0.5, help="no piece is begun later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it runs")
    parser.add_argument("--corpus", type=Path, help="the text that the larger pair learns; default: ../shared/corpus")
    parser.add_argument("--piece", help=argparse.SUPPRESS)
    options = parser.parse_args()
    shared = sorted((ROOT.parent / "shared" / "corpus").glob("*.gz"))
    options.corpus = options.corpus or (shared[0] if shared else None)
    return options


def check(options: argparse.Namespace) -> None:
    """Raise unless there is such a device, and room for what is found."""
    import torch

    files.make_folder(options.out, "--out")
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise AdviceError("torch sees no GPU here; --device cpu --quick shows that all runs")


def main() -> None:
    """All pieces, or in a process of its own one of them."""
    options = arguments()
    piece_options = PieceOptions(options.device, options.quick, options.out, options.corpus)
    try:
        if options.piece:
            record = measure(next(piece for piece in PIECES if piece.name == options.piece), piece_options)
            files.write(options.out / "piece.json", json.dumps(dict(why="") | record).encode())
            return
        check(options)
        settings = dict(benchmark="gpu", device=options.device, quick=options.quick)
        settings |= dict(commit=commit(), hardware=hardware(), versions=versions())
        run = Run(options, Journal(options.out / "pieces.jsonl", settings), time.monotonic() + 3600 * options.hours)
        run.go()
        print((options.out / "report.md").read_text())
        if run.failed:
            sys.exit(f"gpu.py: failed: {', '.join(run.failed)}; see {options.out / 'report.md'}")
    except AdviceError as error:
        sys.exit(f"gpu.py: {error}")
    except KeyboardInterrupt:
        print(f"gpu.py: stopped; the same command goes on with {options.out}", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
