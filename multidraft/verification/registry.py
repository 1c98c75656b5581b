"""The one list of schemes: ours, those that other packages bring, and those that a user registers."""

import json
import logging
import sys
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from multidraft.errors import AdviceError, quote, shown_error
from multidraft.verification.law import Law
from multidraft.verification.laws import LAWS, Anchored, Distinct, Greedy, Iid, SpecHub, Top, WithoutReplacement
from multidraft.verification.names import ENTRY_POINT_GROUP, name_fault
from multidraft.verification.outside import Outside, WithoutLaw, as_rule
from multidraft.verification.rules.k_sequential import k_sequential, rate_of_k_sequential
from multidraft.verification.rules.lorenz import lorenz, rate_of_lorenz, spechub
from multidraft.verification.rules.naive import naive, rate_of_distinct, rate_of_iid, rate_of_top
from multidraft.verification.rules.recursive_rejection import rate_of_rejection, recursive_rejection
from multidraft.verification.scheme import Entry, Scheme

MCSD = "Multi-Candidate Speculative Decoding"
OPTIMAL_PAPER = "Towards Optimal Multi-Draft Speculative Decoding"
OUR_SOURCE = "multidraft (docs/theory.md)"
LOOK_UP, PASSES = "one look-up", "n passes"
BLOCK_VERIFICATION, TRAVERSAL = "on a chain, deferred: block verification", "deferred: traversal verification"

SCHEMES: dict[str, Entry] = {
    "iid:lorenz": Entry(
        Iid, lorenz, OUR_SOURCE, "one sort", rate_of_lorenz, known_as=BLOCK_VERIFICATION, coupling=True
    ),
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
        Greedy, lorenz, f"{OPTIMAL_PAPER}, Section 5", "one pass", rate_of_lorenz, coupling=True
    ),
    "greedy:naive": Entry(Greedy, naive, MCSD, LOOK_UP),
    "anchored:lorenz": Entry(
        Anchored, lorenz, OUR_SOURCE, "one sort, then a pass per top-up", rate_of_lorenz, coupling=True
    ),
    "anchored:naive": Entry(Anchored, naive, MCSD, LOOK_UP),
    "top:naive": Entry(Top, naive, f"{MCSD}; EAGLE", LOOK_UP, rate_of_top),
    "spechub:spechub": Entry(SpecHub, spechub, "SpecHub (Sun et al., 2024)", "one pass", rate_of_lorenz),
    "spechub:naive": Entry(SpecHub, naive, MCSD, LOOK_UP),
    "distinct:recursive_rejection": Entry(Distinct, recursive_rejection, "SpecInfer", PASSES, rate_of_rejection),
    "distinct:naive": Entry(Distinct, naive, MCSD, LOOK_UP, rate_of_distinct),
}
NOTES = logging.getLogger("multidraft")
BUILT_IN_NAMES = frozenset(SCHEMES)
PACKAGED_NAMES = set(BUILT_IN_NAMES)  # with those that installed packages bring


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
        raise AdviceError(f"{quote(name)} is no name of a scheme; write one as in mine:rule")
    if name in BUILT_IN_NAMES:
        raise AdviceError(f"{name} is a scheme of multidraft's own; choose another name")
    SCHEMES[name] = entry_of(name, rule, law, **details)


def entry_of(name: str, function: Callable[..., Any], law: object, **details: Any) -> Entry:
    """What is known of a rule from outside, and of its law: one of ours by name, or a class."""
    rule = as_rule(function, name)
    if unknown := set(details) - ({field.name for field in fields(Entry)} - {"guarded"}):
        raise AdviceError(f"a scheme has no {', '.join(sorted(unknown))}; it has source, cost, rate, exact, small, ..")
    kind = LAWS.get(law) if isinstance(law, str) else law
    if law is None:
        raise AdviceError(f'name the law that the drafts are drawn from: law="iid" or one of {", ".join(LAWS)}')
    if not isinstance(kind, type) or not issubclass(kind, Law):
        raise AdviceError(f"unknown drafting law {quote(law)}; laws are {', '.join(LAWS)}")
    return Entry(kind, rule, **dict(sub_probability=not isinstance(rule, WithoutLaw)) | details, guarded=True)


@cache
def entries() -> dict[str, Entry]:
    """Every scheme, once installed packages have registered theirs; one that fails does not stop the others."""
    before = set(SCHEMES)
    for point in sorted(entry_points(group=ENTRY_POINT_GROUP)):
        try:
            point.load()()
        except Exception as error:  # whatever a package of others may do
            NOTES.warning("the schemes of %s are left out, for it fails with %s", point.value, shown_error(error))
    PACKAGED_NAMES.update(SCHEMES.keys() - before)
    return SCHEMES


