"""Logits of a pair of models: in memory, in a file for each prompt, in a folder, and how they come there."""
