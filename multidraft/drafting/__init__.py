"""Drafting laws: how the tokens proposed at a node come from the draft distribution."""

from multidraft.drafting.anchored import Anchored
from multidraft.drafting.distinct import Distinct
from multidraft.drafting.greedy import Greedy
from multidraft.drafting.iid import Iid
from multidraft.drafting.law import Law
from multidraft.drafting.laws import LAWS
from multidraft.drafting.optimal import optimal_acceptance_rate
from multidraft.drafting.spechub import SpecHub
from multidraft.drafting.top import Top
from multidraft.drafting.without_replacement import WithoutReplacement

__all__ = [
    "LAWS",
    "Anchored",
    "Distinct",
    "Greedy",
    "Iid",
    "Law",
    "SpecHub",
    "Top",
    "WithoutReplacement",
    "optimal_acceptance_rate",
]
