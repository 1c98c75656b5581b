"""The one list of schemes: ours, those that other packages bring, and those that a user registers."""

import inspect
import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from multidraft.errors import AdviceError, shown
from multidraft.verification.distributions import described
from multidraft.verification.law import Law
from multidraft.verification.laws import LAWS, Anchored, Distinct, Greedy, Iid, SpecHub, Top, WithoutReplacement
from multidraft.verification.outcome import Outcome, Rule
from multidraft.verification.rules import naive, rate_of_distinct, rate_of_iid, rate_of_top
from multidraft.verification.rules.lorenz import lorenz, rate_of_lorenz, spechub
from multidraft.verification.rules.recursive_rejection import (
    k_sequential,
    rate_of_k_sequential,
    rate_of_rejection,
    recursive_rejection,
)
from multidraft.verification.scheme import Entry, Scheme

GROUP = "multidraft.schemes"  # of entry points: functions without arguments that call `register`
MCSD = "Multi-Candidate Speculative Decoding"
OPTIMAL = "Towards Optimal Multi-Draft Speculative Decoding"
OURS = "multidraft (docs/theory.md)"
LOOK_UP, PASSES = "one look-up", "n passes"
BLOCK, TRAVERSAL = "on a chain, deferred: block verification", "deferred: traversal verification"

SCHEMES: dict[str, Entry] = {
    "iid:lorenz": Entry(Iid, lorenz, OURS, "one sort", rate_of_lorenz, known_as=BLOCK, coupling=True),
    "iid:k_sequential": Entry(
        Iid, k_sequential, "SpecTr, Algorithm 2", "50 passes", rate_of_k_sequential, coupling=True
    ),
    "iid:recursive_rejection": Entry(
        Iid, recursive_rejection, f"SpecInfer; {MCSD}, Algorithm 1", PASSES, rate_of_rejection, coupling=True
    ),
    "iid:naive": Entry(Iid, naive, MCSD, LOOK_UP, rate_of_iid),
    "without_replacement:recursive_rejection": Entry(
        WithoutReplacement, recursive_rejection, f"{MCSD}, Algorithm 2", PASSES, known_as=TRAVERSAL, coupling=True
    ),
    "without_replacement:naive": Entry(WithoutReplacement, naive, MCSD, LOOK_UP),
    "greedy:maximal_coupling": Entry(
        Greedy, lorenz, f"{OPTIMAL}, Section 5", "one pass", rate_of_lorenz, coupling=True
    ),
    "greedy:naive": Entry(Greedy, naive, MCSD, LOOK_UP),
    "anchored:lorenz": Entry(Anchored, lorenz, OURS, "one sort, then a pass per top-up", rate_of_lorenz, coupling=True),
    "anchored:naive": Entry(Anchored, naive, MCSD, LOOK_UP),
    "top:naive": Entry(Top, naive, f"{MCSD}; EAGLE", LOOK_UP, rate_of_top),
    "spechub:spechub": Entry(SpecHub, spechub, "SpecHub (Sun et al., 2024)", "one pass", rate_of_lorenz),
    "spechub:naive": Entry(SpecHub, naive, MCSD, LOOK_UP),
    "distinct:recursive_rejection": Entry(Distinct, recursive_rejection, "SpecInfer", PASSES, rate_of_rejection),
    "distinct:naive": Entry(Distinct, naive, MCSD, LOOK_UP, rate_of_distinct),
}
BUILT_IN = frozenset(SCHEMES)


def register(name: str, *, law: str | type[Law], rule: Callable[..., Any], **details: Any) -> None:
    """Add a scheme: every function, command and study that takes a scheme's name then takes this one.

    `rule(target (N, V), draft (N, V), drafted (N, n))` returns `(accept (N, n), residual (N, V))`: the probability of
    emitting each draft, and of emitting each token otherwise. `rule(target, draft, drafted, law)` returns an `Outcome`.
    `law` is the name of a drafting law, or a class of your own. `details` are other fields of `Entry`; a rule of three
    arguments needs `sub_probability=True` for the deferred walk, whose targets sum to less than one. Audit it: nothing
    here shows that it is lossless. A package registers by an entry point of the group `multidraft.schemes`: a function
    without arguments that calls `register`. Raises AdviceError for a name of ours, and for what cannot be a rule.

    >>> import torch
    >>> register("mine:target", law="iid", rule=lambda p, q, x: (0 * x.to(p.dtype), p))
    >>> scheme("mine:target", drafts=2).acceptance_rate(torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
    tensor(0.)
    """
    if not isinstance(name, str) or not all(name.partition(":")[::2]) or "," in name:
        raise AdviceError(f"{shown(name)} is no name of a scheme; write one as in mine:rule")
    if name in BUILT_IN:
        raise AdviceError(f"{name} is a scheme of multidraft's own; choose another name")
    SCHEMES[name] = entry_of(rule, law, **details)


