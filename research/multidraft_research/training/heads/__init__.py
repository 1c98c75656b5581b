"""Heads that draft from a target's hidden states, taught on text that the target wrote."""
