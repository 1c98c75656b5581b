"""One batch of prompts decoded: texts, and the report of how it went."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.cli.models import Models
from multidraft.cli.prompts import Prompt
from multidraft.cli.terminal import Screen
from multidraft.generation.detokenize import IncrementalDetokenizer
from multidraft.io import files

if TYPE_CHECKING:
    from multidraft.decoding.metrics import Info
    from multidraft.decoding.record import Emitted
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.zoo import Pair

SEEDS_APART = 1_000_003
LARGEST_PLAN = 2**24  # bytes


@dataclass(frozen=True)
class Job:
    """How to decode, and the part of it that `multidraft.generate` takes as it is."""

    batch: int
    seed: int
    compare: bool
    settings: dict[str, Any]
    trace: "TraceFile | None" = None
    drafts: bool = True

    def check(self, drafters: int) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.generation.inputs import check_drafters, limits_of, make_config, plan_file, tree_or_fixed
        from multidraft.sampling.settings_table import SETTINGS, check, check_stops

        s = self.settings
        for name in SETTINGS.keys() & s.keys():
            if s[name] is not None:
                check(name, s[name], f"--{name.replace('_', '-')}")
        check_stops("--stop", s["stop"] or [])
        if s["plan"] is not None:
            files.content(Path(s["plan"]), "the plan", LARGEST_PLAN)
        plan_file(s["plan"], limits_of(s["tree"], s["scheme"]) if self.drafts else None)
        config = make_config(s["scheme"], tree_or_fixed(s["tree"]), s["walk"], False)
        if self.drafts:
            check_drafters(config.scheme, drafters > 1)


def context(pair: "Models | Pair") -> int | None:
    """The longest sequence that target and draft can read."""
    from multidraft.generation.inputs import context_of

    both = [context_of(model) for model in (pair.target, pair.draft) if model is not None]
    return min((context for context in both if context is not None), default=None)


def decode(
    pair: Models, job: Job, rows: list[Prompt], drafts: bool = True, screen: Screen | None = None
) -> tuple[list[str], "Info"]:
    """One batch's texts and its report."""
    import torch

    import multidraft as md

    screen = screen or Screen()
    texts = Texts(pair, rows, screen)
    generators = [torch.Generator().manual_seed(job.seed * SEEDS_APART + prompt.index) for prompt in rows]
    screen.begin(rows)
    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in rows],
        generator=generators,
        stream=texts,
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        **job.settings,
    )
    texts.close()
    screen.end(rows)
    return ["".join(pieces) for pieces in texts.texts], info


class Texts:
    """The text of every row of a batch, passed on to a screen as it grows."""

    def __init__(self, pair: Models, rows: list[Prompt], screen: Screen):
        self.readers = [IncrementalDetokenizer(pair.tokenizer, prompt.tokens) for prompt in rows]
        self.texts: list[list[str]] = [[] for _ in rows]
        self.screen = screen

    def __call__(self, row: int, emitted: "Emitted") -> None:
        for token, kind in zip(emitted.tokens, emitted.kinds, strict=True):
            self.put(row, self.readers[row].add(token), kind)

    def put(self, row: int, piece: str, kind: str) -> None:
        """Keep a piece and show it."""
        self.texts[row].append(piece)
        if piece:
            self.screen.show(row, piece, kind)

    def close(self) -> None:
        """Pass on what was held back."""
        for row, reader in enumerate(self.readers):
            self.put(row, reader.close(), "corrected")
