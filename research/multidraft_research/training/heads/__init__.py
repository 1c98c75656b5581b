"""Heads that draft from a target's hidden states, trained on text that the target wrote."""