def entry_of(function: Callable[..., Any], law: object, **details: Any) -> Entry:
    """What is known of a rule from outside, and of its law: one of ours by name, or a class."""
    rule = as_rule(function)
    if unknown := set(details) - {field.name for field in fields(Entry)}:
        raise AdviceError(f"a scheme has no {', '.join(sorted(unknown))}; it has source, cost, rate, exact, small, ..")
    kind = LAWS.get(law) if isinstance(law, str) else law
    if law is None:
        raise AdviceError(f'name the law that the drafts are drawn from: law="iid" or one of {", ".join(LAWS)}')
    if not isinstance(kind, type) or not issubclass(kind, Law):
        raise AdviceError(f"unknown drafting law {shown(law)}; laws are {', '.join(LAWS)}")
    return Entry(kind, rule, **dict(sub_probability=not isinstance(rule, Outside)) | details)


FORMS = (
    "a rule is a function rule(target, draft, drafted) that returns (accept, residual), "
    "or rule(target, draft, drafted, law) that returns an Outcome"
)


@dataclass(frozen=True)
class Outside:
    """A rule(target (N, V), draft (N, V), drafted (N, n)) that returns (accept (N, n), residual (N, V)).

    Where every position of the law is a draft, the function sees no empty one (-1): rows with fewer drafts are given to
    it with fewer columns, and a row without any emits from the target.
    """

    function: Callable[..., Any]

    def __call__(self, target: Tensor, draft: Tensor, drafted: Tensor, law: Law) -> Outcome:
        """The outcome for copies of the arguments, which the function may change as it likes."""
        p, x = target.reshape(-1, target.shape[-1]), drafted.reshape(-1, drafted.shape[-1])
        q = draft.reshape(-1, *draft.shape[target.ndim - 1 :])
        accept, residual = torch.zeros_like(x, dtype=p.dtype), p.clone()
        kept = (x >= 0) | (law.width > law.drafts)
        for columns in kept.unique(dim=0):
            rows, places = (kept == columns).all(-1).nonzero()[:, 0], columns.nonzero()[:, 0]
            if len(places):
                own = x[rows][:, places]
                some = q[rows][:, places % law.drafts] if law.several else q[rows]
                parts = checked(self.function(p[rows], some, own), p[rows], own)
                accept[rows[:, None], places], residual[rows] = parts
        return Outcome(accept.reshape(drafted.shape), residual.reshape(target.shape), drafted)


def as_rule(function: Any) -> Rule:
    """The function itself where it asks for the law, else an `Outside` that leaves it out."""
    if not callable(function):
        raise AdviceError(f"the rule is {shown(function)}; give a function")
    names = arguments_of(function)
    if names is not None and len(names) not in (3, 4):
        raise AdviceError(f"cannot call a rule with the arguments {', '.join(names)}; {FORMS}")
    return function if names and len(names) == 4 else Outside(function)


def arguments_of(function: Callable[..., Any]) -> list[str] | None:
    """The names of the arguments that it needs, None where that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some built-in callables do not tell
        return None
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if any(one.kind in kinds for one in parameters):
        return None
    return [one.name for one in parameters if one.default is inspect.Parameter.empty]


def checked(returned: Any, target: Tensor, drafted: Tensor) -> tuple[Tensor, Tensor]:
    """What a rule accepts and leaves, in the target's type."""
    pair = (returned.accept, returned.residual) if hasattr(returned, "accept") else returned
    if not isinstance(pair, tuple) or len(pair) != 2 or not all(isinstance(part, Tensor) for part in pair):
        raise AdviceError(f"the rule returned {described(returned)}; a rule returns two tensors (accept, residual)")
    for name, part, like in (("accept", pair[0], drafted), ("residual", pair[1], target)):
        if part.shape != like.shape or not part.dtype.is_floating_point:
            raise AdviceError(
                f"the rule's {name} has shape {tuple(part.shape)} and type {part.dtype}; "
                f"for these arguments it must be a float tensor of shape {tuple(like.shape)}"
            )
    return pair[0].to(target.dtype), pair[1].to(target.dtype)


@cache
def entries() -> dict[str, Entry]:
    """Every scheme, once installed packages have registered theirs."""
    for point in sorted(entry_points(group=GROUP)):
        point.load()()
    return SCHEMES


