"""What is used where nothing is asked for; without torch, because the command line's help shows it."""

SCHEME = "anchored:lorenz"
TREE = "auto"
FIXED = "2x1x1x1"  # where nothing can be chosen: best on the average of the processors measured (docs/log.md)
