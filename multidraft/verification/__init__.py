"""Verification rules: from a target, a draft distribution and the drafted tokens to the law of the emitted one."""

from multidraft.verification.outcome import Outcome

__all__ = ["Outcome"]
