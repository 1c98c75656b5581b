"""The report of `multidraft generate`; with --compare also plain decoding, and transformers' own drafting."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from multidraft.cli import terminal
from multidraft.cli.drafter_names import NONE
from multidraft.cli.engines import SMOLLM2, small_draft
from multidraft.io.journal import Journal, Record
from multidraft.machine import is_busy
from multidraft.sampling.params import SETTINGS

if TYPE_CHECKING:
    from multidraft.cli.decode import Decoded
    from multidraft.cli.pair import Models
    from multidraft.cli.prompts import Prompt
    from multidraft.decoding.metrics import Info

ASSISTED, LOOKUP = "assisted", "lookup"  # transformers drafts with a model, or from the prompt
BASELINES = {ASSISTED: "assisted generation", LOOKUP: "prompt look-up"}
MAX_LOOKUP_TOKENS = 10  # as in prompt look-up's original code
RESAMPLES = 2000
PROCESSOR_OPTIONS = [name for name, known in SETTINGS.items() if known.option and known.processor is not None]
HINT_MARGIN = 1.1  # a smaller factor may be noise, and gives no hint
MIN_PROMPTS, MIN_STEPS = 5, 200  # fewer are too little to compare
SHOWN_RATES = 8  # of a list
MIN_SHOWN_SHARE = 0.005  # of a tree: what would be shown as 1 %
MIN_MEASURED = 5  # steps with drafts; an average over fewer is no acceptance rate
BUSY = "busy"  # in place of a ratio
BUSY_NOTE = (
    "the machine is busy (its load average exceeds its processors): seconds mean nothing; run it again when it is idle"
)
UNEQUAL_NOTE = (
    "at temperature 0 a text is plain decoding's but for places where two tokens are as good as equally likely: a pass "
    "over several tokens is rounded otherwise than one over a single token"
)
NOTHING_DRAFTED = (
    "nothing was drafted: no draft was expected to gain more than it costs; look-ups pay where a text repeats its "
    "prompt, or itself"
)
NO_COMPARISON = "there are no drafts (--draft none), so --compare has nothing to compare with plain decoding"


class Runs(list[tuple[int, float]]):
    """The tokens and seconds of every batch of one decoder; empty if it did not run."""

    def rate(self, batches: Iterable[int] | None = None) -> float:
        """Tokens per second over the given batches, or all."""
        runs = self if batches is None else [self[i] for i in batches]
        return sum(tokens for tokens, _ in runs) / max(sum(seconds for _, seconds in runs), 1e-9)

    def speedup_over(self, plain: "Runs") -> float | None:
        """The speedup over plain decoding, if both ran."""
        return self.rate() / max(plain.rate(), 1e-9) if self and plain else None

    def interval(self, plain: "Runs | None" = None) -> tuple[float, float] | None:
        """The 95 % bootstrap interval over batches of the rate, or of the speedup over `plain`; None for one batch."""
        if len(self) < 2 or plain == []:
            return None
        generator, batches = random.Random(0), range(len(self))
        samples = (generator.choices(batches, k=len(batches)) for _ in range(RESAMPLES))
        rates = sorted(self.rate(sample) / (max(plain.rate(sample), 1e-9) if plain else 1) for sample in samples)
        return rates[round(0.025 * RESAMPLES)], rates[round(0.975 * RESAMPLES) - 1]


class RunReport:
    """Collects results batch by batch, prints them as tables or JSON, and writes them to a journal."""

    def __init__(self, settings: dict[str, object], journal: Journal | None):
        from multidraft.decoding.metrics import Info

        self.settings, self.journal, self.interrupted = settings, journal, False
        self.was_busy = is_busy()
        self.records: list[Record] = []
        self.info, self.plain = Info(), Info()
        self.runs = {way: Runs() for way in ("drafted", "plain", *BASELINES)}

    def add(
        self, prompts: "list[Prompt]", drafted: "Decoded", plain: "Decoded | None", others: dict[str, tuple[int, float]]
    ) -> None:
        """Add a batch: prompts, results with and without drafts, and the baselines' tokens and seconds."""
        self.check_load()
        self.info += drafted[1]
        runs = {"drafted": (drafted[1].tokens, drafted[1].decoding_seconds)} | others
        if plain:
            self.plain += plain[1]
            runs["plain"] = plain[1].tokens, plain[1].decoding_seconds
        for name, run in runs.items():
            self.runs[name].append(run)
        for row, prompt in enumerate(prompts):
            extra: Record = {"finish_reason": drafted[1].finish_reasons[row]}
            self.add_record(prompt, drafted[0][row], extra | ({"plain_text": plain[0][row]} if plain else {}))

    def add_record(self, prompt: "Prompt", text: str, extra: Record) -> None:
        """Add the result of a prompt."""
        self.records.append({"id": prompt.id, "task": prompt.task, "text": text} | extra)
        if self.journal is not None:
            self.journal.append(self.records[-1])

    @property
    def complete(self) -> int:
        """The number of prompts that were completed."""
        return sum("interrupted" not in record for record in self.records)

    def interrupt(self, prompts: "list[Prompt]", texts: list[str], info: "Info | None" = None) -> None:
        """Add the texts so far of a batch that was interrupted, and what happened in it."""
        self.interrupted = True
        if info is not None and any(texts):
            self.info += info
        reasons = info.finish_reasons if info is not None else [None] * len(prompts)
        for row, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            if text:
                self.add_record(prompt, text, {"finish_reason": reasons[row], "interrupted": True})

    def print(self, as_json: bool) -> None:
        """Print tables, or JSON for scripts."""
        self.check_load()
        if as_json:
            return terminal.print_json(self.as_dict())
        if not self.info.tokens:
            return
        columns, rows = ["", "multi-draft" if self.has_draft else "plain"], [row[:2] for row in self.summary_rows()]
        if self.plain.tokens and len(speed_rows := self.speed_rows()) > 1:
            terminal.print_table(["", "tokens per second", "times plain decoding"], speed_rows, numbers=True)
        if self.plain.tokens and self.has_draft:
            columns, rows = [*columns, "plain"], self.summary_rows()
        terminal.print_table(columns, rows, numbers=True)
        if (texts := self.compared_texts) and texts[0] < texts[1]:
            terminal.note(UNEQUAL_NOTE)
        if self.was_busy:
            terminal.note(BUSY_NOTE)
        if self.advice is not None:
            terminal.note(self.advice)

    def check_load(self) -> None:
        """Note whether the machine is busy now, as it was at the start or after a batch."""
        self.was_busy = self.was_busy or is_busy()

    @property
    def has_draft(self) -> bool:
        """Whether there is a drafter; else all is plain decoding, which runs once."""
        return self.settings.get("draft") != NONE

    @property
    def compared_texts(self) -> tuple[int, int] | None:
        """How many texts are plain decoding's, and of how many; None where tokens are drawn, or none compared."""
        records = [record for record in self.records if "plain_text" in record]
        if not (records and self.has_draft) or self.settings.get("temperature") != 0:
            return None
        return sum(record["text"] == record["plain_text"] for record in records), len(records)

    @property
    def advice(self) -> str | None:
        """A line of advice on what was compared; None if there is none, or if the machine was busy."""
        if self.plain.tokens and not self.has_draft:
            return NO_COMPARISON
        if self.was_busy:
            return None
        if self.has_draft and self.info.row_passes >= MIN_STEPS and not self.info.draft_steps:
            return NOTHING_DRAFTED
        return hint(self.info, self.plain, str(self.settings["tree"]), self.complete)

    def as_dict(self) -> dict[str, object]:
        """The report as a dictionary; None for what was not measured."""
        from multidraft.machine import hardware, versions

        numbers = self.info.as_dict() if self.info.tokens else dict.fromkeys(self.info.as_dict())
        settings = self.settings | {"prompts": self.complete}
        run = {"interrupted": self.interrupted, "settings": settings, "versions": versions(), "hardware": hardware()}
        return numbers | self.comparison() | run | {"records": self.records}

    def comparison(self) -> dict[str, object]:
        """Speeds and speedups of all decoders; None for what was not measured."""
        plain, numbers = self.runs["plain"], dict[str, object]()
        for name, runs in self.runs.items():
            prefix = "" if name == "drafted" else f"{name}_"
            if name != "plain":
                is_told = not self.was_busy and (self.has_draft or name != "drafted")
                ratio = (None, None) if not is_told else (runs.speedup_over(plain), runs.interval(plain))
                numbers |= dict(zip((f"{prefix}speedup", f"{prefix}speedup_interval"), ratio, strict=True))
            if prefix:
                numbers[f"{name}_tokens_per_second"] = runs.rate() if runs else None
            if name in BASELINES:
                numbers[f"{name}_tokens_per_second_interval"] = runs.interval()
        equal_texts, _ = self.compared_texts or (None, None)
        numbers |= {"equal_texts": equal_texts, "busy": self.was_busy, "hint": self.advice}
        return numbers | {"plain_seconds": self.plain.as_dict()["seconds"] if plain else None}

    def speed_rows(self) -> list[list[str]]:
        """A row per decoder: its tokens per second, and its speedup over plain decoding with the interval."""
        plain, rows = self.runs["plain"], []
        labels = {"drafted": "multi-draft", "plain": "plain decoding", **BASELINES}
        if not self.has_draft:  # the first is plain decoding, too
            del labels["drafted"]
        for name, label in labels.items():
            runs = self.runs[name]
            interval = runs.interval(plain) if name != "plain" else None
            interval_text = f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else ""
            if runs:
                ratio = BUSY if self.was_busy else f"{runs.speedup_over(plain):.2f}{interval_text}"
                rows.append([label, f"{runs.rate():.1f}", ratio])
        return rows

    def summary_rows(self) -> list[list[str]]:
        """Rows of the summary: a name, our value, plain decoding's value."""
        from multidraft.decoding.metrics import TIMED_PARTS

        info, plain = self.info, self.plain
        acceptance_rows = [
            *([name, value, ""] for name, value in acceptance(info)),
            ["accepted by depth", listed_rates(info, info.depth_rates), ""],
            ["accepted by order of drawing", listed_rates(info, info.rank_rates), ""],
        ]
        texts = self.compared_texts
        return [
            ["tokens", f"{info.tokens}", f"{plain.tokens}"],
            *([["texts equal to plain decoding's", "{} of {}".format(*texts), ""]] if texts else []),
            ["tokens per second", f"{info.tokens_per_second:.1f}", f"{plain.tokens_per_second:.1f}"],
            ["tokens a pass (block efficiency)", f"{info.block_efficiency:.3f}", f"{plain.block_efficiency:.3f}"],
            ["trees", self.trees, ""],
            *(acceptance_rows if info.draft_steps else []),
            ["seconds", f"{info.total_seconds:.2f}", f"{plain.total_seconds:.2f}"],
            *([f"  {part}", share(info, part), share(plain, part)] for part in TIMED_PARTS),
        ]

    @property
    def trees(self) -> str:
        """The three most frequent trees, with their shares."""
        from multidraft.decoding.metrics import NO_TREE

        shapes = Counter[str]()
        for name, count in self.info.shapes.items():
            levels = name.split("/")  # for a tree given by the drafts of every slot, show its size
            drafts = sum(map(int, ",".join(levels).split(","))) if len(levels) > 1 else 0
            shapes[f"{drafts} drafts in {len(levels)} levels" if drafts else name or NO_TREE] += count
        shares = [(name, count / shapes.total()) for name, count in shapes.most_common(3)]
        return ", ".join(f"{name} {share:.0%}" for name, share in shares if share >= MIN_SHOWN_SHARE)


