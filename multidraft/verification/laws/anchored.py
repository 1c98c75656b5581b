"""A few sure tokens and independent draws among the others, with a top-up for every duplicate (ours)."""

from collections import Counter
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors.checks import check_flag, check_integer
from multidraft.machine.device import waits
from multidraft.verification.distributions import most_likely, pick
from multidraft.verification.law import Law, is_duplicate, without
from multidraft.verification.loops import paired
from multidraft.verification.optima.anchored import optimal_anchored
from multidraft.verification.precision import TIE


def anchor_count(draft: Float[Tensor, "*batch vocabulary"], drafts: int) -> Int[Tensor, "*batch"]:
    """How many anchors to take: the next most likely token is one while q(token) * (drafts left) >= draft mass left.

    It looks at the draft distribution alone, never at drawn tokens, which keeps every rule lossless.

    >>> anchor_count(torch.tensor([0.6, 0.2, 0.2]), 2)
    tensor(1)
    """
    return (anchors_of(draft, drafts) >= 0).sum(-1)


@paired("multidraft.verification.laws.anchored_loops")
def anchors_of(
    draft: Float[Tensor, "*batch vocabulary"], drafts: int, wanted: int | None = None
) -> Int[Tensor, "*batch drafts"]:
    """The anchors of each row, padded with -1: `wanted` of them at most, or as many as `anchor_count` says."""
    top = most_likely(draft, drafts)
    count = count_of(draft.double(), top)[..., None] if wanted is None else min(wanted, drafts)
    return top.masked_fill(torch.arange(drafts, device=draft.device) >= count, -1)


def count_of(draft: Float[Tensor, "*batch vocabulary"], top: Int[Tensor, "*batch drafts"]) -> Int[Tensor, "*batch"]:
    """How many of the most likely tokens are anchors."""
    drafts, index = top.shape[-1], top % (draft.shape[-1] + 1)  # -1 points behind the vocabulary
    extended = torch.nn.functional.pad(draft, (0, 1))
    value = extended.gather(-1, index)
    unlikely = extended.scatter_(-1, index, 0.0).sum(-1, keepdim=True)
    mass = value.flip(-1).cumsum(-1).flip(-1) + unlikely  # from the small end: exact even where q is nearly one-hot
    drafts_left = torch.arange(drafts, 0, -1, device=draft.device)
    return ((value * drafts_left >= TIE * mass) & (value > 0)).cumprod(-1).sum(-1)


