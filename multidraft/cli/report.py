"""What `multidraft generate` reports, beside what --compare asks for: plain decoding, transformers' ways to draft."""

import random
from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from multidraft.cli import terminal
from multidraft.cli.models import SMOLLM2, small_draft
from multidraft.io.journal import Journal, Record

if TYPE_CHECKING:
    from multidraft.cli.decode import Decoded
    from multidraft.cli.models import Models
    from multidraft.cli.prompts import Prompt
    from multidraft.decoding.metrics import Info

ASSISTED, LOOKUP = "assisted", "lookup"  # what transformers drafts with: the draft model, or the prompt
RIVALS = {ASSISTED: "assisted generation", LOOKUP: "prompt look-up"}
LOOKED_UP = 10  # tokens that prompt look-up drafts at most, as its authors have it
RESAMPLES = 2000
MARGIN = 1.1  # times faster: less may be noise, and is no reason for a hint
SAMPLING = "temperature top_k top_p min_p repetition_penalty".split()  # settings that transformers has by these names


class Runs(list[tuple[int, float]]):
    """The tokens and seconds of every batch; empty where a way to decode was not taken."""

    def rate(self, batches: Iterable[int] | None = None) -> float:
        """Tokens per second, over all batches or some."""
        some = self if batches is None else [self[i] for i in batches]
        return sum(tokens for tokens, _ in some) / max(sum(seconds for _, seconds in some), 1e-9)

    def over(self, plain: "Runs") -> float | None:
        """Tokens per second over those of plain decoding, where both are known."""
        return self.rate() / max(plain.rate(), 1e-9) if self and plain else None

    def interval(self, plain: "Runs | None" = None) -> tuple[float, float] | None:
        """95 % of the bootstrap over batches of the rate, or of its ratio to the plain one; None for one batch."""
        if len(self) < 2 or plain == []:
            return None
        chance, batches = random.Random(0), range(len(self))
        samples = (chance.choices(batches, k=len(batches)) for _ in range(RESAMPLES))
        rates = sorted(self.rate(some) / (max(plain.rate(some), 1e-9) if plain else 1) for some in samples)
        return rates[round(0.025 * RESAMPLES)], rates[round(0.975 * RESAMPLES) - 1]


