"""What audits are measured by: verifiers with a mistake, and pairs that are made to break a rule."""
