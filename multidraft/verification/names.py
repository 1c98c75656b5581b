"""The names of all schemes, so that a wrong one is refused at once. Without torch."""

import difflib
import sys
from collections.abc import Collection
from importlib import import_module
from importlib.metadata import entry_points

from multidraft.errors import AdviceError, quote

ENTRY_POINT_GROUP = "multidraft.schemes"  # of entry points: functions without arguments that call `register`
SCHEME_NAMES = (
    "iid:lorenz",
    "iid:k_sequential",
    "iid:recursive_rejection",
    "iid:naive",
    "without_replacement:recursive_rejection",
    "without_replacement:naive",
    "greedy:maximal_coupling",
    "greedy:naive",
    "anchored:lorenz",
    "anchored:naive",
    "top:naive",
    "spechub:spechub",
    "spechub:naive",
    "distinct:recursive_rejection",
    "distinct:naive",
)
MAX_NEAR, LONGEST_NAME = 3, 100  # names that are shown for one that is unknown, of which so much is compared


def check_name(text: str) -> None:
    """Raise on a scheme that does not exist, if that can be told without importing what registers or has schemes."""
    name = text.partition(",")[0]
    may_be_registered = "multidraft.verification.registry" in sys.modules or name.split(":")[0] in sys.modules
    if name in SCHEME_NAMES or may_be_registered:
        return
    listed_names = installed_names()
    if listed_names is not None and name not in listed_names:
        raise AdviceError(name_fault(name, [*SCHEME_NAMES, *listed_names]))


def installed_names() -> list[str] | None:
    """The names that installed packages list as `NAMES` beside their entry points; None if one lists none."""
    names = list[str]()
    for point in entry_points(group=ENTRY_POINT_GROUP):
        try:
            names += import_module(point.module).NAMES
        except (ImportError, AttributeError):
            return None
    return names


def name_fault(name: str, names: Collection[str]) -> str:
    """What is wrong with a scheme's name, and what comes closest."""
    law, _, rule = name.partition(":")
    rules = [n.split(":")[1] for n in names if n.split(":")[0] == law]
    if rules and any(n.endswith(f":{rule}") for n in names):
        return f"the rule {rule} is not valid for drafts of the law {law}; valid rules for it: {', '.join(rules)}"
    near = ", ".join(difflib.get_close_matches(name[:LONGEST_NAME], names, MAX_NEAR))
    advice = f"did you mean {near}? " if near else ""
    return (
        f"unknown scheme {quote(name)}; {advice}`multidraft schemes` (md.schemes()) lists all, and a module with one "
        "of yours is imported first (--import MODULE)"
    )