class Report:
    """Results batch by batch, summed up: tables for people, one JSON object for scripts; a journal has them, too."""

    def __init__(self, settings: dict[str, object], journal: Journal | None):
        from multidraft.decoding.metrics import Info

        self.settings, self.journal, self.interrupted = settings, journal, False
        self.records: list[Record] = []
        self.info, self.plain = Info(), Info()
        self.runs = {way: Runs() for way in ("drafted", "plain", *RIVALS)}

    def add(
        self, prompts: "list[Prompt]", drafted: "Decoded", plain: "Decoded | None", rivals: dict[str, tuple[int, float]]
    ) -> None:
        """One batch: its prompts, the texts with drafts and without, and the rivals' tokens and seconds."""
        self.info += drafted[1]
        ways = {"drafted": (drafted[1].tokens, drafted[1].total_seconds)} | rivals
        if plain:
            self.plain += plain[1]
            ways["plain"] = plain[1].tokens, plain[1].total_seconds
        for name, ran in ways.items():
            self.runs[name].append(ran)
        for row, prompt in enumerate(prompts):
            self.keep(prompt, drafted[0][row], {"plain_text": plain[0][row]} if plain else {})

    def keep(self, prompt: "Prompt", text: str, more: Record) -> None:
        """The result of a prompt."""
        self.records.append({"id": prompt.id, "task": prompt.task, "text": text} | more)
        if self.journal is not None:
            self.journal.append(self.records[-1])

    @property
    def complete(self) -> int:
        """How many prompts came to their end."""
        return sum("interrupted" not in record for record in self.records)

    def interrupt(self, prompts: "list[Prompt]", texts: list[str]) -> None:
        """What there is of a batch that was stopped."""
        self.interrupted = True
        for prompt, text in zip(prompts, texts, strict=True):
            if text:
                self.keep(prompt, text, {"interrupted": True})

    def print(self, as_json: bool) -> None:
        """For people or for scripts."""
        if as_json:
            return terminal.print_json(self.as_dict())
        if not self.complete:
            return
        columns, rows = ["", "multi-draft"], [row[:2] for row in self.rows()]
        if self.plain.tokens:
            terminal.print_table(["", "tokens per second", "times plain decoding"], self.ways(), numbers=True)
            columns, rows = [*columns, "plain"], self.rows()
        terminal.print_table(columns, rows, numbers=True)
        if said := hint(self.info, self.plain, str(self.settings["tree"])):
            terminal.note(said)

    def as_dict(self) -> dict[str, object]:
        """Plain names; null for what was not measured."""
        from multidraft.machine import hardware, versions

        numbers = self.info.as_dict() if self.complete else dict.fromkeys(self.info.as_dict())
        settings = self.settings | {"prompts": self.complete}
        run = {"interrupted": self.interrupted, "settings": settings, "versions": versions(), "hardware": hardware()}
        return numbers | self.compared() | run | {"records": self.records}

    def compared(self) -> dict[str, object]:
        """Ours, plain decoding and transformers' ways to draft; None for what was not measured."""
        plain, found = self.runs["plain"], dict[str, object]()
        for name, runs in self.runs.items():
            prefix = "" if name == "drafted" else f"{name}_"
            if name != "plain":
                found |= {f"{prefix}speedup": runs.over(plain), f"{prefix}speedup_interval": runs.interval(plain)}
            if prefix:
                found[f"{name}_tokens_per_second"] = runs.rate() if runs else None
            if name in RIVALS:
                found[f"{name}_tokens_per_second_interval"] = runs.interval()
        found["hint"] = hint(self.info, self.plain, str(self.settings["tree"]))
        return found | {"plain_seconds": self.plain.as_dict()["seconds"] if plain else None}

    def ways(self) -> list[list[str]]:
        """Every way to decode: its tokens a second, and those over plain decoding's, with the interval."""
        plain, rows = self.runs["plain"], []
        for name, shown in {"drafted": "multi-draft", "plain": "plain decoding", **RIVALS}.items():
            runs = self.runs[name]
            between = runs.interval(plain) if name != "plain" else None
            said = f" ({between[0]:.2f} to {between[1]:.2f})" if between else ""
            if runs:
                rows.append([shown, f"{runs.rate():.1f}", f"{runs.over(plain):.2f}{said}"])
        return rows

    def rows(self) -> list[list[str]]:
        """The summary: a name, ours, and plain decoding's."""
        from multidraft.decoding.metrics import PARTS

        info, plain = self.info, self.plain
        error = f" ± {info.acceptance_error:.3f}" if info.acceptance_error > 0 else ""
        judged = [
            ["acceptance rate", f"{info.acceptance_rate:.3f}{error}", ""],
            ["optimal acceptance rate", f"{info.optimal_acceptance_rate:.3f}", ""],
            ["accepted by depth", " ".join(f"{rate:.2f}" for rate in info.depth_rates), ""],
            ["accepted by order of drawing", " ".join(f"{rate:.2f}" for rate in info.rank_rates), ""],
        ]
        return [
            ["tokens", f"{info.tokens}", f"{plain.tokens}"],
            ["tokens per second", f"{info.tokens_per_second:.1f}", f"{plain.tokens_per_second:.1f}"],
            ["tokens a pass (block efficiency)", f"{info.block_efficiency:.3f}", f"{plain.block_efficiency:.3f}"],
            ["trees", self.trees, ""],
            *(judged if info.drafts else []),
            ["seconds", f"{info.total_seconds:.2f}", f"{plain.total_seconds:.2f}"],
            *([f"  {part}", share(info, part), share(plain, part)] for part in PARTS),
        ]

    @property
    def trees(self) -> str:
        """The trees that were taken, the most frequent first, with their shares."""
        shapes = Counter[str]()
        for name, count in self.info.shapes.items():
            levels = name.split("/")  # of a tree that is given by the drafts of every slot, how large it is
            drafts = sum(map(int, ",".join(levels).split(","))) if len(levels) > 1 else 0
            shapes[f"{drafts} drafts in {len(levels)} levels" if drafts else name or "none"] += count
        return ", ".join(f"{name} {count / shapes.total():.0%}" for name, count in shapes.most_common(3))


