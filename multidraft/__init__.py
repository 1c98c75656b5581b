"""Multi-draft speculative decoding: faster generation whose output has exactly the target model's distribution."""

from multidraft.scheme import scheme, schemes

__all__ = ["scheme", "schemes"]
__version__ = "0.1.0"
