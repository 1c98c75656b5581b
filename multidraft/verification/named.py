"""Where `scheme` and `schemes` stood; they are in `registry`."""

from multidraft.verification.registry import scheme, schemes

__all__ = ["scheme", "schemes"]
