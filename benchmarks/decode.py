"""Speed of drafting against plain decoding and against Hugging Face's assisted generation, all in one run.

    OMP_NUM_THREADS=1 python benchmarks/decode.py runs/decode.jsonl    # an hour on two slow cores
    OMP_NUM_THREADS=1 python benchmarks/decode.py runs/some.jsonl --some    # fixed trees and auto, half of the time
    python benchmarks/decode.py --show runs/decode.jsonl               # the table, also of an unfinished file
    python benchmarks/decode.py --show runs/decode.jsonl --into results/embedded_pair.md --plot runs/speed.svg
    python benchmarks/decode.py --over runs/some.jsonl runs/twelve.jsonl    # auto over the fixed trees, in all settings

Every case takes its turn on every prompt before the next prompt comes, so that a noisy machine hits all alike. Every
run is a line of the file as soon as it is done: the same command goes on where one was stopped. The baseline is plain
decoding with our loop, which like `model.generate` is PyTorch in eager mode.

`--layers 12` gives the target layers that change nothing: a larger model of the same distribution, to see what drafting
gives where a pass of the target costs more.
"""

import argparse
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import decode_table as table
from contestants import ALL, ASSISTED, DEFAULT, FEW, PLAIN, SOME, Case, decode, deeper
from multidraft_research.cli.capture import DEMO
from multidraft_research.cli.pretrained import load_pretrained as load
from multidraft_research.tuning.measuring import measure as tune
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.autotune.plans import MeasuredPair, profile_for
from multidraft.errors import AdviceError
from multidraft.generation import DEFAULT_SCHEME
from multidraft.io.journal import Journal
from multidraft.machine import commit, hardware, versions
from multidraft.models.user_models import as_reader
from multidraft.zoo import Pair

PROMPTS = Path(__file__).with_name("prompts.jsonl")
QUICK = dict(limit=3, seeds=1, new_tokens=24)
TUNE = 60.0  # seconds of measuring before the first run


def cases_of(options: argparse.Namespace) -> list[Case]:
    """Who takes part: those asked for beside plain decoding, or all; transformers assists single prompts only."""
    if options.case:
        return [PLAIN, *(Case(scheme, f"{tree} {walk}") for scheme, tree, walk in options.case)]
    chosen = FEW if options.quick else SOME if options.some else ALL
    return [case for case in chosen if options.batch == 1 or case.who != ASSISTED]


def settings_of(options: argparse.Namespace, cases: list[Case], ids: list[str]) -> dict[str, Any]:
    """What the results depend on: the head of the file."""
    machine = dict(hardware=hardware(), versions=versions(), commit=commit())
    chosen = {name: getattr(options, name) for name in ("target", "draft", "layers", "batch", "compile")}
    chosen |= dict(new_tokens=options.new_tokens, seeds=options.seeds, temperatures=options.temperature)
    return dict(benchmark="decode") | machine | chosen | dict(prompts=ids, cases=cases)


def prepare(pair: Pair) -> None:
    """Measure the pair for `auto`, with prompts that take no part."""
    texts = [prompt["prompt"] for prompt in map(json.loads, DEMO.read_text().splitlines())]
    prompts = [pair.tokenizer(text)["input_ids"] for text in texts]
    target, draft = as_reader(pair.target), as_reader(pair.draft)
    subject = MeasuredPair(target, draft, md.scheme(DEFAULT_SCHEME), prompts=prompts)
    tune(subject, profile_for(subject), TUNE)


