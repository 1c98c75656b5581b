"""Speed of drafting against plain decoding and against Hugging Face's assisted generation, all in one run.

    python benchmarks/decode.py [--temperature 0 0.7 1] [--seeds 2] [--new-tokens 128] [--prompts FILE] [--batch 1]
                                [--compile] [--layers N]
                                [--case SCHEME TREE WALK] [--target MODEL --draft MODEL] [--measure] [--json]

Every case takes its turn on every prompt before the next prompt comes, so that a noisy machine hits all alike. A speed
is a ratio of tokens per second of wall-clock time, prompt included, to plain decoding with our loop, in the same run;
its interval holds 95 % of the bootstrap over prompts and seeds. Tokens a pass do not depend on the machine.

`--layers 24` gives the target layers that change nothing: a larger model of the same distribution, to see what
drafting gives where a pass of the target costs more.
"""

import argparse
import copy
import json
import random
import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from tqdm import tqdm
from transformers import PreTrainedModel

import multidraft as md
from multidraft.commands.machine import hardware, versions
from multidraft.commands.pair import load
from multidraft.decoding.metrics import PARTS, Info
from multidraft.decoding.walks import SMALLEST, deferred

PROMPTS = Path(md.__file__).parent / "zoo" / "prompts" / "demo_prompts.jsonl"
OURS = [
    ("iid:lorenz", "1x1", "deferred"),
    ("iid:lorenz", "1x1x1", "deferred"),
    ("iid:lorenz", "1x1x1x1", "deferred"),
    ("iid:recursive_rejection", "2x1x1x1", "commit"),
    ("without_replacement:recursive_rejection", "2x1x1x1", "deferred"),
    ("greedy:maximal_coupling", "2x1x1x1", "deferred"),
    ("iid:lorenz", "2x1x1x1", "deferred"),
    ("anchored:lorenz", "2x1x1x1", "deferred"),
    ("anchored:lorenz", "3x1x1x1", "deferred"),
    ("anchored:lorenz", "3x1x1", "deferred"),
    ("iid:recursive_rejection", "4x2x2x1", "commit"),
    ("without_replacement:recursive_rejection", "4x2x2x1", "deferred"),
    ("iid:lorenz", "4x2x2x1", "deferred"),
    ("anchored:lorenz", "4x2x2x1", "commit"),
    ("anchored:lorenz", "4x2x2x1", "deferred"),
]
ASSISTANT_TOKENS = (1, 2, 3, 4, 5)
Case = tuple[str, str, str]
PLAIN: Case = ("plain decoding, ours", "", "")
THEIRS: list[Case] = [("model.generate", "", "")]
THEIRS += [("model.generate, assisted", "x".join("1" * count), "") for count in ASSISTANT_TOKENS]


