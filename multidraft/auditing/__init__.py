"""Is a verifier lossless: a scheme of ours or anyone's, exactly for small vocabularies, by statistics for large."""

from multidraft.auditing.parts import audit
from multidraft.auditing.report import Report

__all__ = ["Report", "audit"]
