"""What is audited: a scheme, anyone's rule made to look like one, or a sampler of which only tokens can be seen."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.verification.distributions import described
from multidraft.verification.law import Law
from multidraft.verification.registry import arguments_of, resolve, scheme
from multidraft.verification.scheme import Scheme

FORMS = (
    "pass a scheme or its name, a rule(target, draft, drafted) that returns (accept, residual), "
    "or a sampler verify(target, draft, drafted, generator) that returns token ids"
)


@dataclass(frozen=True)
class Sampler:
    """A verifier that gives tokens only, with the law that its drafts are drawn from."""

    name: str
    law: Law
    verify: Callable[..., Any]

    within = 0.0  # it states no deviation

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


def subject(verifier: Any, law: str | Law | None, drafts: int | None, settings: dict[str, Any]) -> Subject:
    """The verifier with its drafting law, whatever form it was given in; two drafts where nothing says how many."""
    place = verifier.split(",")[0] if isinstance(verifier, str) else None
    if isinstance(verifier, str):
        verifier, settings = resolve(verifier, settings)
        law = settings.pop("law", law)
    if isinstance(verifier, Scheme | str) and law is not None:
        raise AdviceError(f"a scheme has its own drafting law; leave out law={law!r}")
    if not isinstance(verifier, Scheme | str) and not callable(verifier):
        raise AdviceError(f"cannot audit {described(verifier)}; {FORMS}")
    count = 2 if drafts is None and not isinstance(verifier, Scheme) and not isinstance(law, Law) else drafts
    if callable(verifier) and takes_generator(verifier):
        name = place or str(getattr(verifier, "__name__", type(verifier).__name__))
        return Sampler(name, scheme(lambda target, draft, drafted: None, count, law=law, **settings).law, verifier)
    made = scheme(verifier, count, law=law, **settings)
    return made if place is None or isinstance(verifier, Scheme) else replace(made, name=place)


def takes_generator(verifier: Callable[..., Any]) -> bool:
    """Whether it is a sampler, whose fourth argument is a generator; a rule's is the law."""
    names = arguments_of(verifier)
    if names is None or len(names) == 3:
        return "generator" in keywords_of(verifier)
    if len(names) == 4:
        return "law" not in names
    raise AdviceError(f"cannot call a verifier with the arguments ({', '.join(names)}); {FORMS}")


def keywords_of(verifier: Callable[..., Any]) -> list[str]:
    """The names of all arguments, those with a default too; none where they cannot be told."""
    try:
        return list(inspect.signature(verifier).parameters)
    except (TypeError, ValueError):  # some built-in callables do not tell
        return []
