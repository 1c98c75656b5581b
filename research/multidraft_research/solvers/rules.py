"""The entry point of the schemes that solve transport problems: their names, and a function that registers them.

The solvers are imported only when they are registered, so that a wrong name is refused at once.
"""

from multidraft.verification.names import SCHEME_NAMES

LAW_NAMES = list(dict.fromkeys(name.split(":")[0] for name in SCHEME_NAMES))
NAMES = (
    "iid:binned_lorenz",
    "anchored:binned_lorenz",
    "iid:global_resolution",
    "iid:reduced_max_flow",
    *(f"{law}:{solver}" for law in LAW_NAMES for solver in ("max_flow", "linear_program")),
)


def register_all() -> None:
    """Add the schemes of all solvers to the list, and those that sort nothing."""
    from multidraft_research.solvers import optimal_rules

    optimal_rules.register_all()
