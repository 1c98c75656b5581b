"""GGUF models on llama.cpp: our drafting against its own plain decoding and its binding's prompt look-up, in one run.

    python benchmarks/local.py runs/local.jsonl                    # all of it; --prompts and --seeds bound it
    python benchmarks/local.py runs/some.jsonl --prompts 4 --kinds f16 --threads 1
    python benchmarks/local.py --show runs/local.jsonl [more files] [--into docs/benchmarks.md]

The embedded pair is written to GGUF files first. Every case takes its turn on every prompt before the next one comes,
so that a noisy machine hits all alike, and every time another one begins, since passes depend on what was read before
them. Every run is a line of the file as soon as it is done: the same command goes on where one was stopped. Beside it
stands what a pass over so many tokens costs, which decides what drafting can give.

A target of 12 layers has the same distribution as that of 3, and passes that cost about four times as much.
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple
from unittest.mock import patch

import decode_table
import llama_plain
import torch
from contestants import Case, deeper
from decode import PROMPTS
from local_table import markdown
from multidraft_research.cli.capture import DEMO
from tqdm import tqdm

import multidraft as md
from multidraft.autotune.identity import Subject
from multidraft.autotune.tuning import measured
from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.generation.defaults import SCHEME
from multidraft.io.journal import Journal
from multidraft.machine.identity import commit, hardware, versions
from multidraft.models.gguf.binding import library
from multidraft.models.gguf.weights import model_settings
from multidraft.models.ngram import Lookup
from multidraft.zoo import load_pair

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import to_gguf

PLAIN, THEIRS, OURS = Case("llama.cpp, plain"), Case("llama-cpp-python, look-up", "2 tokens"), Case("ours, plain")
LOOKED_UP, AUTO = Case("ours, look-up", "1x1"), Case(SCHEME, "auto")
TREES = [Case(SCHEME, tree) for tree in ("1x1", "1x1x1", "2x1x1", "2x1x1x1", "4x2x2x1")]
CASES = [PLAIN, THEIRS, OURS, LOOKED_UP, *TREES, AUTO]
TUNE = 60.0  # seconds of measuring before a run
COUNTS, PAST, ROUNDS = (1, 2, 3, 4, 6, 8, 13, 16, 24, 32, 45), 128, 5
MARKS = "<!-- local: made by benchmarks/local.py --into -->", "<!-- /local -->"
QUICK = dict(prompts=2, seeds=1, new_tokens=16, kinds=["f16"], layers=[3], threads=[1], temperature=[1.0])


class Setting(NamedTuple):
    """What is measured apart: the target's layers, the weights' type, and the threads."""

    layers: int
    kind: str
    threads: int


class Models(NamedTuple):
    """A pair, and llama-cpp-python's own object of the target."""

    target: md.GGUF
    draft: md.GGUF
    theirs: Any


def load(folder: Path, layers: int, kind: str) -> Models:
    """The embedded pair, its target with so many layers, written to files and loaded."""
    target, draft, tokenizer = load_pair()
    paths = [folder / f"{name}-{kind}.gguf" for name in (f"target{layers}", "draft")]
    for model, path in zip((deeper(target, layers), draft), paths, strict=True):
        to_gguf.write(model, path, kind, tokenizer)
    binding = optional("llama_cpp", "llama-cpp-python", "gguf")
    lookup = optional("llama_cpp.llama_speculative", "llama-cpp-python", "gguf").LlamaPromptLookupDecoding
    longest = target.config.max_position_embeddings
    same = model_settings(library())
    with patch.object(library(), "llama_model_default_params", lambda: same):
        theirs = binding.Llama(str(paths[0]), n_ctx=longest, draft_model=lookup(num_pred_tokens=2), verbose=False)
    return Models(*map(md.GGUF, paths), theirs)


def decode(models: Models, case: Case, prompt: list[int], temperature: float, seed: int, new: int) -> dict[str, Any]:
    """One run: its tokens and seconds, past any end of text."""
    start, told = time.perf_counter(), dict[str, Any]()
    if case == PLAIN:
        tokens = len(llama_plain.decode(models.target, prompt, new, temperature, seed))
    elif case == THEIRS:
        tokens = looked_up(models.theirs, prompt, new, temperature, seed)
    else:
        tokens, told = ours(models, case, prompt, temperature, seed, new)
    return dict(tokens=tokens, seconds=round(time.perf_counter() - start, 5)) | told


def looked_up(model: Any, prompt: list[int], new: int, temperature: float, seed: int) -> int:
    """By llama-cpp-python's generator, with nothing cut off the distribution."""
    model.reset()
    model.set_seed(seed)
    library().llama_set_n_threads(model.ctx, *[torch.get_num_threads()] * 2)
    settings = dict(temp=temperature, top_k=0, top_p=1.0, min_p=0.0, repeat_penalty=1.0)
    for count, _ in enumerate(model.generate(prompt, **settings), 1):
        if count == new:
            break
    return new


