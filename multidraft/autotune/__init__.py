"""What is drafted is what pays: costs of a pair on a machine, predictions, and the decision (docs/auto.md)."""
