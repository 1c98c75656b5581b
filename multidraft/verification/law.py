"""What a drafting law is: the distribution of each drafted token given those before it."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, check_integer, is_number, quote
from multidraft.verification.distributions import normalise, pick
from multidraft.verification.precision import Draft, Past, Rates, Rows, Tokens, Tuples, least

MAX_TUPLES = 1_000_000


@dataclass(frozen=True)
class Law(ABC):
    """How `drafts` tokens come from a draft distribution.

    A law is given by `conditional` alone: drawing, the probability of a tuple and the list of all tuples follow from
    it. Position `j` of a tuple is empty (-1) where the conditional has no mass. With probability
    1 - `draft_probability` nothing is drafted at all and every position is empty (Randomised Drafting).
    """

    def __post_init__(self) -> None:
        check_integer(self.drafts, "drafts", 1)
        if not is_number(self.draft_probability) or not 0 < self.draft_probability <= 1:
            probability = quote(self.draft_probability)
            raise AdviceError(f"draft_probability {probability} is out of range; use a number in (0, 1]")
        object.__setattr__(self, "draft_probability", float(self.draft_probability))  # 1 is written for 1.0

    drafts: int
    draft_probability: float | int = 1.0

    name: ClassVar[str]
    optimal: ClassVar[Callable[..., Tensor] | None] = None  # rate, from (target, draft, drafts, **settings)
    can_repeat: ClassVar[bool] = False  # whether it may give a tree node equal children
    per_draft_distributions: ClassVar[bool] = False  # whether `draft` has one a draft: (..., drafts, vocabulary)
    fixed_drafts: ClassVar[int | None] = None  # the one number of drafts that it takes, if it takes but one

    @classmethod
    def settings(cls) -> tuple[str, ...]:
        """The names of what may be set beside the number of drafts."""
        return tuple(field.name for field in fields(cls) if field.name != "drafts")

    @cache  # noqa: B019  # laws are few, and the decoding loop asks at every level
    def with_drafts(self, drafts: int) -> "Law":
        """The same law with another number of drafts."""
        return replace(self, drafts=drafts)

    @property
    def width(self) -> int:
        """Positions in a tuple; more than `drafts` where duplicates are followed by top-ups."""
        return self.drafts

    @property
    def num_uniforms(self) -> int:
        """Uniform numbers that one tuple takes: one a position, and one for whether to draft at all."""
        return self.width + (self.draft_probability < 1)

    @property
    def is_single_draw(self) -> bool:
        """Whether a tuple is a single token drawn from q itself, and never empty."""
        return self.drafts == 1 and self.draft_probability == 1

    @cached_property
    def tuple_of_one_token(self) -> list[int]:
        """What is drawn from a distribution of a single token, token 0, unless nothing is: no number decides on it."""
        draft, uniform = torch.ones(1, dtype=torch.float64), torch.zeros(self.width, dtype=torch.float64)
        return self.draw_all(draft, uniform).tolist()

    def batch(self, draft: Tensor) -> torch.Size:
        """The leading shape: one tuple is drawn for each of its entries."""
        return draft.shape[:-1]

    @abstractmethod
    def conditional(self, draft: Draft, drafted: Past) -> Rows:
        """Distribution of the next drafted token given the past ones; all zero where that position stays empty."""

    def draw(self, draft: Draft, uniform: Float[Tensor, "*batch numbers"]) -> Tuples:
        """A tuple as a function of uniform numbers, `num_uniforms` of them."""
        drafted = self.draw_all(draft, uniform[..., : self.width])
        if self.draft_probability < 1:
            drafted = drafted.masked_fill(uniform[..., self.width :] >= self.draft_probability, -1)
        return drafted

    def draw_all(self, draft: Draft, uniform: Float[Tensor, "*batch width"]) -> Tuples:
        """The tuple where something is drafted; a law with a faster way than position by position has its own."""
        drafted = torch.empty((*self.batch(draft), 0), dtype=torch.int64, device=draft.device)
        for j in range(self.width):
            token = pick(self.conditional(draft, drafted), uniform[..., j : j + 1])
            drafted = torch.cat([drafted, token], -1)
        return drafted

    def probability(self, draft: Draft, drafted: Tuples) -> Rates:
        """Probability of exactly this ordered tuple."""
        drawn = self.draft_probability * self.factors(draft, drafted).prod(-1)
        return drawn + (1 - self.draft_probability) * (drafted < 0).all(-1)

    def possible(self, draft: Draft, drafted: Tuples) -> Bool[Tensor, "*batch"]:
        """Whether the law can draw this tuple, however small the probability."""
        drawn = (self.factors(draft, drafted) > 0).all(-1)
        return drawn | (drafted < 0).all(-1) if self.draft_probability < 1 else drawn

    def factors(self, draft: Tensor, drafted: Tensor) -> Tensor:
        """Probability of each position given those before it."""
        factors = []
        for j in range(self.width):
            probs, token = self.conditional(draft, drafted[..., :j]), drafted[..., j : j + 1]
            empty = (probs.sum(-1, keepdim=True) == 0).to(probs.dtype)
            factors.append(torch.where(token >= 0, at_each(probs, token), empty))
        return torch.cat(factors, -1)

    def tuples(self, draft: Draft) -> tuple[Int[Tensor, "tuples width"], Float[Tensor, " tuples"]]:
        """Every possible tuple of one small draft distribution, with its probability."""
        return self.tuples_of_rows(draft[None])[1:]

    def tuples_of_rows(
        self, draft: Float[Tensor, "rows *drafting vocabulary"]
    ) -> tuple[Int[Tensor, " tuples"], Int[Tensor, "tuples width"], Float[Tensor, " tuples"]]:
        """Every possible tuple of each row, with its row and its probability."""
        row = all_rows = torch.arange(len(draft), device=draft.device)
        drafted, weight = row.new_empty((len(row), 0)), draft.new_ones(len(row))
        for _ in range(self.width):
            probs = self.conditional(draft[row], drafted)
            probs = torch.cat(
                [probs, (probs.sum(-1, keepdim=True) == 0).to(probs.dtype)], -1
            )  # last column: stays empty
            earlier, token = probs.nonzero(as_tuple=True)
            if len(earlier) > MAX_TUPLES:
                raise AdviceError(f"more than {MAX_TUPLES:,} tuples; enumerate fewer drafts or a smaller vocabulary")
            row, weight = row[earlier], weight[earlier] * probs[earlier, token]
            drafted = torch.cat([drafted[earlier], token.masked_fill(token == draft.shape[-1], -1)[:, None]], -1)
        if self.draft_probability < 1:
            row, drafted = (
                torch.cat([row, all_rows]),
                torch.cat([drafted, drafted.new_full((len(all_rows), self.width), -1)]),
            )
            nothing = weight.new_full((len(all_rows),), 1 - self.draft_probability)
            weight = torch.cat([self.draft_probability * weight, nothing])
        return row, drafted, weight


class Staged(Law):
    """Sure tokens, i.i.d. draws among the others, then top-ups, any of which may be left out (`rules.lorenz`)."""

    @cached_property
    def has_deterministic(self) -> bool:
        """Whether a token can be sure."""
        return len(self.parts(np.arange(self.width))[0]) > 0

    @cached_property
    def tops_up(self) -> bool:
        """Whether there can be top-ups."""
        return len(self.parts(np.arange(self.width))[2]) > 0

    def deterministic_tokens(self, draft: Rows) -> Int[Tensor, "*batch sure"]:
        """The tokens that are drafted for sure where anything is, padded with -1."""
        return torch.empty((*draft.shape[:-1], 0), dtype=torch.int64, device=draft.device)

    def without_deterministic(self, draft: Rows, deterministic: Int[Tensor, "*batch sure"]) -> Rows:
        """q', what the draws come from: the draft distribution without its sure tokens."""
        return without(draft, deterministic) if self.has_deterministic else draft

    def parts(self, drafted: Any) -> tuple[Any, Any, Any]:
        """The positions of tuples, or of their beginning: sure tokens, draws, top-ups."""
        return drafted[..., :0], drafted, drafted[..., :0]