def ours(
    models: Models, case: Case, prompt: list[int], temperature: float, seed: int, new: int
) -> tuple[int, dict[str, Any]]:
    """By our loop."""
    drafts = {OURS: None, LOOKED_UP: Lookup(models.target.vocabulary)}.get(case, models.draft)
    settings = {} if drafts is None else dict(scheme=SCHEME, tree=case.setting)
    rows, info = md.generate(
        models.target,
        drafts,
        [prompt],
        temperature=temperature,
        max_new_tokens=new,
        eos_token_id=[],
        generator=torch.Generator().manual_seed(seed),
        measure=False,
        **settings,
    )
    parts = {name: round(info.watch.seconds[name], 5) for name in ("draft", "target", "measuring")}
    return len(rows[0]), dict(passes=info.row_passes, accepted=info.accepted) | parts


def settings_of(options: argparse.Namespace) -> list[Setting]:
    """All that is measured, one apart from another."""
    return [Setting(*own) for own in product(options.layers, options.kinds, options.threads)]


@contextmanager
def loaded(options: argparse.Namespace) -> Iterator[dict[tuple[int, str], Models]]:
    """All pairs, in files that are gone afterwards."""
    with TemporaryDirectory() as folder:
        yield {(n, kind): load(Path(folder), n, kind) for n in options.layers for kind in options.kinds}


@contextmanager
def using(threads: int) -> Iterator[None]:
    """So many threads of torch, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def prepare(models: Models, prompts: list[list[int]]) -> None:
    """Measure a pair for `auto`, with prompts that take no part."""
    measured(Subject(models.target, models.draft, md.scheme(SCHEME), prompts=prompts), TUNE)


def measure(options: argparse.Namespace, journal: Journal, texts: list[str]) -> None:
    """Run what the journal does not have yet."""
    tokenizer = load_pair().tokenizer
    prompts, demo = [tokenizer(text)["input_ids"] for text in texts], DEMO.read_text().splitlines()
    known = [tokenizer(json.loads(line)["prompt"])["input_ids"] for line in demo]
    done = {place_of(run) for run in journal.records}
    turns = [
        (setting, t, seed, turn, case)
        for t in options.temperature
        for seed in range(options.seeds)
        for turn in range(len(prompts))
        for setting in settings_of(options)
        for case in CASES[turn % len(CASES) :] + CASES[: turn % len(CASES)]
    ]
    left = [one for one in turns if one not in done]
    with loaded(options) as pairs:
        for setting in tqdm(settings_of(options), desc="plans and passes", leave=False):
            models = pairs[setting.layers, setting.kind]
            with using(setting.threads):
                prepare(models, known)
                if (setting, None, None, None, None) not in done:
                    times = llama_plain.pass_times(models.target, COUNTS, PAST, ROUNDS)
                    journal.append(dict(setting=setting, passes_of=times))
                for case in CASES:
                    decode(models, case, known[0], 1.0, 0, 8)
        for setting, temperature, seed, turn, case in tqdm(left, desc="decoding"):
            models = pairs[setting.layers, setting.kind]
            with using(setting.threads):
                run = decode(models, case, prompts[turn], temperature, seed, options.new_tokens)
            place = dict(setting=setting, temperature=temperature, seed=seed, turn=turn, case=case)
            journal.append(place | run | dict(day=datetime.now(UTC).date().isoformat()))


def place_of(run: dict[str, Any]) -> tuple:
    """Which of all turns a line of the file is of."""
    case = Case(*run["case"]) if "case" in run else None
    return (Setting(*run["setting"]), *(run.get(name) for name in ("temperature", "seed", "turn")), case)


def run(options: argparse.Namespace) -> Path:
    """Measure into a file."""
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()[: options.prompts]]
    asked = {name: getattr(options, name) for name in ("layers", "kinds", "threads", "temperature", "seeds")}
    machine = dict(hardware=hardware(), versions=versions("llama_cpp_python"), commit=commit())
    head = dict(benchmark="local") | machine | asked | dict(new_tokens=options.new_tokens, cases=CASES)
    journal = Journal(options.out, head | dict(prompts=[line["id"] for line in lines]))
    measure(options, journal, [line["prompt"] for line in lines])
    return options.out


def arguments(given: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", help="where the runs go, as JSON lines; it goes on with them")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="measure nothing: the tables of files")
    parser.add_argument("--into", type=Path, metavar="PAGE.md", help="put the tables between a page's marks")
    parser.add_argument("--prompts", type=int, default=12, help="only the first of benchmarks/prompts.jsonl")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--layers", type=int, nargs="+", default=[3, 12], help="of the target")
    parser.add_argument("--kinds", nargs="+", default=["f16", "q8_0"], help="types of the weights")
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--quick", action="store_true", help=f"to see that it runs: {QUICK}")
    options = parser.parse_args(given)
    if (options.out is None) == (options.show is None):
        parser.error("name a file to measure into, or one to --show")
    vars(options).update(QUICK if options.quick else {})
    return options


def main(given: list[str] | None = None) -> None:
    """Measure or show."""
    options = arguments(given)
    try:
        text = "\n\n".join(markdown(file, PLAIN) for file in options.show or [run(options)])
        print(text)
        if options.into:
            decode_table.put_into(options.into, text, MARKS)
    except AdviceError as error:
        sys.exit(f"local.py: {error}")
    except KeyboardInterrupt:
        print(f"local.py: stopped; the same command goes on, --show {options.out} shows it so far", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
