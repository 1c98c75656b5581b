"""What a pass over 1 to 31 tokens takes in each library that reads GGUF files, and what it costs to keep a node.

    OMP_NUM_THREADS=1 python benchmarks/gguf_passes.py model-q8_0.gguf model-q4_0.gguf [--tokens 1 2 4 8 16] [--json]

After a text of 200 random tokens, each library reads chains of so many tokens by turns, and forgets them. The numbers
are medians of the seconds of the processor, which neighbours lengthen least; with more threads, of the clock. The last
column is a step whose tree of eight siblings leaves its last node, less a pass over eight tokens that leaves none: what
it takes to drop the others and to move cells together.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from multidraft_research.tuning.target_passes import with_text
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from multidraft.errors import AdviceError
from multidraft.models.gguf import LIBRARIES
from multidraft.models.gguf.model import GGUF
from multidraft.models.reader import Reader, chain_parents

SIBLINGS = 8


def main() -> None:
    """Measure, and print the table."""
    options = parsed()
    torch.set_num_threads(options.threads)
    readers = dict(opened(options.files))
    steps = [*((f"{count}", count, False) for count in options.tokens), ("keep one of 8", SIBLINGS, True)]
    seconds: dict[tuple[str, str, str], list[float]] = {}
    for _ in tqdm(range(options.rounds), desc="rounds", disable=options.json):
        for name, reader in readers.items():
            for title, count, is_tree in steps:
                seconds.setdefault((*name, title), []).append(timed(lambda r=reader, n=count, t=is_tree: step(r, n, t)))
    show({key: 1e3 * statistics.median(values) for key, values in seconds.items()}, [s[0] for s in steps], options.json)


def parsed() -> argparse.Namespace:
    """The command's options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 2, 4, 8, 16, 31])
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def opened(files: list[Path]) -> list[tuple[tuple[str, str], Reader]]:
    """A reader of each file in each library that is installed and reads it, behind its text."""
    readers = []
    for path in files:
        for library in LIBRARIES:
            try:
                model = GGUF(path, library=library)
            except AdviceError as error:
                Console(stderr=True).print(f"left out: {error}", style="yellow")
                continue
            readers.append(((path.name, library), with_text(model)))
    return readers


def step(reader: Reader, count: int, is_tree: bool) -> None:
    """Read a chain and forget it; or siblings, of which the last stays."""
    tokens = list(range(100, 100 + count))
    reader.forward([tokens], [[-1] * count if is_tree else chain_parents(count)])
    reader.commit([[count - 1] if is_tree else []])


def timed(run: Callable[[], None]) -> float:
    """The seconds that a call takes."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    start = clock()
    run()
    return clock() - start


def show(medians: dict[tuple[str, str, str], float], titles: list[str], as_json: bool) -> None:
    """Print the table, in milliseconds."""
    rows = {key[:2]: [medians[*key[:2], title] for title in titles] for key in medians}
    if str(SIBLINGS) in titles:
        for values in rows.values():
            values[-1] -= values[titles.index(str(SIBLINGS))]
    if as_json:
        named = [
            dict(file=file, library=library, milliseconds=dict(zip(titles, values, strict=True)))
            for (file, library), values in rows.items()
        ]
        print(json.dumps(named))
        return
    table = Table("file", "library", *titles, title="milliseconds of a pass")
    for name, values in rows.items():
        table.add_row(*name, *(f"{value:.1f}" for value in values))
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
