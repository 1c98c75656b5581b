"""Is a server lossless: bets from outside, on every token, against the law that it reports or that a reference has.

The defaults stand here, without any import, because the command line needs them before it loads anything.
"""

BUDGET_TOKENS, MAX_TOKENS, NUM_LOGPROBS = 50_000, 64, 20
ALPHA, ROUNDING, TIMEOUT_SECONDS = 1e-6, 1e-3, 120.0
