"""Which trees to draft: costs of a pair on a machine, predicted tokens, and the choice (docs/auto.md)."""
