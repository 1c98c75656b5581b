"""The one list of drafting laws."""

from multidraft.drafting.anchored import Anchored
from multidraft.drafting.distinct import Distinct
from multidraft.drafting.greedy import Greedy
from multidraft.drafting.iid import Iid
from multidraft.drafting.law import Law
from multidraft.drafting.spechub import SpecHub
from multidraft.drafting.top import Top
from multidraft.drafting.without_replacement import WithoutReplacement

LAWS: dict[str, type[Law]] = {
    law.name: law for law in (Iid, WithoutReplacement, Greedy, Anchored, Top, SpecHub, Distinct)
}
