"""Verification rules: from target, draft distribution and drafted tokens to the law of the emitted token."""
