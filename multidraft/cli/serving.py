"""The settings of `multidraft serve`, and the app that they make."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.drafter_names import parse
from multidraft.cli.engines import Loader
from multidraft.cli.pair import default_pair, load
from multidraft.cli.prompts import note_open_answers
from multidraft.errors import AdviceError
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from multidraft.autotune.auto_policy import TreeLimits
    from multidraft.decoding.policy import TreePolicy
    from multidraft.decoding.state import DecodeConfig
    from multidraft.server.service import Service

ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+")
SWITCH_SECONDS = 0.001  # the event loop waits so long for a computing thread, several times per request


@dataclass(frozen=True)
class Serving(o.DraftingOptions, o.ModelOptions):
    """The settings of `multidraft serve`; models are given by name."""

    names: tuple[str, ...] = ()  # of the model in requests; empty for the target's
    api_keys: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()  # sites whose pages may use the server
    template: str | None = None
    limits: Limits = field(default_factory=Limits)
    threads: int | None = None  # on the CPU; None for torch's default

    @property
    def served_names(self) -> list[str]:
        """The model's names in requests."""
        return list(self.names) or [default_pair(self.target, self.draft)[0]]

    def check(self) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        if not all(name.strip() for name in self.names):
            raise AdviceError("a served name is empty; give some text, or leave it out for the target's name")
        if not all(key.strip() for key in self.api_keys):
            raise AdviceError("the API key is empty; set one, or drop the option")
        for origin in self.allowed_origins:
            if not ORIGIN.fullmatch(origin):
                raise AdviceError(
                    f"the allowed origin {origin!r} is none; write scheme and host, as https://example.org, or *"
                )
        self.configure()

    def configure(self) -> "tuple[DecodeConfig, TreePolicy, TreeLimits | None, Path | None]":
        """The decoding configuration; for trees chosen while decoding also their limits and the plan's file."""
        from multidraft.generation.inputs import resolve_config

        draft = default_pair(self.target, self.draft, Loader(self.named_engine).heads_pay)[1]
        return resolve_config(self.scheme, self.tree, self.walk, self.plan, len(parse(draft)))

    def app(self) -> "FastAPI":
        """Load the models and build the app; call it in a thread that ends.

        OpenMP keeps helper threads for every thread that has computed. If there are more of them than processors, the
        engine's helpers sleep instead of spinning between tasks, which makes them much slower.
        """
        import gc
        import sys

        from multidraft.server.app import build

        app = build(self.service())
        gc.collect()
        gc.freeze()  # else collections during large bodies would stop all threads to scan the loaded modules
        sys.setswitchinterval(SWITCH_SECONDS)
        return app

    def service(self) -> "Service":
        """Load the models and build the service; with `--tree auto` the trees follow the number of rows."""
        import torch

        from multidraft.autotune.auto_policy import auto
        from multidraft.autotune.plans import MeasuredPair
        from multidraft.models.huggingface.pass_check import DEPENDENCE_NOTE, depends_on_pass
        from multidraft.models.user_models import as_reader
        from multidraft.sampling.generation_config import defaults_note, model_defaults
        from multidraft.server.engine import Engine
        from multidraft.server.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # for threads that start later, such as the engine's
        loader = Loader(self.named_engine, self.trust, self.revision, self.corpus)
        target, draft, tokenizer = load(self.target, self.draft, loader)
        if self.template is not None:
            tokenizer.chat_template = self.template
        if not tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        note_open_answers(tokenizer)
        if line := defaults_note(model_defaults(target)):
            terminal.note(line)
        config, policy, limits, plan = self.configure()
        target, draft = as_reader(target), None if draft is None else as_reader(draft)
        target.looks_across = depends_on_pass(target)
        if target.looks_across and draft is not None:
            terminal.note(DEPENDENCE_NOTE)
            draft = None
        if limits is not None and draft is not None:
            subject = MeasuredPair(target, draft, config.scheme, config.walk)
            policy = auto(subject, 1.0, limits, plan, self.tune_budget)
        engine = Engine(target, draft, config, policy, self.limits)
        return Service(engine, tokenizer, self.served_names, self.api_keys, self.allowed_origins)
