"""What is served, and how: small enough to be sent to where the models are loaded."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from multidraft.cli import terminal
from multidraft.cli.decode import context
from multidraft.cli.models import Loader, Models, load
from multidraft.cli.names import parse, usual
from multidraft.cli.prompts import DEMO, encode, read_prompts
from multidraft.errors import AdviceError
from multidraft.generation.defaults import SCHEME, TREE
from multidraft.server.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI

    from multidraft.decoding.state import Plan
    from multidraft.server.service import Service


@dataclass(frozen=True)
class Serving:
    """The settings of `multidraft serve`, of which the models are only named."""

    target: str | None = None
    draft: str | None = None
    scheme: str = SCHEME
    tree: str = TREE
    walk: str = "deferred"
    names: tuple[str, ...] = ()  # of the model in requests; none for the target's own
    api_key: str | None = None
    template: str | None = None
    limits: Limits = field(default_factory=Limits)
    threads: int | None = None  # on the processor; None for as many as torch takes by itself
    plan_file: str | None = None  # of `multidraft tune --out`, for trees that are chosen
    engine: str | None = None  # as `Loader` has it
    trust: bool = False

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
        self.plan()

    def plan(self) -> "Plan":
        """How to decode, but for trees that are chosen later."""
        from multidraft.generation.inputs import check_drafters, limits_of, make_plan, plan_file, tree_or_fixed
        from multidraft.sampling.settings import Sampling

        plan = make_plan(self.scheme, tree_or_fixed(self.tree), self.walk, Sampling(), False)
        check_drafters(plan.scheme, len(parse(self.draft)) > 1)
        plan_file(self.plan_file, limits_of(self.tree, self.scheme))
        return plan

    def app(self) -> "FastAPI":
        """The app over the models, which are loaded here and now; call it in a thread that ends.

        OpenMP keeps helpers for every thread that has computed. Where those are more than processors, the engine's own
        hardly wait for their work without sleeping, which costs most of it.
        """
        from multidraft.server.app import build

        return build(self.service())

    def service(self) -> "Service":
        """The service that the app is over."""
        import torch

        from multidraft.generation.inputs import limits_of, plan_file
        from multidraft.server.engine import Engine
        from multidraft.server.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of the threads that begin from here on, the engine's among them
        models = load(self.target, self.draft, Loader(self.engine, self.trust))
        if self.template is not None:
            models.tokenizer.chat_template = self.template
        if not models.tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        plan = with_choice(self.plan(), models, self.tree, plan_file(self.plan_file, limits_of(self.tree, self.scheme)))
        engine = Engine(models.target, models.draft, plan, self.limits)
        return Service(engine, models.tokenizer, self.known_as, self.limits, self.api_key)


def with_choice(plan: "Plan", models: Models, tree: str, file: Path | None = None) -> "Plan":
    """The plan, with trees that are chosen by the rows under way if that is asked for, and the threads for them."""
    from multidraft.decoding.tree import NO_DRAFTS
    from multidraft.generation.inputs import limits_of

    if models.draft is None:
        return replace(plan, tree=NO_DRAFTS)
    choice = limits_of(tree, plan.scheme)
    if choice is None:
        return plan
    import torch

    from multidraft.autotune.steering import steered
    from multidraft.autotune.subject import Subject

    prompts = read_prompts(None, DEMO, None)
    encode(prompts, models.tokenizer, context(models))
    tokens = [prompt.tokens for prompt in prompts]
    plan, threads = steered(plan, Subject(models.target, models.draft, tokens, plan.scheme, plan.walk), choice, file)
    torch.set_num_threads(threads)
    return plan


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
