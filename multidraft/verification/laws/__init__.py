"""Drafting laws: how the tokens proposed at a node come from the draft distribution."""

from multidraft.verification.law import Law
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.laws.distinct import Distinct
from multidraft.verification.laws.greedy import Greedy
from multidraft.verification.laws.iid import Iid
from multidraft.verification.laws.listed import LAWS
from multidraft.verification.laws.spechub import SpecHub
from multidraft.verification.laws.top import Top
from multidraft.verification.laws.without_replacement import WithoutReplacement

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
]