@dataclass
class Runs:
    """What one case did on every prompt with every seed."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    infos: list[Info] = field(default_factory=list)

    def rate(self, rows: list[int]) -> float:
        """Tokens per second over some of the runs."""
        return sum(self.tokens[i] for i in rows) / sum(self.seconds[i] for i in rows)


def deeper(target: PreTrainedModel, layers: int) -> PreTrainedModel:
    """The same distribution from more layers: those that are added write nothing to the residual stream."""
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = layers
    larger = type(target)(config).to(target.dtype).to(target.device)
    larger.load_state_dict(target.state_dict(), strict=False)
    for layer in larger.model.layers[target.config.num_hidden_layers :]:
        layer.self_attn.o_proj.weight.data.zero_()
        layer.mlp.down_proj.weight.data.zero_()
    larger.generation_config = target.generation_config
    return larger.eval()


def ours(pair, case: Case, prompts: list[list[int]], temperature: float, seed: int, options) -> tuple[int, Info]:
    """A batch of prompts by our loop."""
    scheme, tree, name = case
    walk = partial(deferred, smallest=options.smallest) if name == "deferred" else name
    settings = {} if case == PLAIN else dict(scheme=scheme, tree=tree, walk=walk, compile_draft=options.compile)
    draft, generator = None if case == PLAIN else pair.draft, torch.Generator().manual_seed(seed)
    rows, info = md.generate(
        pair.target,
        draft,
        prompts,
        temperature=temperature,
        max_new_tokens=options.new_tokens,
        eos_token_id=[],
        generator=generator,
        measure=options.measure,
        **settings,
    )
    return sum(map(len, rows)), info


def theirs(pair, case: Case, prompts: list[list[int]], temperature: float, seed: int, options) -> tuple[int, Info]:
    """The same by transformers: nothing truncated, the number of draft tokens constant, no end of text."""
    torch.manual_seed(seed)
    sampling = (
        dict(do_sample=True, temperature=temperature, top_k=0, top_p=1.0) if temperature else dict(do_sample=False)
    )
    if case[1]:
        config = pair.draft.generation_config
        config.num_assistant_tokens, config.num_assistant_tokens_schedule = case[1].count("1"), "constant"
        config.assistant_confidence_threshold = 0.0
        sampling["assistant_model"] = pair.draft
    longest = max(map(len, prompts))
    ids = torch.tensor([[-1] * (longest - len(prompt)) + prompt for prompt in prompts], device=pair.target.device)
    mask, ids = (ids >= 0).long(), ids.clamp(min=0)
    out = pair.target.generate(
        ids, attention_mask=mask, max_new_tokens=options.new_tokens, eos_token_id=-1, pad_token_id=0, **sampling
    )
    return out[:, longest:].numel(), Info()


def timed(pair, case: Case, prompts: list[list[int]], temperature: float, seed: int, options, runs: Runs) -> None:
    """Decode a batch and note how it went; what only the report needs does not count."""
    start = time.perf_counter()
    count, info = (theirs if case in THEIRS else ours)(pair, case, prompts, temperature, seed, options)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    runs.seconds.append(time.perf_counter() - start - info.watch.seconds["measuring"])
    runs.tokens.append(count)
    runs.infos.append(info)


def interval(runs: Runs, plain: Runs, draws: int = 2000) -> tuple[float, float]:
    """95 % of the bootstrap of the ratio of rates, over prompts and seeds."""
    chance, rows = random.Random(0), range(len(runs.tokens))
    samples = (chance.choices(rows, k=len(rows)) for _ in range(draws))
    ratios = sorted(runs.rate(sample) / plain.rate(sample) for sample in samples)
    return ratios[int(0.025 * draws)], ratios[int(0.975 * draws)]


def summary(case: Case, temperature: float, runs: Runs, plain: Runs) -> dict:
    """One line of the table."""
    rows, whole = list(range(len(runs.tokens))), sum(runs.infos[1:], runs.infos[0])
    line = dict(case=case[0], tree=case[1], walk=case[2], temperature=temperature)
    line |= dict(speedup=runs.rate(rows) / plain.rate(rows), interval=interval(runs, plain))
    if case in THEIRS:
        return line
    parts = {part: whole.watch.seconds[part] / whole.total_seconds for part in PARTS}
    line |= dict(block_efficiency=whole.block_efficiency, share_of_time=parts)
    if whole.optimal_acceptance:
        line |= dict(acceptance_rate=whole.acceptance_rate, optimal_acceptance_rate=whole.optimal_acceptance_rate)
    return line


def measure(pair, cases: list[Case], prompts: list[list[int]], temperature: float, options) -> list[dict]:
    """All cases at one temperature."""
    runs = {case: Runs() for case in cases}
    batches = [prompts[i : i + options.batch] for i in range(0, len(prompts), options.batch)]
    for case in tqdm(cases, desc="warm-up", leave=False):
        timed(pair, case, batches[0], temperature, 0, argparse.Namespace(**vars(options) | {"new_tokens": 24}), Runs())
    for seed in range(options.seeds):
        for batch in tqdm(batches, desc=f"temperature {temperature:g}, seed {seed}", leave=False):
            for case in cases:
                timed(pair, case, batch, temperature, seed, options, runs[case])
    return [summary(case, temperature, runs[case], runs[PLAIN]) for case in cases]


def print_table(lines: list[dict]) -> None:
    """One temperature for people."""
    table = Table(
        "", "tree", "walk", "tokens a pass", "speed / plain", "95 %", "draft target rule+rest", "accepted / best"
    )
    for line in lines:
        shares = line.get("share_of_time")
        rest = shares and [shares["draft"], shares["target"], 1 - shares["draft"] - shares["target"]]
        table.add_row(
            line["case"],
            line["tree"],
            line["walk"],
            f"{line['block_efficiency']:.2f}" if shares else "",
            f"{line['speedup']:.2f}",
            "{:.2f} to {:.2f}".format(*line["interval"]),
            " ".join(f"{share:.0%}" for share in rest) if rest else "",
            f"{line['acceptance_rate']:.3f} / {line['optimal_acceptance_rate']:.3f}"
            if "acceptance_rate" in line
            else "",
        )
    Console(width=150).print(table)


def headline(lines: list[dict]) -> str:
    """The best of each kind, and the ratio between them; says so where drafting, or a tree, does not pay."""
    assisted = max((li for li in lines if "assisted" in li["case"]), key=lambda li: li["speedup"], default=None)
    drafted = max((li for li in lines if li["walk"]), key=lambda li: li["speedup"])
    trees = [li for li in lines if li["walk"] and set(li["tree"]) != {"1", "x"}]
    tree = max(trees, key=lambda li: li["speedup"]) if trees else drafted
    text = (
        f"temperature {drafted['temperature']:g}: best {drafted['case']} {drafted['tree']}, {drafted['speedup']:.2f} "
    )
    text += "times plain"
    if assisted:  # it takes a batch of one only
        text += f" and {drafted['speedup'] / assisted['speedup']:.2f} times assisted generation at its best"
        text += f" ({assisted['tree'].count('1')} tokens, {assisted['speedup']:.2f} times plain)"
    if tree["speedup"] < drafted["speedup"]:
        text += f"; a tree does not pay here: {tree['case']} {tree['tree']} reaches {tree['speedup']:.2f}"
    return text + ("; drafting does not pay here" if drafted["speedup"] < 1 else "")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--temperature", type=float, nargs="+", default=[0.0, 0.7, 1.0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompts", type=Path, default=PROMPTS)
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--batch", type=int, default=1, help="prompts side by side, more than one without assistance")
    parser.add_argument("--case", nargs=3, action="append", metavar=("SCHEME", "TREE", "WALK"), help="instead of ours")
    parser.add_argument("--target", default=None)
    parser.add_argument("--draft", default=None)
    parser.add_argument("--layers", type=int, default=None, help="of the target, those added change nothing")
    parser.add_argument("--compile", action="store_true", help="compile the draft model's steps")
    parser.add_argument("--smallest", type=float, default=SMALLEST, help="smallest claim of the deferred walk")
    parser.add_argument("--measure", action="store_true", help="also acceptance beside the optimum; disturbs the times")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Decode everything and print tables, or JSON."""
    options = arguments()
    pair = load(options.target, options.draft)
    if options.layers:
        pair = pair._replace(target=deeper(pair.target, options.layers))
    lines = options.prompts.read_text().splitlines()[: options.limit]
    prompts = [pair.tokenizer(json.loads(line)["prompt"])["input_ids"] for line in lines]
    theirs = THEIRS if options.batch == 1 else THEIRS[:1]
    cases = [PLAIN, *theirs, *(map(tuple, options.case) if options.case else OURS)]
    results = [measure(pair, cases, prompts, temperature, options) for temperature in options.temperature]
    if options.json:
        report = dict(hardware=hardware(), versions=versions(), results=results, headlines=list(map(headline, results)))
        return print(json.dumps(report))
    print(f"{hardware()}\n{versions()}, {options}")
    for lines in results:
        print_table(lines)
        print(headline(lines))


if __name__ == "__main__":
    main()
