"""How many tokens the judge needs for each of some faults, and how many a string-kernel test needs on the same texts.

    OMP_NUM_THREADS=1 python benchmarks/judge_teeth.py runs/judge_teeth                # the table of faults
    OMP_NUM_THREADS=1 python benchmarks/judge_teeth.py runs/judge_teeth --audits 200   # and audits without a fault

Our server over the embedded pair, with one fault at a time built in (judge_faults.py), answers the judge's requests.
All answers are kept in the folder; a run that was stopped goes on there.

The string-kernel test is that of Model Equality Testing (Gao, Liang and Guestrin, ICLR 2025, arXiv:2410.20247): the
maximum mean discrepancy between texts of the server and as many of one without a fault, with a kernel that counts the
positions at which two answers to one prompt agree, and a p-value by permutations within prompts. It is given all
texts, halves of them, quarters and so on: it needs so many tokens as the smallest samples have whose median p-value is
at most alpha.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from judge_faults import FAULTS, Fault, built_in
from multidraft_judge.asking.client import Client
from multidraft_judge.asking.dialects import judged_logprobs
from multidraft_judge.asking.requests import Asking, waves
from multidraft_judge.case import Case
from multidraft_judge.defaults import MAX_TOKENS, NUM_LOGPROBS, ROUNDING
from multidraft_judge.evidence.laws import Settings
from multidraft_judge.evidence.observation import Completion
from multidraft_judge.judgement import default_prompts
from multidraft_judge.references.model import ModelReference
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.machine import commit, hardware
from multidraft.models.user_models import as_reader
from multidraft.server import Limits
from multidraft.server.app import build
from multidraft.server.engine import Engine
from multidraft.server.process import Server, bind_socket
from multidraft.server.service import Service
from multidraft.zoo import load_pair

ALPHA, AUDIT_ALPHA = 1e-6, 0.01
KERNEL_ALPHAS = (0.05, 0.001)
PARTS, PERMUTATIONS = (8, 4, 2, 1), 4_000  # samples that the texts make, and relabellings for a p-value
NO_TOKEN = -1
NO_FAULT = Fault(())
NONE = {"none": NO_FAULT, "none, with forms": Fault((), needs_forms=True)}
SEEDS_APART = 10**6  # requests of one audit have other seeds than those of the next


@contextmanager
def served(fault: Fault) -> Iterator[str]:
    """The address of our server over the embedded pair, with a fault built in until the block ends."""
    pair = load_pair()
    way = DecodeConfig(md.scheme("iid:lorenz", drafts=1), "commit"), StaticTree(Tree.parse("1x1"))
    service = Service(
        Engine(as_reader(pair.target), as_reader(pair.draft), *way, Limits()), pair.tokenizer, ["embedded"]
    )
    listener = bind_socket("127.0.0.1", 0)
    server = Server(service.limits, lambda: build(service))
    thread = Thread(target=lambda: server.run(sockets=[listener]))
    thread.start()
    try:
        while server.app is None or not server.started:
            time.sleep(0.05)
        with built_in(fault):
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


def answers(
    url: str, folder: Path, settings: Settings, tokens: int, order: int = 0, seeds: int = 0, with_forms: bool = False
) -> Iterator[list[Completion]]:
    """Wave after wave of answers with at least so many tokens; what is in the folder is not asked again.

    `order` is that of the prompts; with other `seeds` the answers to the same requests are others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prompts, count = [prompt.text for prompt in default_prompts()], 0
    random.Random(order).shuffle(prompts)
    client = Client(url, "embedded", timeout=600)
    header = {"judge_teeth": 1, "order": order, "seeds": seeds} | vars(settings)
    asking = Asking(client, settings, folder, header | ({"forms": True} if with_forms else {}))
    for wave in waves(prompts, settings.temperature, MAX_TOKENS, with_forms):
        seeded = [ask if ask.seed is None else replace(ask, seed=ask.seed + SEEDS_APART * seeds) for ask in wave]
        completions = asking.answer(seeded)
        yield completions
        count += sum(len(completion.tokens) for completion in completions)
        if count >= tokens:
            return


