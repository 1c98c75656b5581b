"""Verification rules: from a target, a draft distribution and the drafted tokens to the law of the emitted one."""

from multidraft.verification.anchored_lorenz import anchored_lorenz
from multidraft.verification.k_sequential import k_sequential
from multidraft.verification.lorenz import lorenz
from multidraft.verification.naive import naive
from multidraft.verification.outcome import Outcome
from multidraft.verification.recursive_rejection import recursive_rejection

__all__ = ["Outcome", "anchored_lorenz", "k_sequential", "lorenz", "naive", "recursive_rejection"]
