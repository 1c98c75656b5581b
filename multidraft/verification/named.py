"""Schemes by their names, `law:rule` with settings."""

import json
from dataclasses import fields, is_dataclass
from typing import Any

from multidraft.errors import AdviceError
from multidraft.errors.checks import shown
from multidraft.verification.laws import LAWS
from multidraft.verification.registry import SCHEMES
from multidraft.verification.scheme import Scheme


def scheme(name: str, drafts: int | None = None, **settings: Any) -> Scheme:
    """The scheme `law:rule` with `drafts` drafts a node; `settings` are the law's and the rule's.

    Settings may follow the name too: "anchored:lorenz,anchors=2".

    >>> import torch
    >>> scheme("iid:lorenz", drafts=2).acceptance_rate(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    tensor(0.5000)
    """
    if not isinstance(name, str):
        raise AdviceError(f"a scheme's name is {shown(name)}; write law:rule, as in iid:lorenz; md.schemes() lists all")
    name, *written = name.split(",")
    for key, value in map(setting, written):
        if settings.setdefault(key, value) != value:
            raise AdviceError(
                f"{key} is set twice, to {value} in the name and to {settings[key]} beside it; set it once"
            )
    if name not in SCHEMES:
        raise AdviceError(unknown(name))
    law, rule = LAWS[name.split(":")[0]], SCHEMES[name].rule
    of_law = set(law.settings())
    of_rule: set[str] = {field.name for field in fields(rule)} if is_dataclass(rule) else set()
    if extra := set(settings) - of_law - of_rule:
        raise AdviceError(
            f"{name} has no setting {', '.join(sorted(extra))}; it has {', '.join(sorted(of_law | of_rule)) or 'none'}"
        )
    drafts = law.fixed_drafts or 4 if drafts is None else drafts
    made = law(drafts, **{key: settings[key] for key in settings if key in of_law})
    found = Scheme(name, made, tuple((key, settings[key]) for key in settings if key in of_rule))
    _ = found.entry  # raises where a setting of the rule makes no sense
    return found


def setting(text: str) -> tuple[str, Any]:
    """A setting written `name=value`; the value is read as JSON where it is that, else as text."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise AdviceError(f"a scheme's setting {text!r} has no value; write it as in anchored:lorenz,anchors=2")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):  # of JSON, of the digits that Python reads, of its depth
        return name, value


def schemes() -> list[dict[str, str | bool]]:
    """Every scheme: its law, rule, source and cost, if it is exact, and if it is for small vocabularies only.

    The strongest published yardsticks are block verification (a chain) and traversal verification (a tree).
    """
    return [
        dict(
            name=name,
            law=name.split(":")[0],
            rule=name.split(":")[1],
            source=entry.source,
            exact=entry.exact,
            small=entry.small,
            cost=entry.cost,
            known_as=entry.known_as,
        )
        for name, entry in SCHEMES.items()
    ]


def unknown(name: str) -> str:
    """What is wrong with a scheme's name and which names there are."""
    law, _, rule = name.partition(":")
    rules = [n.split(":")[1] for n in SCHEMES if n.split(":")[0] == law]
    if rules and any(n.endswith(f":{rule}") for n in SCHEMES):
        return f"the rule {rule} is not valid for drafts of the law {law}; valid rules for it: {', '.join(rules)}"
    return f"unknown scheme {name!r}; schemes are {', '.join(SCHEMES)}"