def acceptance(info: "Info") -> list[tuple[str, str]]:
    """The acceptance rate and its optimum, with standard errors: the second's is that of the difference."""
    steps = info.measured or info.drawing_passes
    if steps < MIN_MEASURED:
        rate = optimum = f"not measured ({steps} step{'s' * (steps != 1)} with drafts)"
    else:
        rate, optimum = f"{info.acceptance_rate:.3f}", "unknown"
    if info.measured >= MIN_MEASURED:
        gap, error = info.optimal_acceptance_rate - info.acceptance_rate, info.gap_error
        rate += f" ± {info.acceptance_error:.3f}"
        optimum = f"{info.optimal_acceptance_rate:.3f}" + (f" ({gap:+.3f} ± {error:.3f})" if error > 0 else "")
    return [("acceptance rate", rate), ("optimal acceptance rate", optimum)]


def listed_rates(info: "Info", rates: Sequence[float]) -> str:
    """The first of some rates; nothing where they are of too few steps."""
    if (info.measured or info.drawing_passes) < MIN_MEASURED:
        return ""
    return " ".join(f"{rate:.2f}" for rate in rates[:SHOWN_RATES]) + " ..." * (len(rates) > SHOWN_RATES)


def share(info: "Info", part: str) -> str:
    """A part's seconds, and its share of the total."""
    return f"{info.seconds[part]:.2f} ({info.seconds[part] / max(info.total_seconds, 1e-9):4.0%})"