def measure(pair: Pair, journal: Journal, cases: list[Case], batches: list[list[list[int]]], options: Any) -> None:
    """Run what the journal does not have yet."""
    done = {(run["temperature"], run["seed"], run["turn"], Case(*run["case"])) for run in journal.records}
    turns = [
        (t, s, b, c)
        for t in options.temperature
        for s in range(options.seeds)
        for b in range(len(batches))
        for c in cases
    ]
    left = [turn for turn in turns if turn not in done]
    if left and DEFAULT in cases:
        prepare(pair)
    for case in tqdm(cases if left else [], desc="warm-up", leave=False):
        decode(pair, case, batches[0], 1.0, 0, argparse.Namespace(new_tokens=24, compile=options.compile))
    for temperature, seed, batch, case in tqdm(left, desc="decoding", leave=False):
        run = decode(pair, case, batches[batch], temperature, seed, options)
        place = dict(temperature=temperature, seed=seed, turn=batch, case=case)
        journal.append(place | run | dict(day=datetime.now(UTC).date().isoformat()))


def show(path: Path) -> None:
    """The table and its sentences in a terminal."""
    settings, runs = table.read(path)
    rates = table.rates_of(settings, runs)
    columns, rows = table.rows_of(rates)
    printed = Table(*columns)
    for row in rows:
        printed.add_row(*row)
    console = Console(width=max(150, Console().width))
    console.print(
        table.heading(settings, runs), printed, *(line for rate in rates for line in table.sentences(rate)), sep="\n"
    )


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "out", type=Path, nargs="?", help="where the runs go, as JSON lines; it goes on with what is there"
    )
    parser.add_argument("--show", type=Path, metavar="FILE", help="measure nothing: the table of a file")
    parser.add_argument("--over", type=Path, nargs="+", metavar="FILE", help="measure nothing: auto in all of these")
    parser.add_argument(
        "--into", type=Path, metavar="PAGE.md", help="with --show: put the table between a page's marks"
    )
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="with --show: draw tokens a second")
    parser.add_argument("--some", action="store_true", help="plain decoding, four assistants, fixed trees and auto")
    parser.add_argument("--quick", action="store_true", help=f"a minute, to see that it runs: {QUICK}, few cases")
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--max-new-tokens", dest="new_tokens", type=int, default=48)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int, default=24, help="only the first prompts of the file")
    parser.add_argument("--batch", type=int, default=1, help="prompts side by side, more than one without assistance")
    parser.add_argument("--case", nargs=3, action="append", metavar=("SCHEME", "TREE", "WALK"), help="instead of all")
    parser.add_argument("--target", help="a folder or hub name; default: the embedded pair")
    parser.add_argument("--draft")
    parser.add_argument("--layers", type=int, help="of the target; those added change nothing")
    parser.add_argument("--compile", action="store_true", help="compile the steps of both models, in our loop")
    options = parser.parse_args(words)
    if sum(way is not None for way in (options.out, options.show, options.over)) != 1:
        parser.error("name a file to measure into, or one to --show, or some to look --over")
    vars(options).update(QUICK if options.quick else {})
    return options


def run(options: argparse.Namespace) -> Path:
    """Measure into a file."""
    lines = [json.loads(line) for line in options.prompts.read_text().splitlines()[: options.limit]]
    cases = cases_of(options)
    journal = Journal(options.out, settings_of(options, cases, [line["id"] for line in lines]))
    pair = load(options.target, options.draft)
    if options.layers:
        pair = pair._replace(target=deeper(pair.target, options.layers))
    prompts = [pair.tokenizer(line["prompt"])["input_ids"] for line in lines]
    batches = [prompts[i : i + options.batch] for i in range(0, len(prompts), options.batch)]
    measure(pair, journal, cases, batches, options)
    return options.out


def main(words: list[str] | None = None) -> None:
    """Measure or show."""
    options = arguments(words)
    try:
        if options.over:
            print(*table.over(options.over), sep="\n")
            return
        path = options.show or run(options)
        show(path)
        if options.into:
            table.put_into(options.into, table.markdown(path))
        if options.plot:
            table.plot(path, options.plot)
    except AdviceError as error:
        sys.exit(f"decode.py: {error}")
    except KeyboardInterrupt:
        print(
            f"decode.py: stopped; the same command goes on, --show {options.out} shows what there is", file=sys.stderr
        )
        sys.exit(130)


if __name__ == "__main__":
    main()
