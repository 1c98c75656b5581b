"""From a state to the next: draft a tree, score it in one target pass, walk it, keep what was accepted."""