def at_each(values: Rows, tokens: Tokens) -> Float[Tensor, "*batch some"]:
    """values[token] for each token, and 0 where the token is empty."""
    return values.gather(-1, tokens.clamp(min=0)) * (tokens >= 0)


def one_hot(draft: Rows, token: Int[Tensor, "*batch 1"]) -> Rows:
    """All mass on one token, or none where it is empty."""
    return torch.zeros_like(draft).scatter(-1, token.clamp(min=0), (token >= 0).to(draft.dtype))


def without(draft: Rows, tokens: Tokens) -> Rows:
    """The distribution renormalised without the given tokens (-1 is ignored); all zero where nothing is left.

    What is below `precision.least` beside the tokens that are gone counts as nothing.
    """
    if tokens.shape[-1] == 0:
        return draft
    index = torch.where(tokens >= 0, tokens, draft.shape[-1])
    kept = torch.nn.functional.pad(draft, (0, 1)).scatter_(-1, index, 0.0)[..., :-1]
    return normalise(kept.masked_fill(kept < least(kept.dtype), 0.0))


def is_duplicate(drafted: Tuples) -> Tensor:
    """Whether each position holds a token that an earlier position already holds."""
    same = drafted[..., :, None] == drafted[..., None, :]
    return (same.tril(-1).any(-1)) & (drafted >= 0)
