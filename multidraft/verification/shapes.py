"""The shapes that laws, rules and optima share: a row is a place where something is drafted."""

from jaxtyping import Float, Int
from torch import Tensor

Rows = Float[Tensor, "*batch vocabulary"]  # a number for every token: a distribution, or a part of one
Draft = Float[Tensor, "*drafting vocabulary"]  # as `Rows`, or (*batch, drafts, vocabulary) for the law `distinct`
Tuples = Int[Tensor, "*batch width"]  # the drafted tokens, -1 where a position is empty
Tokens = Int[Tensor, "*batch some"]
Rates = Float[Tensor, "*batch"]