def hint(info: "Info", plain: "Info", tree: str, prompts: int) -> str | None:
    """A line of advice if decoding was measurably slower with drafts, or if too little was compared to tell."""
    if not (info.draft_steps and info.tokens and plain.tokens):
        return None
    if prompts < MIN_PROMPTS or info.row_passes < MIN_STEPS:
        amount = f"{prompts} prompt{'s' * (prompts != 1)} and {info.row_passes} steps"
        return f"too little to tell ({amount}): compare at least {MIN_PROMPTS} prompts and {MIN_STEPS} steps"
    speedup = info.tokens_per_second / max(plain.tokens_per_second, 1e-9)
    if speedup * HINT_MARGIN >= 1:
        return None
    reason = f"tree {tree} runs at {speedup:.2f} times plain decoding"
    accepted = (info.rank_rates or [0.0])[0]
    return f"hint: no drafts are best here: --draft none ({reason}, {accepted:.0%} of first drafts accepted)"


def baselines(pair: "Models", settings: dict[str, Any], target: str) -> dict[str, dict[str, Any]]:
    """The keywords of transformers' `generate` for each of its ways to draft; empty if it lacks a setting.

    transformers cannot draft with a head, so smollm2's small draft model takes its place.
    """
    from multidraft.models.reader import Reader

    lacking = [name for name in PROCESSOR_OPTIONS if SETTINGS[name].transformers is None]
    if settings["stop"] or any(SETTINGS[name].has_processor(settings.get(name), False) for name in lacking):
        return {}
    if isinstance(pair.target, Reader):
        return {}
    keywords: dict[str, dict[str, Any]] = {LOOKUP: {"prompt_lookup_num_tokens": MAX_LOOKUP_TOKENS}}
    members = pair.draft.drafters if isinstance(pair.draft, Reader) else ()
    drafts = [draft for draft in (pair.draft, *(getattr(member, "model", None) for member in members)) if draft]
    drafts = [draft for draft in drafts if not isinstance(draft, Reader)]
    if target == SMOLLM2 and isinstance(pair.draft, Reader) and pair.draft.hidden_layers:
        drafts = drafts or [small_draft()]
    if len(drafts) == 1:
        vocabulary = pair.target.config.get_text_config().vocab_size
        keywords[ASSISTED] = {"assistant_model": with_whole_vocabulary(drafts[0], vocabulary)}
    return keywords


