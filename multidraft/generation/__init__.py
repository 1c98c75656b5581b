"""The public way in. Here: what is used where nothing is asked for; without torch, because the help shows it."""

DEFAULT_SCHEME = "anchored:lorenz"
DEFAULT_TREE = "auto"  # what pays, by what was measured of the pair (docs/auto.md)
FIXED_TREE = "2x1x1x1"  # where nothing can be chosen: the best on the average of the processors measured (docs/log.md)
TUNE_BUDGET_SECONDS = 10.0  # seconds of steps in which trees are timed for a new pair
