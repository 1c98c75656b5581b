"""One batch of prompts decoded: texts, and the report of how it went."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multidraft.cli.models import Models
from multidraft.cli.prompts import Prompt
from multidraft.cli.terminal import Screen
from multidraft.errors import AdviceError
from multidraft.generation.detokenize import Pieces

if TYPE_CHECKING:
    from multidraft.decoding.metrics import Info
    from multidraft.decoding.record import Emitted
    from multidraft.decoding.trace_file import TraceFile
    from multidraft.zoo import Pair

SEEDS_APART = 1_000_003


@dataclass(frozen=True)
class Job:
    """How to decode, and the part of it that `multidraft.generate` takes as it is."""

    batch: int
    seed: int
    compare: bool
    settings: dict[str, Any]
    trace: "TraceFile | None" = None

    def check(self, drafters: int) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.generation.inputs import check_drafters, limits_of, make_config, plan_file, tree_or_fixed
        from multidraft.sampling.generation_config import check_settings
        from multidraft.sampling.settings import Sampling

        s, names = self.settings, ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
        draft = s["draft_temperature"]
        if "" in (s["stop"] or ()):
            raise AdviceError("--stop is empty, which would end every row at once; give some text, or leave it out")
        plan_file(s["plan"], limits_of(s["tree"], s["scheme"]) if drafters else None)
        config = make_config(s["scheme"], tree_or_fixed(s["tree"]), s["walk"], False)
        Sampling(1.0 if draft is None else draft)
        if drafters:
            check_drafters(config.scheme, drafters > 1)
        check_settings({name: s[name] for name in names})


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
        self.readers = [Pieces(pair.tokenizer, prompt.tokens) for prompt in rows]
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
