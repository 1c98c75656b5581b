"""What is asked for where nothing else is said; without imports, as the command needs it before it loads anything."""

BUDGET_TOKENS, MAX_TOKENS, NUM_LOGPROBS = 50_000, 64, 20
ALPHA, ROUNDING, TIMEOUT_SECONDS = 1e-6, 1e-3, 120.0
