"""What `multidraft generate` decodes, and one batch of it; each prompt has its own random numbers."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from multidraft.cli import terminal
from multidraft.cli.drafter_names import parse
from multidraft.cli.engines import Loader
from multidraft.cli.options import check_drafting
from multidraft.cli.pair import Models, load
from multidraft.cli.prompts import Prompt, check_template, digest, encode
from multidraft.io.journal import Journal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from multidraft.decoding.metrics import Info
    from multidraft.decoding.record import Emitted
    from multidraft.decoding.trace import TraceFile
    from multidraft.models.user_models import Model
    from multidraft.sampling.grammar import Grammar

SEED_STRIDE = 1_000_003
Decoded = tuple[list[str], "Info"]  # texts, and metrics


@dataclass(frozen=True)
class Job:
    """What to decode, how, and with which models; `settings` is what `multidraft.generate` takes as it is."""

    target: str
    draft: str
    loader: Loader
    prompts: list[Prompt]
    chat: bool
    batch: int
    seed: int
    settings: dict[str, Any]
    trace: "TraceFile | None" = None
    schema: str | None = None  # a JSON schema that texts must follow

    def stops(self, pair: Models) -> list[str]:
        """The strings that end a text, in a chat also the one that the tokenizer has no token for."""
        from multidraft.generation.text import closing_texts

        return [*(self.settings.get("stop") or []), *(closing_texts(pair.tokenizer) if self.chat else [])]

    @property
    def reported_settings(self) -> dict[str, Any]:
        """The settings that the report lists: all that texts depend on, except the prompts."""
        form = {} if self.schema is None else {"json_schema": self.schema}
        models = {"target": self.target, "draft": self.draft}
        models |= {"revision": self.loader.revision} if self.loader.revision else {}
        models |= {} if self.loader.corpus is None else {"corpus": self.loader.corpus}
        return models | self.settings | form | {"batch": self.batch, "seed": self.seed}

    def journal(self, path: Path, compare: bool) -> Journal:
        """The journal of the prompts' texts; it is continued only if all that they depend on is the same."""
        settings = {"results": "multidraft generate"} | self.reported_settings | {"chat": self.chat}
        run = {"engine": self.loader.engine, "compare": compare, "prompts": digest(self.prompts)}
        return Journal(path, settings | run)

    def check(self) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        from multidraft.sampling.params import check_all

        settings = self.settings
        check_all(settings, called=lambda name: f"--{name.replace('_', '-')}")
        check_drafting(settings["scheme"], settings["tree"], settings["plan"])
        from multidraft.generation.inputs import resolve_config  # only now: it loads torch

        scheme, tree, walk, plan = (settings[name] for name in ("scheme", "tree", "walk", "plan"))
        resolve_config(scheme, tree, walk, plan, len(parse(self.draft)))

    @cached_property
    def models(self) -> Models:
        """The models, loaded when they are needed; raises if --chat needs a chat template and there is none."""
        models = load(self.target, self.draft, self.loader)
        if self.chat:
            check_template(models.tokenizer, self.target)
        return models

    def settings_for(self, target: "Model") -> dict[str, Any]:
        """The settings with those that the target's configuration recommends in place of what is left open."""
        from multidraft.sampling.generation_config import model_defaults

        defaults = {"temperature": 1.0} | model_defaults(target)
        return self.settings | {name: value for name, value in defaults.items() if self.settings.get(name) is None}

    def ends(self, pair: Models) -> list[int]:
        """The tokens that end a text."""
        from multidraft.generation.text import text_ends

        return sorted(text_ends(pair.target, pair.tokenizer, self.chat))

    def grammar(self, tokenizer: "PreTrainedTokenizerBase", prompt: Prompt) -> "Grammar | None":
        """The form of the texts, if there is one; a chat may think before it."""
        from multidraft.generation.text import thinking_of
        from multidraft.sampling.grammar import Grammar

        if self.schema is None:
            return None
        thinking = thinking_of(tokenizer, prompt.tokens, str(tokenizer.chat_template)) if self.chat else None
        return Grammar(tokenizer, self.schema, thinking=thinking)

    def encode_prompts(self, prompts: list[Prompt]) -> list[Prompt]:
        """The prompts, with their tokens filled in."""
        encode(prompts, self.models, self.chat)
        return prompts


class Texts:
    """The texts of a batch as they grow, up to the first stop string in each.

    `show` prints them: a single text as it comes, several when they are done. `headings` prints each prompt first.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        prompts: list[Prompt],
        stops: Sequence[str],
        show: bool = False,
        headings: bool = True,
    ):
        from multidraft.generation.stopping import TextReader

        self.prompts, self.streams, self.headings = prompts, show and len(prompts) == 1, show and headings
        self.readers = [TextReader[str](tokenizer, prompt.tokens, stops) for prompt in prompts]
        self.is_printed = False  # whole
        self.pieces: list[list[tuple[str, str]]] = [[] for _ in prompts]  # text and kind
        if self.streams and self.headings:
            terminal.heading(prompts[0].id, prompts[0].text)

    @property
    def full_texts(self) -> list[str]:
        """The texts so far."""
        return ["".join(piece for piece, _ in pieces) for pieces in self.pieces]

    def __call__(self, row: int, emitted: "Emitted") -> None:
        kinds = [terminal.UNDRAFTED_KIND] if emitted.kinds == ["bonus"] else emitted.kinds  # a bonus follows a draft
        for token, kind in zip(emitted.tokens, kinds, strict=True):
            self.add(row, self.readers[row].add(token, kind))

    def add(self, row: int, pieces: "Sequence[tuple[str | None, str]]") -> None:
        """Add pieces to a row, and print them if the text is streamed."""
        for tag, piece in pieces:
            kind = tag or (self.pieces[row][-1][1] if self.pieces[row] else terminal.UNDRAFTED_KIND)
            if piece:
                self.pieces[row].append((piece, kind))
                if self.streams:
                    terminal.show(piece, kind)

    def close(self) -> list[str]:
        """Add what was held back, print what is not printed yet, and return all texts."""
        for row, reader in enumerate(self.readers):
            self.add(row, reader.close())
        return self.print()

    def print(self) -> list[str]:
        """Print what is not printed yet, and return all texts so far."""
        headings, self.is_printed = self.headings and not self.is_printed, True
        for prompt, pieces in zip(self.prompts, self.pieces, strict=True) if headings else ():
            if not self.streams:
                terminal.heading(prompt.id, prompt.text)
                for piece in pieces:
                    terminal.show(*piece)
            typer.echo("\n")
        return self.full_texts


def decode(pair: Models, job: Job, texts: Texts, drafts: bool = True) -> Decoded:
    """Decode a batch; return its texts and metrics."""
    import torch

    import multidraft as md

    _, info = md.generate(
        pair.target,
        pair.draft if drafts else None,
        [prompt.tokens for prompt in texts.prompts],
        generator=[torch.Generator().manual_seed(job.seed * SEED_STRIDE + prompt.index) for prompt in texts.prompts],
        stream=texts,
        eos_token_id=job.ends(pair),
        stop_tokenizer=pair.tokenizer,
        trace=job.trace if drafts else None,
        synchronise=pair.target.device.type == "cuda",
        grammar=job.grammar(pair.tokenizer, texts.prompts[0]),
        **job.settings_for(pair.target) | {"stop": job.stops(pair)},
    )
    return texts.close(), info
