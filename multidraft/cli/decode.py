"""One batch of prompts decoded: texts, and the report of how it went."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.cli.models import Models, parse
from multidraft.cli.prompts import Prompt
from multidraft.cli.terminal import Screen
from multidraft.io import files

if TYPE_CHECKING:
    from multidraft.autotune.controller import Limits
    from multidraft.decoding.metrics import Info
    from multidraft.decoding.record import Emitted
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.zoo import Pair

SEEDS_APART = 1_000_003
LARGEST_PLAN = 2**24  # bytes
Decoded = tuple[list[str], "Info"]  # texts, and how it went


@dataclass(frozen=True)
class Job:
    """How to decode, and the part of it that `multidraft.generate` takes as it is."""

    draft: str
    batch: int
    seed: int
    compare: bool
    settings: dict[str, Any]
    trace: "TraceFile | None" = None

    @cached_property
    def limits(self) -> "Limits | None":
        """Of the trees that are chosen while decoding; None where one is given, or nothing is drafted."""
        from multidraft.generation.inputs import configured

        s = self.settings
        return configured(s["scheme"], s["tree"], s["walk"], s["plan"], len(parse(self.draft)))[1]

    def check(self) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.sampling.settings_table import SETTINGS, check, check_stops

        s = self.settings
        for name in SETTINGS.keys() & s.keys():
            if s[name] is not None:
                check(name, s[name], f"--{name.replace('_', '-')}")
        check_stops("--stop", s["stop"] or [])
        if s["plan"] is not None:
            files.content(Path(s["plan"]), "the plan", LARGEST_PLAN)
        _ = self.limits  # looking for them checks what is drafted, and how


def context(pair: "Models | Pair") -> int | None:
    """The longest sequence that target and draft can read."""
    from multidraft.generation.inputs import context_of

    both = [context_of(model) for model in (pair.target, pair.draft) if model is not None]
    return min((context for context in both if context is not None), default=None)


def decode(pair: Models, job: Job, rows: list[Prompt], drafts: bool = True, screen: Screen | None = None) -> Decoded:
    """One batch's texts and its report."""
    import torch

    import multidraft as md

    texts = Texts(pair, rows, screen or Screen())
    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in rows],
        generator=[torch.Generator().manual_seed(job.seed * SEEDS_APART + prompt.index) for prompt in rows],
        stream=texts,
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        **job.settings,
    )
    return texts.close(), info


class Texts:
    """The text of every row of a batch, passed on to a screen as it grows."""

    def __init__(self, pair: Models, rows: list[Prompt], screen: Screen):
        from multidraft.generation.text import IncrementalDetokenizer

        self.rows, self.screen = rows, screen
        self.readers = [IncrementalDetokenizer(pair.tokenizer, prompt.tokens) for prompt in rows]
        screen.begin(rows)

    def __call__(self, row: int, emitted: "Emitted") -> None:
        for token, kind in zip(emitted.tokens, emitted.kinds, strict=True):
            self.put(row, self.readers[row].add(token), kind)

    def put(self, row: int, piece: str, kind: str) -> None:
        """Show a piece, which the screen keeps."""
        if piece:
            self.screen.show(row, piece, kind)

    def close(self) -> list[str]:
        """All texts, with what was held back."""
        for row, reader in enumerate(self.readers):
            self.put(row, reader.close(), "corrected")
        self.screen.end(self.rows)
        return ["".join(pieces) for pieces in self.screen.texts]
