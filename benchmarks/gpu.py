"""All that awaits a GPU, in one go: what a pass, a step, a rule and a decoded token cost there.

    make gpu                                                     # PYTHON=python3 DEVICE=cuda OUT=runs/gpu HOURS=0.5
    python benchmarks/gpu.py --hours 0.5 --out runs/gpu          # the same; again, it goes on with what is left
    make gpu HOURS=0.2 GPU_FLAGS=--no-compile                    # without the minutes that compiling takes
    python benchmarks/gpu.py --device cpu --quick --out runs/dry    # tiny shapes, to see that it runs: some minutes

Each piece is a process of its own, or shares one with those about the same model; a process ends after ten minutes at
most. What a piece found is a line of `pieces.jsonl`; a piece that is there is not run again. `report.md` and
`report.json` say what is known so far.
Nothing is downloaded or installed: a piece whose packages are missing is skipped, and says so.
"""

import argparse
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [
    str(folder) for folder in (ROOT, ROOT / "research") if str(folder) not in sys.path
]  # where nothing could be installed

from on_gpu.asked import PieceOptions, Skipped  # noqa: E402
from on_gpu.pieces import PIECES, Piece  # noqa: E402
from on_gpu.report import write_report  # noqa: E402

from multidraft.cli.engines import silence  # noqa: E402
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
    tried: set[str] = field(default_factory=set)  # pieces that this run has come to

    @property
    def records_by_piece(self) -> dict[str, Record]:
        """The last record of every piece that has one."""
        return {record["piece"]: record for record in self.journal.records}

    @property
    def failed(self) -> list[str]:
        """The pieces that ended with an error."""
        return [name for name, record in self.records_by_piece.items() if record["status"] == "failed"]

    def left(self) -> Iterator[list[Piece]]:
        """The pieces that are not done, by process, as long as there is time; what goes on by itself is begun again."""
        for _, group in groupby(PIECES, lambda piece: piece.process or piece.name):
            pieces = [piece for piece in group if not (piece.again and self.options.quick)]
            while time.monotonic() < self.end:
                states = {piece.name: self.records_by_piece.get(piece.name, {}).get("status") for piece in pieces}
                pieces = [piece for piece in pieces if states[piece.name] != "done"]
                goes_on = {piece.name for piece in pieces if piece.goes_on and states[piece.name] == "out of time"}
                pieces = [piece for piece in pieces if piece.name not in self.tried or piece.name in goes_on]
                if not pieces:
                    break
                yield pieces

    def go(self) -> None:
        """Run them, and write the report after each process."""
        for pieces in self.left():
            print(f"{', '.join(piece.name for piece in pieces)} ...", flush=True)
            for record in in_a_process(pieces, self.options, min(LIMIT, max(self.end - time.monotonic(), 60.0))):
                self.tried.add(record["piece"])
                self.journal.append(record | dict(day=time.strftime("%Y-%m-%d")))
                why = f": {record['why']}" * bool(record["why"])
                print(f"{record['piece']}: {record['status']}{why}", flush=True)
            write_report(self.options.out, self.journal.settings, self.records_by_piece)


def in_a_process(pieces: list[Piece], options: argparse.Namespace, limit: float) -> list[Record]:
    """Pieces in a process of their own, so that neither its memory nor its faults reach the next ones.

    There is a record of each that it came to: the last one may have been stopped, by a fault or the limit.
    """
    results, start = options.out / "piece.jsonl", time.monotonic()
    results.unlink(missing_ok=True)
    command = [sys.executable, __file__, "--pieces", *(piece.name for piece in pieces)]
    command += ["--device", options.device, "--out", str(options.out)]
    command += (
        ["--quick"] * options.quick
        + ["--no-compile"] * options.no_compile
        + (["--corpus", str(options.corpus)] if options.corpus else [])
    )
    try:
        status, why = "failed", f"the process ended with {subprocess.run(command, timeout=limit).returncode}"
    except subprocess.TimeoutExpired:
        status, why = "out of time", f"after {limit:.0f} seconds"
    lines = results.read_text().splitlines() if results.exists() else []
    results.unlink(missing_ok=True)
    records: list[Record] = [json.loads(line) for line in lines]
    if len(records) < len(pieces):
        took = time.monotonic() - start - sum(record["seconds"] for record in records)
        piece = pieces[len(records)].name
        records.append(dict(piece=piece, status=status, why=why, lines=[], seconds=round(took, 1)))
    return records


def measure(piece: Piece, piece_options: PieceOptions) -> Record:
    """What a piece finds, or why it finds nothing, and how long that took."""
    record: Record = dict(piece=piece.name, status="done", why="", lines=[])
    start = time.monotonic()
    try:
        silence()
        record["lines"] = piece.measure(piece_options)
    except (Skipped, ImportError) as reason:
        record |= dict(status="skipped", why=str(reason))
    except Exception as error:  # whatever a device may raise: the other pieces go on
        traceback.print_exc()
        record |= dict(status="failed", why=f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}")
    return record | dict(seconds=round(time.monotonic() - start, 1))


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="a folder; it goes on with what is there")
    parser.add_argument("--hours", type=float, default=0.5, help="no piece is begun later")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny shapes, to see that it runs")
    parser.add_argument("--no-compile", action="store_true", help="only what is recorded: minutes in place of an hour")
    parser.add_argument("--corpus", type=Path, help="the text that the larger pair learns; default: ../shared/corpus")
    parser.add_argument("--pieces", nargs="+", help=argparse.SUPPRESS)
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
    piece_options = PieceOptions(options.device, options.quick, options.out, options.corpus, not options.no_compile)
    try:
        if options.pieces:
            for piece in [piece for piece in PIECES if piece.name in options.pieces]:
                line = json.dumps(measure(piece, piece_options))
                with (options.out / "piece.jsonl").open("a") as file:
                    file.write(line + "\n")
            return
        check(options)
        settings = dict(benchmark="gpu", device=options.device, quick=options.quick, compiles=not options.no_compile)
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
