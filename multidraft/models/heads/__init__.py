"""Heads that draft from a target's hidden states: EAGLE-3, DFlash, Medusa; modules and files."""
