"""Drafting laws: how the tokens proposed at a node come from the draft distribution."""

from multidraft.verification.law import Law
from multidraft.verification.laws.anchored import Anchored, Counts, Greedy, SpecHub, Top
from multidraft.verification.laws.distinct import Distinct
from multidraft.verification.laws.iid import Iid
from multidraft.verification.laws.without_replacement import WithoutReplacement

__all__ = ["LAWS", "Anchored", "Counts", "Distinct", "Greedy", "Iid", "SpecHub", "Top", "WithoutReplacement"]

LAWS: dict[str, type[Law]] = {
    law.name: law for law in (Iid, WithoutReplacement, Greedy, Anchored, Top, SpecHub, Distinct)
}
