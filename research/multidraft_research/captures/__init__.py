"""Captures: logits of a pair at the same positions, on disk."""
