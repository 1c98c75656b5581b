"""What is served, and how: small enough to be sent to where the models are loaded."""

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, TypeVar

from multidraft.cli import terminal
from multidraft.cli.decode import context
from multidraft.cli.models import Models, load
from multidraft.cli.names import parse, usual
from multidraft.cli.prompts import DEMO, encode, read_prompts
from multidraft.errors import AdviceError
from multidraft.generation.defaults import SCHEME, TREE
from multidraft.server.limits import Limits

if TYPE_CHECKING:
    from multidraft.decoding.state import Plan
    from multidraft.server.service import Service

Result = TypeVar("Result")


@dataclass(frozen=True)
class Serving:
    """The settings of `multidraft serve`, of which the models are only named."""

    target: str | None = None
    draft: str | None = None
    scheme: str = SCHEME
    tree: str = TREE
    walk: str = "deferred"
    name: str | None = None
    api_key: str | None = None
    template: str | None = None
    limits: Limits = field(default_factory=Limits)
    threads: int | None = None  # on the processor; None for as many as torch takes by itself

    @property
    def known_as(self) -> str:
        """The model's name in requests."""
        return self.name or usual(self.target, self.draft)[0]

    def check(self) -> None:
        """Raise on what cannot work, before anything is loaded."""
        self.plan()

    def plan(self) -> "Plan":
        """How to decode, but for trees that are chosen later."""
        from multidraft.generation.inputs import check_drafters, limits_of, make_plan, tree_or_fixed
        from multidraft.sampling.settings import Sampling

        plan = make_plan(self.scheme, tree_or_fixed(self.tree), self.walk, Sampling(), False)
        check_drafters(plan.scheme, len(parse(self.draft)) > 1)
        limits_of(self.tree, self.scheme)
        return plan

    def service(self) -> "Service":
        """The service over the models, which are loaded here and now.

        They are in a thread that ends: OpenMP keeps helpers for every thread that has computed, and where those are
        more than processors, the engine's own hardly wait for their work without sleeping, which costs most of it.
        """
        return apart(self.made)

    def made(self) -> "Service":
        """The same, in whatever thread this is."""
        import torch

        from multidraft.server.engine import Engine
        from multidraft.server.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of the threads that begin from here on, the engine's among them
        models = load(self.target, self.draft)
        if self.template is not None:
            models.tokenizer.chat_template = self.template
        if not models.tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        engine = Engine(models.target, models.draft, with_choice(self.plan(), models, self.tree), self.limits)
        return Service(engine, models.tokenizer, self.known_as, self.limits, self.api_key)


def apart(call: Callable[[], Result]) -> Result:
    """What a call returns or raises, in a thread of its own."""
    found: Future[Result] = Future()

    def settle() -> None:
        try:
            found.set_result(call())
        except BaseException as error:
            found.set_exception(error)

    thread = Thread(target=settle, daemon=True)  # an interruption does not wait for it
    thread.start()
    result = found.result()
    thread.join()
    return result


def with_choice(plan: "Plan", models: Models, tree: str) -> "Plan":
    """The plan, with trees that are chosen by the rows under way if that is asked for, and the threads for them."""
    from multidraft.generation.inputs import limits_of

    choice = limits_of(tree, plan.scheme)
    if choice is None or models.draft is None:
        return plan
    import torch

    from multidraft.autotune.steering import steered
    from multidraft.autotune.subject import Subject

    prompts = read_prompts(None, DEMO, None)
    encode(prompts, models.tokenizer, context(models))
    tokens = [prompt.tokens for prompt in prompts]
    plan, threads = steered(plan, Subject(models.target, models.draft, tokens, plan.scheme, plan.walk), choice)
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
