"""Multi-draft speculative decoding: faster generation whose output has exactly the target model's distribution."""

from multidraft.audit import audit
from multidraft.errors import AdviceError
from multidraft.generation import generate
from multidraft.scheme import scheme, schemes
from multidraft.transport import optimal_acceptance_rate
from multidraft.tree import Tree

__all__ = ["AdviceError", "Tree", "audit", "generate", "optimal_acceptance_rate", "scheme", "schemes"]
__version__ = "0.1.0"
