"""Tokens a second of everyone who decodes, recorded and compiled, side by side on every prompt."""

import json
from argparse import Namespace
from collections import defaultdict
from pathlib import Path

from contestants import ASSISTED, DEFAULT, PLAIN, STATIC, THEIRS, Case, decode
from tqdm import tqdm

from multidraft.generation import DEFAULT_SCHEME
from multidraft.io.journal import Journal
from multidraft.zoo import Pair, load_pair
from on_gpu import trained
from on_gpu.asked import Line, PieceOptions
from on_gpu.steps import TREES

PROMPTS = Path(__file__).parents[1] / "prompts.jsonl"
Way = tuple[Case, bool]  # who, and whether compiled
OUR_CASES = [Case(DEFAULT_SCHEME, f"{tree} deferred") for tree in TREES] + [DEFAULT]
WAYS: list[Way] = [(PLAIN, False), (THEIRS, False), (STATIC, False), (Case(ASSISTED, "3 tokens"), False)]
WAYS += [(Case(ASSISTED, "5 tokens, threshold 0.4"), False)] + [
    (case, way) for case in OUR_CASES for way in (False, True)
]
WAYS += [(PLAIN, True)]
QUICK = [WAYS[0], WAYS[2], WAYS[3], *WAYS[5:7]]
TEMPERATURES = (0.0, 1.0)


def of_the_embedded(piece_options: PieceOptions) -> list[Line]:
    """The embedded pair."""
    return measure(piece_options, "embedded", trained.on_device(load_pair(), piece_options))


def of_the_trained(piece_options: PieceOptions) -> list[Line]:
    """The pair that was trained on the spot."""
    return measure(piece_options, "trained", trained.load(piece_options))


def measure(piece_options: PieceOptions, name: str, pair: Pair) -> list[Line]:
    """A line a way and temperature; every run is kept as soon as it is done, so that a stopped piece goes on."""
    new_tokens, limit, ways = (8, 1, QUICK) if piece_options.quick else (128, 8, WAYS)
    ways = [way for way in ways if piece_options.compiles or not way[1]]
    options = Namespace(new_tokens=new_tokens)
    lines = [json.loads(line) for line in PROMPTS.read_text().splitlines()[:limit]]
    prompts = [pair.tokenizer(line["prompt"])["input_ids"] for line in lines]
    journal = Journal(piece_options.out / f"{name}.jsonl", dict(prompts=prompts, new_tokens=new_tokens, ways=ways))
    done = {(t, i, Case(*case), way) for t, i, case, way in (run["turn"] for run in journal.records)}
    turns = [(t, i, *way) for t in TEMPERATURES for i in range(len(prompts)) for way in ways]
    left = [turn for turn in turns if turn not in done]
    for case, way in ways if left else []:  # a warm-up of each, by which all is compiled
        decode(pair, case, prompts[:1], 1.0, 0, Namespace(new_tokens=new_tokens, compile=way))
    for t, i, case, way in tqdm(left, desc=name):
        options.compile = way
        journal.append(dict(turn=(t, i, case, way)) | decode(pair, case, [prompts[i]], t, i, options))
    return table(journal.records)


def way_of(case: Case, is_compiled: bool) -> str:
    """How a way's steps run: ours are recorded where they are not compiled."""
    if is_compiled or case == STATIC:
        return "compiled"
    return "launched" if case == THEIRS or case.who == ASSISTED else "recorded"


def table(runs: list[Line]) -> list[Line]:
    """Tokens a second by temperature and way, over those of plain decoding and of compiled `model.generate`."""
    sums: dict[tuple[float, Case, bool], Line] = defaultdict(lambda: dict(tokens=0, seconds=0.0, passes=0, accepted=0))
    for run in runs:
        t, _, case, way = run["turn"]
        for what, total in sums[t, Case(*case), way].items():
            sums[t, Case(*case), way][what] = total + run.get(what, 0)
    rates = {key: sums_of_key["tokens"] / sums_of_key["seconds"] for key, sums_of_key in sums.items()}
    return [
        dict(temperature=t, who=case.who, setting=case.setting, way=way_of(case, way))
        | dict(tokens_a_second=round(rates[t, case, way], 1))
        | dict(
            tokens_a_pass=round(1 + sums_of_key["accepted"] / sums_of_key["passes"], 3)
            if sums_of_key["passes"]
            else None
        )
        | {f"over {base.who}": round(rates[t, case, way] / rates[t, base, False], 2) for base in (PLAIN, STATIC)}
        for (t, case, way), sums_of_key in sums.items()
    ]