def scheme(
    name: "str | Scheme | Callable[..., Any]", drafts: int | None = None, *, law: object = None, **settings: Any
) -> Scheme:
    """The scheme `law:rule` with `drafts` drafts a node; `settings` are the law's and the rule's.

    Settings may follow the name too: "anchored:lorenz,anchors=2". Instead of a name, `name` may be a scheme, a rule
    from outside with its `law` (see `register`), or where to import one of these from: "module:rule,law=iid".

    >>> import torch
    >>> scheme("iid:lorenz", drafts=2).acceptance_rate(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(0.5000)
    """
    if isinstance(name, str):
        found, settings = resolve(name, settings if law is None else settings | dict(law=law))
        if isinstance(found, str):
            return made(found, SCHEMES[found], drafts, settings)
        return replace(scheme(found, drafts, **settings), name=name.split(",")[0])
    if isinstance(name, Scheme):
        if law is not None or settings:
            raise AdviceError("a scheme has its own law and settings; give them to md.scheme with its name")
        return name if drafts is None else name.with_drafts(drafts)
    if not callable(name):
        raise AdviceError(f"a scheme's name is {shown(name)}; write law:rule, as in iid:lorenz; md.schemes() lists all")
    label = str(getattr(name, "__name__", type(name).__name__))
    if isinstance(law, Law):
        if settings:
            raise AdviceError(f"give {', '.join(settings)} to the law itself")
        found = Scheme(label, law, entry_of(name, type(law)))
        return found if drafts is None else found.with_drafts(drafts)
    return made(label, entry_of(name, law), drafts, settings)


def made(name: str, entry: Entry, drafts: int | None, settings: dict[str, Any]) -> Scheme:
    """A scheme with its settings, which are the law's or the rule's."""
    rule: Any = entry.rule  # a dataclass where there are settings
    of_law = set(entry.law.settings())
    of_rule = {field.name for field in fields(rule)} if is_dataclass(rule) and not isinstance(rule, Outside) else set()
    if extra := set(settings) - of_law - of_rule:
        raise AdviceError(
            f"{name} has no setting {', '.join(sorted(extra))}; it has {', '.join(sorted(of_law | of_rule)) or 'none'}"
        )
    drafts = entry.law.fixed_drafts or 4 if drafts is None else drafts
    law = entry.law(drafts, **{key: settings[key] for key in settings if key in of_law})
    own = {key: settings[key] for key in settings if key in of_rule}
    return Scheme(name, law, replace(entry, rule=replace(rule, **own)) if own else entry, tuple(own.items()))


def resolve(text: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A registered name, or what else a name says where to import, with the settings beside it and behind it."""
    name, *written = text.split(",")
    for key, value in map(setting, written):
        if key in ("name", "drafts"):
            raise AdviceError(f"{key} is no setting in a scheme's name; give the number of drafts beside it")
        if settings.setdefault(key, value) != value:
            raise AdviceError(f"{key} is set to {value} in the name and to {settings[key]} beside it; set it once")
    return name if name in SCHEMES or name in entries() else imported(name), settings


def setting(text: str) -> tuple[str, Any]:
    """A setting written `name=value`; the value is read as JSON where it is that, else as text."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise AdviceError(f"a scheme's setting {text!r} has no value; write it as in anchored:lorenz,anchors=2")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # of JSON, of the digits that Python reads, of its depth
        return name, value


def imported(name: str) -> Any:
    """What `module:function` names, also of a module in the current folder; raises where there is no such module."""
    module, _, attribute = name.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        known = find_spec(module) is not None
    except (ImportError, ValueError):
        known = False
    if not known:
        raise AdviceError(unknown(name))
    found = getattr(import_module(module), attribute, None)
    if found is None:
        raise AdviceError(f"the module {module} has no {attribute or 'rule of an empty name'}; {unknown(name)}")
    return found


def schemes() -> list[dict[str, str | bool]]:
    """Every scheme: its law, rule, source and cost, if it is exact, and if it is for small vocabularies only.

    The strongest published yardsticks are block verification (a chain) and traversal verification (a tree).
    """
    told = ("source", "exact", "small", "cost", "known_as")
    return [
        dict(name=name, law=entry.law.name, rule=name.split(":")[1]) | {field: getattr(entry, field) for field in told}
        for name, entry in entries().items()
    ]


def unknown(name: str) -> str:
    """What is wrong with a scheme's name and which names there are."""
    law, _, rule = name.partition(":")
    rules = [n.split(":")[1] for n in SCHEMES if n.split(":")[0] == law]
    if rules and any(n.endswith(f":{rule}") for n in SCHEMES):
        return f"the rule {rule} is not valid for drafts of the law {law}; valid rules for it: {', '.join(rules)}"
    return f"unknown scheme {name!r}; schemes are {', '.join(SCHEMES)}"
