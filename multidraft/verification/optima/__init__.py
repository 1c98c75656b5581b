"""The optimal transport problem behind verification: how often the best rule accepts, for every kind of drafts."""

from multidraft.verification.optima.anchored import optimal_anchored
from multidraft.verification.optima.distinct import optimal_distinct
from multidraft.verification.optima.iid import optimal_iid
from multidraft.verification.optima.spechub import optimal_spechub
from multidraft.verification.optima.top import optimal_top
from multidraft.verification.optima.without_replacement import optimal_without_replacement

__all__ = [
    "optimal_anchored",
    "optimal_distinct",
    "optimal_iid",
    "optimal_spechub",
    "optimal_top",
    "optimal_without_replacement",
]
