"""What is used where nothing is asked for; without torch, because the command line's help shows it."""

SCHEME = "anchored:lorenz"
TREE = "2x1x1x1"  # the fixed tree that is best on the average of the processors measured (docs/log.md)
