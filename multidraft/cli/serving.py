"""What is served, and how: small enough to be sent to where the models are loaded."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.cli import terminal
from multidraft.cli.models import Loader, Models, load, parse, usual
from multidraft.cli.options import Drafting, Named
from multidraft.errors import AdviceError
from multidraft.server.limits import Limits as ServerLimits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from multidraft.autotune.controller import Limits
    from multidraft.decoding.state import DecodeConfig
    from multidraft.server.service import Service


@dataclass(frozen=True)
class Serving(Drafting, Named):
    """The settings of `multidraft serve`, of which the models are only named."""

    names: tuple[str, ...] = ()  # of the model in requests; none for the target's own
    api_key: str | None = None
    template: str | None = None
    limits: ServerLimits = field(default_factory=ServerLimits)
    threads: int | None = None  # on the processor; None for as many as torch takes by itself

    @property
    def known_as(self) -> list[str]:
        """The model's names in requests."""
        return list(self.names) or [usual(self.target, self.draft)[0]]

    def check(self) -> None:
        """Raise on what cannot work, before anything is loaded."""
        if not all(name.strip() for name in self.names):
            raise AdviceError("a served name is empty; give some text, or leave it out for the target's name")
        if self.api_key is not None and not self.api_key.strip():
            raise AdviceError("the API key is empty, so nobody could be told from anybody; give some, or leave it out")
        self.configured()

    def configured(self) -> "tuple[DecodeConfig, Limits | None, Path | None]":
        """How to decode; where trees are chosen later, their limits and the plan."""
        from multidraft.generation.inputs import configured

        drafters = len(parse(usual(self.target, self.draft)[1]))
        return configured(self.scheme, self.tree, self.walk, self.plan, drafters)

    def app(self) -> "FastAPI":
        """The app over the models, which are loaded here and now; call it in a thread that ends.

        OpenMP keeps helpers for every thread that has computed. Where those are more than processors, the engine's own
        hardly wait for their work without sleeping, which costs most of it.
        """
        import gc

        from multidraft.server.app import build

        app = build(self.service())
        gc.collect()
        gc.freeze()  # or looking through all that was loaded would stop every thread whenever a body has many parts
        return app

    def service(self) -> "Service":
        """The service that the app is over."""
        import torch

        from multidraft.server.engine import Engine
        from multidraft.server.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of the threads that begin from here on, the engine's among them
        models = load(self.target, self.draft, Loader(self.engine, self.trust))
        if self.template is not None:
            models.tokenizer.chat_template = self.template
        if not models.tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        engine = Engine(models.target, models.draft, self.choosing(models), self.limits)
        return Service(engine, models.tokenizer, self.known_as, self.limits, self.api_key)

    def choosing(self, models: Models) -> "DecodeConfig":
        """How to decode, with trees that the rows under way decide if that is asked for."""
        from multidraft.autotune.controller import auto
        from multidraft.autotune.store import Subject

        config, limits, plan = self.configured()
        if limits is None or models.draft is None:
            return config
        subject = Subject(models.target, models.draft, config.scheme, config.walk)
        return replace(config, policy=auto(subject, 1.0, limits, plan, self.tune_budget))


def template_of(path: Path | None) -> str | None:
    """The text of a file with a chat template."""
    if path is None:
        return None
    from jinja2 import Environment, TemplateSyntaxError

    try:
        text = path.read_text(encoding="utf-8")
        Environment(extensions=["jinja2.ext.loopcontrols"]).parse(text)
    except (OSError, UnicodeError, TemplateSyntaxError) as error:
        raise AdviceError(f"cannot read the chat template {str(path)!r}: {error}; check the file") from None
    return text
