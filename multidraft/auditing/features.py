"""What to look at among the tokens: what the draft overrates, how likely they are, their ids, each frequent one."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import one_hot

from multidraft.verification.law import Law

GROUPS, BLOCKS = 12, 8  # of tokens by how much the draft overrates them; by their probability, and by their ids
FREQUENT, MOST_FREQUENT = 1e-3, 64  # tokens that are looked at one by one


def overall(target: Tensor, draft: Tensor) -> Tensor:
    """The draft distribution (the mean of several) among the tokens that the target can emit."""
    mean = (draft.mean(-2) if draft.ndim > 1 else draft).double() * (target > 0)
    return mean / mean.sum().clamp(min=1e-300)


@dataclass(frozen=True)
class Features:
    """Numbers of every token; what they are on average is known where a verifier is lossless."""

    target: Float[Tensor, " vocabulary"]
    draft: Float[Tensor, " vocabulary"]

    @classmethod
    def of(cls, target: Float[Tensor, " vocabulary"], draft: Tensor) -> "Features":
        """For a target and a draft distribution, or several."""
        return cls(target.double() / target.double().sum(), overall(target, draft))

    @cached_property
    def coarse(self) -> Float[Tensor, "vocabulary coarse"]:
        """How much the draft overrates a token, between -1 and 1; and groups of tokens that it overrates alike."""
        p, q = self.target, self.draft
        overrated = (q - p) / (q + p).clamp(min=1e-300)
        groups = shares((p + q) / 2, (q / p.clamp(min=1e-300)).argsort(stable=True), GROUPS)
        return torch.cat([overrated[:, None], groups], -1)

    @cached_property
    def fine(self) -> Float[Tensor, "vocabulary fine"]:
        """The tokens that never come, groups by probability and by id, and each of the most frequent tokens."""
        p, size = self.target, len(self.target)
        order = p.argsort(descending=True, stable=True)
        never, by_id = (p == 0).double()[:, None], one_hot(torch.arange(size) * BLOCKS // size).double()
        often = order[:MOST_FREQUENT][p[order[:MOST_FREQUENT]] >= FREQUENT]
        return torch.cat([never, by_id, shares(p, order, BLOCKS), one_hot(often, size).double().T], -1)

    @cached_property
    def table(self) -> Float[Tensor, "vocabulary features"]:
        """All of them."""
        return torch.cat([self.coarse, self.fine], -1)

    @cached_property
    def single(self) -> Float[Tensor, "vocabulary features"]:
        """The table in float32, as large pairs are."""
        return self.table.float()

    @property
    def parts(self) -> dict[str, slice]:
        """Where the coarse and the fine ones stand in the table."""
        split = self.coarse.shape[1]
        return {"coarse": slice(0, split), "fine": slice(split, None)}

    @cached_property
    def mean(self) -> Float[Tensor, " features"]:
        """What every feature is on average if the target's law is what is emitted."""
        return self.target @ self.table


def shares(
    mass: Float[Tensor, " vocabulary"], order: Int[Tensor, " vocabulary"], count: int
) -> Float[Tensor, "vocabulary some"]:
    """Marks of at most `count` groups of about equal mass, neighbours in `order` together."""
    ordered = mass[order]
    group = ((ordered.cumsum(0) - ordered / 2) / mass.sum() * count).long().clamp(max=count - 1)
    marks = one_hot(torch.empty_like(group).scatter_(0, order, group), count).double()
    return marks[:, marks.any(0)]


def surprises(
    law: Law, draft: Tensor, drawn: Int[Tensor, "rows width"], drafted: Int[Tensor, "rows width"], values: Tensor
) -> Float[Tensor, "rows controls"]:
    """What was drafted less what was to be expected after the tokens before it: zero on average, whatever the rule.

        values[x_j] - sum_v P(x_j = v | x_1, .., x_{j-1}) values[v]

    `drawn` are the tuples before it was decided, by a coin, whether to draft at all.
    """
    drafts = (drawn == drafted).all(-1, keepdim=True).double()
    found = [drafts - law.draft_probability]
    for j in range(law.width):
        if (drawn[:, j] >= 0).any():  # else it was sure to stay empty
            expected = (law.conditional(draft, drawn[:, :j]) @ values.to(draft)).double()
            here = values[drawn[:, j].clamp(min=0)] * (drawn[:, j, None] >= 0)
            found.append(drafts * (here - expected))
        else:
            found.append(torch.zeros(len(drawn), values.shape[1], dtype=torch.float64))
    return torch.cat(found, -1)