def share(info: "Info", part: str) -> str:
    """Seconds of one part and its share."""
    return f"{info.seconds[part]:.2f} ({info.seconds[part] / max(info.total_seconds, 1e-9):4.0%})"


def hint(info: "Info", plain: "Info", tree: str) -> str | None:
    """One line where drafts do not pay by the seconds that were measured."""
    ours = info.tokens_per_second / max(plain.tokens_per_second, 1e-9)
    if not (info.drafts and info.tokens and plain.tokens) or ours * MARGIN >= 1:
        return None
    why = f"tree {tree} runs at {ours:.2f} times plain decoding"
    accepted = (info.rank_rates or [0.0])[0]
    return f"hint: no drafts are best here: --draft none ({why}, {accepted:.0%} of first drafts accepted)"


def rivals(pair: "Models", settings: dict[str, Any], target: str) -> dict[str, dict[str, Any]]:
    """What transformers' own loop is given for each way to draft that it has, where it can do what the settings ask.

    It cannot draft with a head: the small model that comes with smollm2 takes its place.
    """
    from transformers import PreTrainedModel

    from multidraft.models.base import heard_by

    if not isinstance(pair.target, PreTrainedModel) or settings["stop"]:
        return {}
    found: dict[str, dict[str, Any]] = {LOOKUP: {"prompt_lookup_num_tokens": LOOKED_UP}}
    readers = [getattr(reader, "model", None) for reader in getattr(pair.draft, "drafters", ())]
    drafts = [draft for draft in (pair.draft, *readers) if isinstance(draft, PreTrainedModel)]
    if target == SMOLLM2 and heard_by(pair.draft):
        drafts = drafts or [small_draft()]
    if len(drafts) == 1:
        found[ASSISTED] = {"assistant_model": widened(drafts[0], pair.target.config.get_text_config().vocab_size)}
    return found


@cache
def widened(draft: Any, vocabulary: int) -> Any:
    """A draft model with a part of its target's tokens as one with all of them; the others have probability 0."""
    import copy

    import torch
    from transformers.modeling_outputs import CausalLMOutputWithPast

    ids = getattr(draft.config, "target_ids", None)
    if ids is None:
        return draft
    places, count = torch.full((vocabulary,), len(ids)), len(ids)
    places[ids] = torch.arange(count)

    class Widened(type(draft)):  # type: ignore[misc]  # whatever the draft is
        def forward(self, input_ids: Any = None, **others: Any) -> Any:
            found = super().forward(input_ids=places[input_ids], **others)
            logits = found.logits.new_full((*found.logits.shape[:2], vocabulary), -float("inf"))
            logits[..., ids] = found.logits[..., :count]
            return CausalLMOutputWithPast(logits=logits, past_key_values=found.past_key_values)

    wide = copy.copy(draft)
    wide.__class__, wide.config = Widened, copy.deepcopy(draft.config)
    wide.config.vocab_size = vocabulary
    return wide


def rival(
    pair: "Models", prompts: "list[Prompt]", settings: dict[str, Any], seed: int, way: dict[str, Any]
) -> tuple[int, float]:
    """Tokens and seconds of transformers' own loop with a way to draft; it takes one prompt at a time."""
    import time

    import torch

    target: Any = pair.target  # its type hides `generate`
    own, tokens, start = way | as_transformers(target, settings), 0, time.perf_counter()
    for prompt in prompts:
        torch.manual_seed(seed + prompt.index)
        ids = torch.tensor([prompt.tokens], device=target.device)
        tokens += target.generate(ids, attention_mask=torch.ones_like(ids), **own).shape[1] - ids.shape[1]
    if target.device.type == "cuda":
        torch.cuda.synchronize()
    return tokens, time.perf_counter() - start


def as_transformers(target: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Settings by transformers' names, where what is left out is off; with a pad token, which it wants."""
    pad, ends = target.generation_config.pad_token_id, target.generation_config.eos_token_id
    end = ends[0] if isinstance(ends, list) else ends or 0
    made = {"max_new_tokens": settings["max_new_tokens"], "pad_token_id": end if pad is None else pad}
    if settings["temperature"] == 0:
        return made | {"do_sample": False}
    given = {name: settings[name] for name in SAMPLING if settings[name] is not None}
    return made | {"do_sample": True, "top_k": 0, "top_p": 1.0} | given
