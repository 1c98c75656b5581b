"""Drafting laws: how the tokens proposed at a node come from the draft distribution, and the optimum for each law."""

from multidraft.verification.law import Law
from multidraft.verification.laws.anchored import Anchored
from multidraft.verification.laws.distinct import Distinct
from multidraft.verification.laws.iid import Iid
from multidraft.verification.laws.sure import Greedy, SpecHub, Top
from multidraft.verification.laws.without_replacement import WithoutReplacement

LAWS: dict[str, type[Law]] = {
    law.name: law for law in (Iid, WithoutReplacement, Greedy, Anchored, Top, SpecHub, Distinct)
}
__all__ = ["LAWS", "Anchored", "Distinct", "Greedy", "Iid", "Law", "SpecHub", "Top", "WithoutReplacement"]