def judged(
    waves_of_answers: list[list[Completion]], settings: Settings, alpha: float, needs_reference: bool = False
) -> dict[str, Any]:
    """After how many tokens the judge finds a server guilty, and by what; None if it does not."""
    case = Case(settings, alpha, ROUNDING, embedded_reference() if needs_reference else None)
    for completions in waves_of_answers:
        case.add(completions)
        if case.reasons:
            break
    case.close()
    evidence = case.reported if case.referenced is None else case.referenced
    by_bet = {f"{score}, {stratum}": value for (stratum, score), value in evidence.by_bet().items()}
    is_bet = evidence.convicts(case.part_alpha)
    what = (
        max(by_bet, key=lambda name: by_bet[name]) if is_bet else case.reasons[0].split(":")[0] if case.reasons else ""
    )
    return {
        "tokens": (evidence.tokens_until(case.part_alpha) if is_bet else case.tokens) if case.reasons else None,
        "by": what,
        "asked": case.tokens,
    }


def embedded_reference() -> ModelReference:
    """The target model itself."""
    pair = load_pair()
    return ModelReference(pair.target, pair.tokenizer, top=judged_logprobs(NUM_LOGPROBS))


def texts_by_prompt(waves_of_answers: Sequence[list[Completion]], ids: dict[str, int]) -> list[tuple[str, list[int]]]:
    """Prompt and token numbers of every answer that was drawn and not cancelled, in order; a form is another prompt."""
    return [
        (
            f"{completion.ask.formed} {completion.ask.prompt}",
            [ids.setdefault(token.text, len(ids)) for token in completion.tokens],
        )
        for completions in waves_of_answers
        for completion in completions
        if completion.ask.temperature > 0 and completion.ask.cancel_after is None
    ]


def p_value(first: list[tuple[str, list[int]]], second: list[tuple[str, list[int]]], seed: int = 0) -> float:
    """The p-value of the string-kernel test that two samples of texts have one law, prompt by prompt.

    The statistic is the sum over prompts of a^T K a, where K holds for every pair of texts the share of positions at
    which they agree, and a is 1 / n for the n texts of the first sample and -1 / m for the m of the second.
    """
    groups = defaultdict[str, tuple[list[list[int]], list[list[int]]]](lambda: ([], []))
    for side, sample in enumerate((first, second)):
        for prompt, text in sample:
            groups[prompt][side].append(text)
    rng, total = np.random.default_rng(seed), np.zeros(PERMUTATIONS + 1)
    for ones, others in groups.values():
        if ones and others:
            total += discrepancies(agreement(padded([*ones, *others])), len(ones), rng)
    return float((total >= total[0] * (1 - 1e-12)).mean())  # the labels as they are count as one of the relabellings


def padded(texts: list[list[int]]) -> Int[np.ndarray, "texts positions"]:
    """Texts of one length; what is missing agrees with what is missing elsewhere."""
    return np.array([text + [NO_TOKEN] * (MAX_TOKENS - len(text)) for text in texts])


def agreement(texts: Int[np.ndarray, "texts positions"]) -> Float[np.ndarray, "texts texts"]:
    """The Hamming kernel: the share of positions at which two texts agree."""
    return (texts[:, None] == texts[None]).mean(-1)


def discrepancies(
    kernel: Float[np.ndarray, "texts texts"], count: int, rng: np.random.Generator
) -> Float[np.ndarray, " relabellings"]:
    """a^T K a for the labels as they are, by which the first `count` texts are one sample, and for random ones."""
    labels = np.where(np.arange(len(kernel)) < count, 1 / count, -1 / (len(kernel) - count))
    relabelled = np.vstack([labels, rng.permuted(np.tile(labels, (PERMUTATIONS, 1)), axis=1)])
    return np.einsum("ri,ij,rj->r", relabelled, kernel, relabelled, optimize=True)


