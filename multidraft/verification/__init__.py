"""Losslessness as mathematics: drafting laws, verification rules, their optima, and schemes that join them."""