@cache
def with_whole_vocabulary(draft: Any, vocabulary: int) -> Any:
    """A copy of a draft model with a part of the vocabulary, for the whole of it; added tokens have probability 0."""
    import copy

    import torch

    ids = getattr(draft.config, "target_ids", None)
    if ids is None:
        return draft
    places, count = torch.full((vocabulary,), len(ids), device=draft.device), len(ids)
    places[ids] = torch.arange(count, device=draft.device)

    def all_scores(head: Any, states: Any, scores: torch.Tensor) -> torch.Tensor:
        whole = scores.new_full((*scores.shape[:-1], vocabulary), -float("inf"))
        whole[..., ids] = scores[..., :count]
        return whole

    wide = copy.deepcopy(draft)
    wide.config.vocab_size = vocabulary
    wide.get_input_embeddings().register_forward_pre_hook(lambda embedding, tokens: places[tokens[0]])
    wide.get_output_embeddings().register_forward_hook(all_scores)
    return wide


def run_baseline(
    pair: "Models", prompts: "list[Prompt]", settings: dict[str, Any], seed: int, baseline: dict[str, Any]
) -> tuple[int, float]:
    """Run transformers' `generate` with a way to draft, one prompt at a time; return tokens and seconds."""
    import time

    import torch

    target: Any = pair.target  # its type hides `generate`
    keywords, tokens, start_time = baseline | transformers_settings(target, settings), 0, time.perf_counter()
    for prompt in prompts:
        torch.manual_seed(seed + prompt.index)
        ids = torch.tensor([prompt.tokens], device=target.device)
        tokens += target.generate(ids, attention_mask=torch.ones_like(ids), **keywords).shape[1] - ids.shape[1]
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return tokens, time.perf_counter() - start_time


def transformers_settings(target: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings under transformers' names; others are off, and a pad token is set, which it requires."""
    pad, ends = target.generation_config.pad_token_id, settings["eos_token_id"]
    keywords = {"max_new_tokens": settings["max_new_tokens"], "eos_token_id": ends or None}
    keywords |= {"pad_token_id": (ends or [0])[0] if pad is None else pad}
    if settings["temperature"] == 0:
        return keywords | {"do_sample": False}
    sampling = {
        name: settings[name] for name in PROCESSOR_OPTIONS if SETTINGS[name].has_processor(settings[name], False)
    }
    return keywords | {"do_sample": True, "top_k": 0, "top_p": 1.0} | sampling
