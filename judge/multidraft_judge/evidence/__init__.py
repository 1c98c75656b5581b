"""How tokens are weighed: bets against the law that each should have."""
