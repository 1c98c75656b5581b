"""Studies whose cases are no prompts, as parts of a report: random tables, toy pairs, tokens to solve, one position."""
