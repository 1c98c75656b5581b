"""Verification rules, each beside its theorem."""