@dataclass(frozen=True)
class Anchored(Law):
    """m anchors (the m most likely tokens of q), n - m i.i.d. draws from q' (q without them), then top-ups.

    Of the 3n - 1 positions the first n hold the anchors (so that a tuple tells m), the next n the draws, and for every
    duplicate among the draws one of the last n - 1 holds one more token, drawn from q' without all tokens drawn so
    far. The other positions are empty. `anchors` fixes m (all n drafts where it is more); left out, `anchor_count`
    chooses it. `top_up=False` leaves the last positions out.
    """

    anchors: int | None = None
    top_up: bool = True

    name = "anchored"

    @staticmethod
    def optimal(
        target: Float[Tensor, "*batch vocabulary"],
        draft: Float[Tensor, "*batch vocabulary"],
        drafts: int,
        anchors: int | Int[Tensor, "*batch"] | None = None,
        top_up: bool = True,
    ) -> Float[Tensor, "*batch"]:
        """The optimum with the anchors that the law takes."""
        anchors = anchor_count(draft, drafts) if anchors is None else anchors
        if isinstance(anchors, int) and isinstance(drafts, int):
            anchors = min(anchors, drafts)
        return optimal_anchored(target, draft, drafts, anchors, top_up)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self.top_up, "top_up")
        if self.anchors is not None:
            check_integer(self.anchors, "anchors", 0)

    @property
    def has_anchors(self) -> bool:
        """Whether there can be any: a single draft is simply drawn, unless `anchors` says otherwise."""
        return self.drafts > 1 if self.anchors is None else self.anchors > 0

    @property
    def draws_one(self) -> bool:
        """Without an anchor, whatever its empty positions."""
        return super().draws_one and not self.has_anchors

    @property
    def width(self) -> int:
        """n positions for anchors, n for draws, n - 1 for top-ups."""
        return 3 * self.drafts - 1 if self.top_up else 2 * self.drafts

    def anchor_tokens(self, draft: Float[Tensor, "*batch vocabulary"]) -> Int[Tensor, "*batch drafts"]:
        """The anchors of each row, padded with -1."""
        if self.has_anchors:
            return anchors_of(draft, self.drafts, self.anchors)
        return torch.full((*draft.shape[:-1], self.drafts), -1, device=draft.device)

    def without_anchors(
        self, draft: Float[Tensor, "*batch vocabulary"], anchors: Int[Tensor, "*batch drafts"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """q': the draft distribution without the anchors."""
        return without(draft, anchors) if self.finds(anchors) else draft

    def finds(self, anchors: Int[Tensor, "*batch drafts"]) -> bool:
        """Whether there are anchors in any row, as far as can be known without waiting."""
        return self.has_anchors and (waits(anchors) or bool((anchors >= 0).any()))

    def parts(self, drafted: Int[Tensor, "*batch some"]) -> tuple[Tensor, Tensor, Tensor]:
        """The positions of a tuple, or of its beginning: anchors, draws, top-ups."""
        n = self.drafts
        return drafted[..., :n], drafted[..., n : 2 * n], drafted[..., 2 * n :]

    def conditional(
        self, draft: Float[Tensor, "*batch vocabulary"], drafted: Int[Tensor, "*batch past"]
    ) -> Float[Tensor, "*batch vocabulary"]:
        """An anchor for sure; then q'; then q' without what was drawn, once for every duplicate."""
        anchors, draws, top_ups = self.parts(drafted)
        j = anchors.shape[-1]
        if j < self.drafts:
            token = self.anchor_tokens(draft)[..., j : j + 1]
            return torch.zeros_like(draft).scatter(-1, token.clamp(min=0), (token >= 0).to(draft.dtype))
        if draws.shape[-1] < self.drafts:
            wanted = draws.shape[-1] < (anchors < 0).sum(-1, keepdim=True)
            return self.without_anchors(draft, anchors) * wanted
        wanted = top_ups.shape[-1] < is_duplicate(draws).sum(-1, keepdim=True)
        return without(draft, drafted) * wanted

    def draw_all(
        self, draft: Float[Tensor, "*batch vocabulary"], uniform: Float[Tensor, "*batch width"]
    ) -> Int[Tensor, "*batch width"]:
        """As the general way, with one search for the anchors, one sum for the draws, and top-ups only where needed."""
        n, anchors = self.drafts, self.anchor_tokens(draft)
        found = self.finds(anchors)
        draws = pick(without(draft, anchors) if found else draft, uniform[..., n : 2 * n])
        if found:
            free = (anchors < 0).sum(-1, keepdim=True)
            draws = draws.masked_fill(torch.arange(n, device=draft.device) >= free, -1)
        drafted = torch.cat([anchors, draws], -1)
        for j in range(2 * n, 2 * n + most_repeats(draws) if self.top_up and n > 1 else 0):
            drafted = torch.cat([drafted, pick(self.conditional(draft, drafted), uniform[..., j : j + 1])], -1)
        return torch.nn.functional.pad(drafted, (0, self.width - drafted.shape[-1]), value=-1)

    def children(self, drafted: Int[Tensor, "*batch width"]) -> Int[Tensor, "*batch drafts"]:
        """The distinct tokens in the order in which they first came."""
        if self.drafts == 1 and not self.has_anchors:
            return drafted[..., 1:2]
        if waits(drafted):
            first = (drafted >= 0) & ~is_duplicate(drafted)
            order = (~first).to(torch.uint8).argsort(dim=-1, stable=True)
            return drafted.masked_fill(~first, -1).gather(-1, order)[..., : self.drafts]
        distinct = [list(filled(row)) for row in drafted.reshape(-1, drafted.shape[-1]).tolist()]
        padded = [(tokens + [-1] * self.drafts)[: self.drafts] for tokens in distinct]
        return torch.tensor(padded, dtype=torch.int64, device=drafted.device).view(*drafted.shape[:-1], self.drafts)


def filled(positions: list[int]) -> dict[int, int]:
    """The tokens at some positions in the order in which they first came, each with how often."""
    return Counter(token for token in positions if token >= 0)


def most_repeats(draws: Int[Tensor, "*batch draws"]) -> int:
    """The largest number of draws in a row that were there before, as far as can be known without waiting."""
    if waits(draws):
        return draws.shape[-1] - 1
    counts = map(filled, draws.reshape(-1, draws.shape[-1]).tolist())
    return max((sum(count.values()) - len(count) for count in counts), default=0)