def kernel_test(texts: list[tuple[str, list[int]]], others: list[tuple[str, list[int]]]) -> dict[str, Any]:
    """What samples of each size give: p-values, and the smallest size of which half are rejected at each alpha.

    The largest sample is all texts; smaller ones are halves, quarters and so on.
    """
    num_tokens, p_values = sum(len(text) for _, text in texts), dict[int, list[float]]()
    for count in PARTS:
        length = len(texts) // count
        starts = range(0, length * count, length)
        p_values[num_tokens // count] = [p_value(texts[at : at + length], others[at : at + length]) for at in starts]
    needed = {
        str(alpha): next((size for size, values in p_values.items() if np.median(values) <= alpha), None)
        for alpha in KERNEL_ALPHAS
    }
    return {"tokens": needed, "p_values": p_values, "most": num_tokens}


def fault_line(name: str, fault: Fault, folder: Path, tokens: int) -> dict[str, Any]:
    """What the judge and the kernel test need for a fault."""
    settings, with_forms = Settings(**fault.settings), fault.needs_forms  # type: ignore[arg-type]
    kind = "penalised" if fault.settings else "formed" if with_forms else "plain"
    own_folder = folder / name.replace(" ", "_").replace(",", "")
    with served(fault) as url:
        faulty = list(answers(url, own_folder, settings, tokens, with_forms=with_forms))
    with served(NO_FAULT) as url:
        right = list(answers(url, folder / f"right_{kind}", settings, tokens, seeds=1, with_forms=with_forms))
    ids, num_waves = dict[str, int](), min(len(faulty), len(right))
    kernel = kernel_test(texts_by_prompt(faulty[:num_waves], ids), texts_by_prompt(right[:num_waves], ids))
    return {"fault": name, "judge": judged(faulty, settings, ALPHA, fault.needs_reference), "kernel": kernel}


def audits(folder: Path, count: int, tokens: int) -> dict[str, Any]:
    """How many of so many audits of a server without a fault find it guilty."""
    verdicts = []
    with served(NO_FAULT) as url:
        for audit in tqdm(range(count), leave=False, delay=1):
            waves_of_answers = list(answers(url, folder / f"audit_{audit}", Settings(), tokens, audit, audit))
            verdicts.append(judged(waves_of_answers, Settings(), AUDIT_ALPHA))
    guilty = [audit for audit, verdict in enumerate(verdicts) if verdict["tokens"] is not None]
    return {"audits": count, "alpha": AUDIT_ALPHA, "tokens": tokens, "guilty": guilty}


def show(lines: list[dict[str, Any]], tokens: int) -> None:
    """The table of faults."""
    kernel_columns = [f"string kernel, p <= {alpha}" for alpha in KERNEL_ALPHAS]
    table = Table("fault", "judge", "by", *kernel_columns, "p of all texts")
    for line in lines:
        judge, kernel = line["judge"], line["kernel"]
        needed = [f"{size:,}" if size else f"more than {kernel['most']:,}" for size in kernel["tokens"].values()]
        found = f"{judge['tokens']:,}" if judge["tokens"] else f"not in {judge['asked']:,}"
        table.add_row(line["fault"], found, judge["by"], *needed, f"{kernel['p_values'][kernel['most']][0]:.3f}")
    console = Console(width=160)
    console.print(table)
    console.print(f"tokens; alpha = {ALPHA:g} for the judge; {tokens:,} tokens of every server")


def main() -> None:
    """Measure all, and print a table or JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path, help="folder for the answers")
    parser.add_argument("--tokens", type=int, default=32_000, help="of every server, or of every audit")
    parser.add_argument("--faults", nargs="+", default=[*NONE, *FAULTS], choices=[*NONE, *FAULTS])
    parser.add_argument("--audits", type=int, help="so many audits of a server without a fault, in place of the table")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    facts = {"hardware": hardware(), "commit": commit()}
    if options.audits is not None:
        result = audits(options.out, options.audits, options.tokens)
        print(json.dumps(facts | result) if options.json else f"{len(result['guilty'])} of {options.audits} guilty")
        return
    faults = {**NONE, **FAULTS}
    lines = [fault_line(name, faults[name], options.out, options.tokens) for name in tqdm(options.faults, delay=1)]
    print(json.dumps(facts | {"tokens": options.tokens, "lines": lines})) if options.json else show(
        lines, options.tokens
    )


if __name__ == "__main__":
    main()
