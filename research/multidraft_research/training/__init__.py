"""Training of models: the embedded pair, drafts for a target, drafts from captures."""
