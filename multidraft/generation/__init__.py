"""The public way in. Here: what is used where nothing is asked for; without torch, because the help shows it."""

from multidraft.autotune.limits import FIXED_TREE as FIXED_TREE

DEFAULT_SCHEME = "anchored:lorenz"
DEFAULT_TREE = "auto"  # what pays, by what was measured of the pair (docs/auto.md)
TUNE_BUDGET_SECONDS = 10.0  # seconds of steps in which trees are timed for a new pair
