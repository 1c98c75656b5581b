"""The one list of schemes, and what a scheme can do."""

from multidraft.catalogue.entries import SCHEMES, Entry
from multidraft.catalogue.law_and_rule import Scheme
from multidraft.catalogue.named import scheme, schemes

__all__ = ["SCHEMES", "Entry", "Scheme", "scheme", "schemes"]
