"""Arithmetic on distributions: checked, drawn from, and compiled loops for CPUs."""