def scheme(
    name: "str | Scheme | Callable[..., Any]", drafts: int | None = None, *, law: object = None, **settings: Any
) -> Scheme:
    """The scheme `law:rule` with `drafts` drafts a node; `settings` are the law's and the rule's.

    Settings may follow the name too: "anchored:lorenz,anchors=2". Instead of a name, `name` may be a scheme, a rule
    from outside with its `law` (see `register`), or its place in a module that is imported: "module:rule,law=iid".

    >>> import torch
    >>> scheme("iid:lorenz", drafts=2).acceptance_rate(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(0.5000)
    """
    if isinstance(name, str):
        resolved, settings = resolve(name, settings if law is None else settings | dict(law=law))
        if isinstance(resolved, str):
            return make_scheme(resolved, SCHEMES[resolved], drafts, settings)
        return replace(scheme(resolved, drafts, **settings), name=name.split(",")[0])
    if isinstance(name, Scheme):
        if law is not None or settings:
            raise AdviceError("a scheme has its own law and settings; give them to md.scheme with its name")
        return name if drafts is None else name.with_drafts(drafts)
    if not callable(name):
        raise AdviceError(f"a scheme's name is {quote(name)}; write law:rule, as in iid:lorenz; md.schemes() lists all")
    label = str(getattr(name, "__name__", type(name).__name__))
    if isinstance(law, Law):
        if settings:
            raise AdviceError(f"give {', '.join(settings)} to the law itself")
        resolved = Scheme(label, law, entry_of(label, name, type(law)))
        return resolved if drafts is None else resolved.with_drafts(drafts)
    return make_scheme(label, entry_of(label, name, law), drafts, settings)


def make_scheme(name: str, entry: Entry, drafts: int | None, settings: dict[str, Any]) -> Scheme:
    """A scheme with its settings, which are the law's or the rule's."""
    outside = entry.rule if isinstance(entry.rule, Outside) else None
    rule: Any = outside.function if outside else entry.rule  # a dataclass where there are settings
    of_law = set(entry.law.settings())
    of_rule = {field.name for field in fields(rule)} if is_dataclass(rule) else set()
    if extra := set(settings) - of_law - of_rule:
        raise AdviceError(
            f"{name} has no setting {', '.join(sorted(extra))}; it has {', '.join(sorted(of_law | of_rule)) or 'none'}"
        )
    drafts = entry.law.fixed_drafts or 4 if drafts is None else drafts
    law = entry.law(drafts, **{key: settings[key] for key in settings if key in of_law})
    rule_settings = {key: settings[key] for key in settings if key in of_rule}
    if rule_settings:
        rule = replace(rule, **rule_settings)
        entry = replace(entry, rule=replace(outside, function=rule) if outside else rule)
    return Scheme(name, law, entry, tuple(rule_settings.items()))


def resolve(text: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A registered name, or what is imported under another one, with the settings beside it and behind it."""
    name, *written = text.split(",")
    for key, value in map(setting, written):
        if key in ("name", "drafts"):
            raise AdviceError(f"{key} is no setting in a scheme's name; give the number of drafts beside it")
        if settings.setdefault(key, value) != value:
            raise AdviceError(f"{key} is set to {value} in the name and to {settings[key]} beside it; set it once")
    return name if name in SCHEMES or name in entries() else imported_scheme(name), settings


def setting(text: str) -> tuple[str, Any]:
    """A setting written `name=value`; the value is read as JSON where it is that, else as text."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise AdviceError(f"a scheme's setting {text!r} has no value; write it as in anchored:lorenz,anchors=2")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # of JSON, of the digits that Python reads, of its depth
        return name, value


def imported_scheme(name: str) -> Any:
    """What `module:function` names in a module that has been imported: a name alone, mistyped say, runs no code."""
    module, _, attribute = name.partition(":")
    if module not in sys.modules:
        raise AdviceError(name_fault(name, SCHEMES))
    function = getattr(sys.modules[module], attribute, None)
    if function is None:
        raise AdviceError(
            f"the module {module} has no {attribute or 'rule of an empty name'}; {name_fault(name, SCHEMES)}"
        )
    return function


def schemes() -> list[dict[str, object]]:
    """Every scheme: its law, rule, source and cost, if it is exact, if it is for small vocabularies only.

    Of `registered` ones "exact" is what their author says; `multidraft audit` tries it.

    The strongest published yardsticks are block verification (a chain) and traversal verification (a tree).
    """
    names = ("source", "exact", "small", "cost", "known_as")
    return [
        dict(name=name, law=entry.law.name, rule=name.split(":")[1], registered=name not in PACKAGED_NAMES)
        | {field: getattr(entry, field) for field in names}
        for name, entry in entries().items()
    ]
