"""Solvers of the optimal transport problem over token sets, and the rules that follow from them."""
