"""What is audited: a scheme, anyone's rule made to look like one, or a sampler of which only tokens can be seen."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.law import Law
from multidraft.verification.laws import LAWS
from multidraft.verification.named import scheme
from multidraft.verification.outcome import Outcome
from multidraft.verification.registry import Entry
from multidraft.verification.scheme import Scheme

FORMS = (
    "pass a scheme's name, a rule(target, draft, drafted) that returns (accept, residual), "
    "or a sampler verify(target, draft, drafted, generator) that returns token ids"
)


@dataclass(frozen=True)
class Foreign(Scheme):
    """A rule that is not on the list, with the law that its drafts are drawn from."""

    rule: Callable[..., Any] | None = None

    @cached_property
    def entry(self) -> Entry:
        """An entry as on the list; the law is not passed on."""
        return Entry(self.call, source="", cost="")

    def call(self, target: Tensor, draft: Tensor, drafted: Tensor, law: Law) -> Outcome:
        """The rule on copies of its arguments, which it may change as it likes."""
        assert self.rule is not None
        return as_outcome(self.rule(target.clone(), draft.clone(), drafted.clone()), target, drafted)


@dataclass(frozen=True)
class Sampler:
    """A verifier that gives tokens only, with the law that its drafts are drawn from."""

    name: str
    law: Law
    verify: Callable[..., Any]

    within = 0.0  # it states no deviation

    @property
    def drafts(self) -> int:
        """Number of drafts a node."""
        return self.law.drafts

    def tokens(self, target: Tensor, draft: Tensor, drafted: Tensor, generator: torch.Generator) -> Tensor:
        """One emitted token for each row."""
        tokens = self.verify(target.clone(), draft.clone(), drafted.clone(), generator)
        if not isinstance(tokens, Tensor) or tokens.dtype.is_floating_point or tokens.shape != drafted.shape[:-1]:
            raise AdviceError(
                f"{self.name} returned {described(tokens)}; a sampler returns one token id for each of the "
                f"{len(drafted)} rows: an integer tensor of shape ({len(drafted)},)"
            )
        return tokens.long()


Subject = Scheme | Sampler


def subject(verifier: object, law: str | Law | None, drafts: int | None, settings: dict[str, Any]) -> Subject:
    """The verifier with its drafting law, whatever form it was given in."""
    if isinstance(verifier, Scheme | str):
        if law is not None:
            raise AdviceError(f"a scheme has its own drafting law; leave out law={law!r}")
        if isinstance(verifier, str):
            return scheme(verifier, 2 if drafts is None else drafts, **settings)
        if settings:
            raise AdviceError(f"give {', '.join(settings)} to md.scheme, or pass the scheme's name")
        return verifier if drafts is None else verifier.with_drafts(drafts)
    if not callable(verifier):
        raise AdviceError(f"cannot audit {described(verifier)}; {FORMS}")
    if law is None:
        raise AdviceError(f'name the law that the drafts are drawn from: law="iid" or one of {", ".join(LAWS)}')
    name, made = str(getattr(verifier, "__name__", type(verifier).__name__)), make_law(law, drafts, settings)
    return Sampler(name, made, verifier) if takes_generator(verifier) else Foreign(name, made, rule=verifier)


def make_law(law: str | Law, drafts: int | None, settings: dict[str, Any]) -> Law:
    """The drafting law of this name."""
    if isinstance(law, Law):
        return law
    if law not in LAWS:
        raise AdviceError(f"unknown drafting law {law!r}; laws are {', '.join(LAWS)}")
    known = set(LAWS[law].settings())
    if extra := set(settings) - known:
        raise AdviceError(f"the law {law} has no setting {', '.join(sorted(extra))}; it has {', '.join(sorted(known))}")
    return LAWS[law](2 if drafts is None else drafts, **settings)


def takes_generator(verifier: Callable[..., Any]) -> bool:
    """Whether it is a sampler, which takes a fourth argument."""
    try:
        signature = inspect.signature(verifier)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return False
    for arguments in (3, 4):
        try:
            signature.bind(*range(arguments))
        except TypeError:
            continue
        return arguments == 4 or "generator" in signature.parameters
    raise AdviceError(f"cannot call a verifier with the arguments {signature}; {FORMS}")


def as_outcome(returned: Any, target: Tensor, drafted: Tensor) -> Outcome:
    """What a rule returned, checked."""
    pair = (returned.accept, returned.residual) if hasattr(returned, "accept") else returned
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        raise AdviceError(f"the rule returned {described(returned)}; a rule returns two tensors (accept, residual)")
    for name, part, like in (("accept", pair[0], drafted), ("residual", pair[1], target)):
        if part.shape != like.shape or not part.dtype.is_floating_point:
            raise AdviceError(
                f"the rule's {name} has shape {tuple(part.shape)} and type {part.dtype}; "
                f"for these arguments it must be a float tensor of shape {tuple(like.shape)}"
            )
    return Outcome(pair[0].to(target.dtype), pair[1].to(target.dtype), drafted)


def described(value: object) -> str:
    """A value's type, and for a tensor its dtype and shape."""
    if isinstance(value, Tensor):
        return f"a tensor of type {value.dtype} and shape {tuple(value.shape)}"
    return f"{type(value).__name__} {str(value)[:60]!r}"
