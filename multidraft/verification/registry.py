"""The one list of schemes: ours, those that other packages bring, and those that a user registers."""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from multidraft.errors import AdviceError, shown
from multidraft.verification.law import Law
from multidraft.verification.laws import LAWS, Anchored, Distinct, Greedy, Iid, SpecHub, Top, WithoutReplacement
from multidraft.verification.outside import Outside, as_rule
from multidraft.verification.rules import k_sequential, lorenz, naive
from multidraft.verification.rules import recursive_rejection as recursion
from multidraft.verification.scheme import Entry, Scheme

GROUP = "multidraft.schemes"  # of entry points: functions without arguments that call `register`
MCSD = "Multi-Candidate Speculative Decoding"
OPTIMAL = "Towards Optimal Multi-Draft Speculative Decoding"
OURS = "multidraft (docs/theory.md)"

LOOK_UP = "one look-up"
BLOCK, TRAVERSAL = "on a chain, deferred: block verification", "deferred: traversal verification"

SCHEMES: dict[str, Entry] = {
    "iid:lorenz": Entry(Iid, lorenz.lorenz, OURS, "one sort", lorenz.acceptance_rate, known_as=BLOCK, coupling=True),
    "iid:k_sequential": Entry(
        Iid, k_sequential.k_sequential, "SpecTr, Algorithm 2", "50 passes", k_sequential.acceptance_rate, coupling=True
    ),
    "iid:recursive_rejection": Entry(
        Iid,
        recursion.recursive_rejection,
        f"SpecInfer; {MCSD}, Algorithm 1",
        "n passes",
        recursion.acceptance_rate,
        coupling=True,
    ),
    "iid:naive": Entry(Iid, naive.naive, MCSD, LOOK_UP, naive.rate_of_iid),
    "without_replacement:recursive_rejection": Entry(
        WithoutReplacement,
        recursion.recursive_rejection,
        f"{MCSD}, Algorithm 2",
        "n passes",
        known_as=TRAVERSAL,
        coupling=True,
    ),
    "without_replacement:naive": Entry(WithoutReplacement, naive.naive, MCSD, LOOK_UP),
    "greedy:maximal_coupling": Entry(
        Greedy, lorenz.lorenz, f"{OPTIMAL}, Section 5", "one pass", lorenz.acceptance_rate, coupling=True
    ),
    "greedy:naive": Entry(Greedy, naive.naive, MCSD, LOOK_UP),
    "anchored:lorenz": Entry(
        Anchored, lorenz.lorenz, OURS, "one sort, then a pass per top-up", lorenz.acceptance_rate, coupling=True
    ),
    "anchored:naive": Entry(Anchored, naive.naive, MCSD, LOOK_UP),
    "top:naive": Entry(Top, naive.naive, f"{MCSD}; EAGLE", LOOK_UP, naive.rate_of_top),
    "spechub:spechub": Entry(SpecHub, lorenz.spechub, "SpecHub (Sun et al., 2024)", "one pass", lorenz.acceptance_rate),
    "spechub:naive": Entry(SpecHub, naive.naive, MCSD, LOOK_UP),
    "distinct:recursive_rejection": Entry(
        Distinct, recursion.recursive_rejection, "SpecInfer", "n passes", recursion.acceptance_rate
    ),
    "distinct:naive": Entry(Distinct, naive.naive, MCSD, LOOK_UP, naive.rate_of_distinct),
}
BUILT_IN = frozenset(SCHEMES)


def register(name: str, *, law: str | type[Law], rule: Callable[..., Any], **details: Any) -> None:
    """Add a scheme: every function, command and study that takes a scheme's name then takes this one.

    `rule(target (N, V), draft (N, V), drafted (N, n))` returns `(accept (N, n), residual (N, V))`: the probability of
    emitting each draft, and of emitting each token otherwise. `rule(target, draft, drafted, law)` returns an `Outcome`.
    `law` is the name of a drafting law, or a class of your own. `details` are the other fields of `Entry`: `source`,
    `cost`, `rate` (the formula of the acceptance rate), `exact`, `small`, and `sub_probability=True` where a rule of
    three arguments takes targets that sum to less than one, which the deferred walk asks for. Audit it: nothing here
    shows that it is lossless. A package does the same by an entry point of the group `multidraft.schemes`: a function
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
    """What is known of a rule from outside."""
    if not callable(function):
        raise AdviceError(f"the rule is {shown(function)}; give a function")
    rule = as_rule(function)
    if unknown := set(details) - {field.name for field in fields(Entry)}:
        raise AdviceError(f"a scheme has no {', '.join(sorted(unknown))}; it has source, cost, rate, exact, small, ..")
    return Entry(law_class(law), rule, **dict(sub_probability=not isinstance(rule, Outside)) | details)


def law_class(law: object) -> type[Law]:
    """A drafting law by its name, or one from outside."""
    if isinstance(law, str) and law in LAWS:
        return LAWS[law]
    if isinstance(law, type) and issubclass(law, Law):
        return law
    if law is None:
        raise AdviceError(f'name the law that the drafts are drawn from: law="iid" or one of {", ".join(LAWS)}')
    raise AdviceError(f"unknown drafting law {shown(law)}; laws are {', '.join(LAWS)}")


@cache
def load_others() -> None:
    """Let installed packages register their schemes, once, when a name is not known or all are listed."""
    for point in sorted(entry_points(group=GROUP)):
        point.load()()


def entries() -> dict[str, Entry]:
    """Every scheme, those of other packages too."""
    load_others()
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
        if settings.setdefault(key, value) != value:
            raise AdviceError(
                f"{key} is set twice, to {value} in the name and to {settings[key]} beside it; set it once"
            )
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
    shown_fields = ("source", "exact", "small", "cost", "known_as")
    return [
        dict(name=name, law=entry.law.name, rule=name.split(":")[1])
        | {field: getattr(entry, field) for field in shown_fields}
        for name, entry in entries().items()
    ]


def unknown(name: str) -> str:
    """What is wrong with a scheme's name and which names there are."""
    law, _, rule = name.partition(":")
    rules = [n.split(":")[1] for n in SCHEMES if n.split(":")[0] == law]
    if rules and any(n.endswith(f":{rule}") for n in SCHEMES):
        return f"the rule {rule} is not valid for drafts of the law {law}; valid rules for it: {', '.join(rules)}"
    return f"unknown scheme {name!r}; schemes are {', '.join(SCHEMES)}"
