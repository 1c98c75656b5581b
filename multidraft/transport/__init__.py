"""The optimal transport problem behind verification: how often the best rule accepts, for every kind of drafts."""

from multidraft.transport.anchored import optimal_anchored
from multidraft.transport.distinct import optimal_distinct
from multidraft.transport.iid import optimal_iid
from multidraft.transport.linear_program import optimal_by_linear_program
from multidraft.transport.spechub import optimal_spechub
from multidraft.transport.top import optimal_top
from multidraft.transport.without_replacement import optimal_without_replacement

__all__ = [
    "optimal_anchored",
    "optimal_by_linear_program",
    "optimal_distinct",
    "optimal_iid",
    "optimal_spechub",
    "optimal_top",
    "optimal_without_replacement",
]
