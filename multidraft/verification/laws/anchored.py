"""Laws with a few sure tokens, the most likely ones, and draws among the others; `anchored` is ours."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, check_flag, check_integer
from multidraft.verification.distributions import most_likely
from multidraft.verification.law import Law, Staged, is_duplicate, one_hot, without
from multidraft.verification.laws.iid import optimal_iid
from multidraft.verification.laws.without_replacement import optimal_without_replacement
from multidraft.verification.loops import compile_loop, forget, lines, pick_into, same_shape, sum_of
from multidraft.verification.precision import TIE_FACTOR, Past, Rates, Rows, Tuples, least

Counts = int | Int[Tensor, "*batch"]


def anchor_count(draft: Rows, drafts: Counts) -> Int[Tensor, "*batch"]:
    """How many anchors to take: the next most likely token is one while q(token) * (drafts left) >= draft mass left.

    It looks at the draft distribution alone, never at drawn tokens, which keeps every rule lossless.

    >>> anchor_count(torch.tensor([0.6, 0.2, 0.2]), 2)
    tensor(1)
    """
    most = drafts if isinstance(drafts, int) else int(drafts.max()) if drafts.numel() else 0
    return count_of(draft.double(), most_likely(draft, most), drafts)


def count_of(draft: Rows, top: Int[Tensor, "*batch most"], drafts: Counts) -> Int[Tensor, "*batch"]:
    """How many of the most likely tokens are anchors, of so many drafts."""
    index = top % (draft.shape[-1] + 1)  # -1 points behind the vocabulary
    extended = torch.nn.functional.pad(draft, (0, 1))
    value = extended.gather(-1, index)
    unlikely = extended.scatter_(-1, index, 0.0).sum(-1, keepdim=True)
    mass = value.flip(-1).cumsum(-1).flip(-1) + unlikely  # from the small end: exact even where q is nearly one-hot
    drafts_left = torch.as_tensor(drafts, device=draft.device)[..., None] - torch.arange(
        top.shape[-1], device=draft.device
    )
    return ((value * drafts_left >= TIE_FACTOR * mass) & (value > 0)).cumprod(-1).sum(-1)


def optimal_anchored(target: Rows, draft: Rows, drafts: Counts, anchors: Counts, top_up: bool) -> Rates:
    """Largest acceptance rate with the `anchors` most likely tokens of `draft` and `drafts - anchors` random ones.

        alpha* = p(anchors) + alpha*(p', q', drafts - anchors)

    where p' and q' are without the anchors, and the second optimum is that of i.i.d. draws, or with `top_up` that of
    draws without replacement. Of equally likely tokens the lower id is an anchor; one without draft probability never
    is. `target` may sum to less than one; the result has its dtype. Raises AdviceError if the shapes differ or there
    are more anchors than drafts.

    docs/theory.md, section 4; `anchors = drafts - 1` is the greedy law of Towards Optimal Multi-Draft
    Speculative Decoding, Theorem 7.

    >>> p, q = torch.tensor([0.25, 0.75, 0.0]), torch.tensor([0.5, 0.25, 0.25])
    >>> optimal_anchored(p, q, drafts=2, anchors=1, top_up=False)
    tensor(0.7500)
    """
    same_shape("target and draft", target.shape, draft.shape)
    taken = torch.as_tensor(anchors, device=draft.device)
    draws = torch.as_tensor(drafts, device=draft.device) - taken
    if bool((draws < 0).any()):
        raise AdviceError(f"there are more anchors ({anchors}) than drafts ({drafts}); pass anchors <= drafts")
    top = most_likely(draft, int(taken.max()) if taken.numel() else 0)
    top = top.masked_fill(torch.arange(top.shape[-1], device=draft.device) >= taken[..., None], -1)
    extended = torch.zeros((*draft.shape[:-1], draft.shape[-1] + 1), dtype=torch.bool, device=draft.device)
    anchored = extended.scatter_(-1, top % extended.shape[-1], True)[..., :-1]  # -1 points behind the vocabulary
    q = draft.masked_fill(anchored | (draft < least(draft.dtype)), 0.0)  # as the law draws
    p, q = target.double(), q.double()  # the optima below renormalise q
    optimum = optimal_without_replacement if top_up else optimal_iid
    of_draws = optimum(torch.where(anchored, 0.0, p), q, draws.expand(p.shape[:-1]))
    return (torch.where(anchored, p, 0.0).sum(-1) + of_draws).to(target.dtype)


@dataclass(frozen=True)
class Top(Law):
    """x_1, .., x_n are the n most likely tokens, with probability one: as most engines draft."""

    name = "top"
    is_single_draw = False

    @staticmethod
    def optimal(target: Rows, draft: Rows, drafts: Counts) -> Rates:
        """The target mass of these tokens: nothing is random."""
        return optimal_anchored(target, draft, drafts, anchors=drafts, top_up=False)

    def conditional(self, draft: Rows, drafted: Past) -> Rows:
        """One-hot at the most likely token that is not drafted yet."""
        return one_hot(draft, most_likely(draft, self.drafts)[..., drafted.shape[-1]][..., None])

    def draw_all(self, draft: Rows, uniform: Tensor) -> Tuples:
        """All positions at once; the uniform numbers are not needed."""
        return most_likely(draft, self.drafts)


@dataclass(frozen=True)
class Greedy(Staged):
    """x_1, .., x_{n-1} are the n - 1 most likely tokens; x_n is drawn from q renormalised without them.

    Towards Optimal Multi-Draft Speculative Decoding, Section 5.
    """

    name = "greedy"

    @staticmethod
    def optimal(target: Rows, draft: Rows, drafts: Counts) -> Rates:
        """That of one draw beside n - 1 anchors."""
        anchors = max(drafts - 1, 0) if isinstance(drafts, int) else (drafts - 1).clamp(min=0)
        return optimal_anchored(target, draft, drafts, anchors, top_up=False)

    def deterministic_tokens(self, draft: Rows) -> Int[Tensor, "*batch sure"]:
        """The n - 1 most likely tokens."""
        return most_likely(draft, self.drafts - 1)

    def parts(self, drafted: Any) -> tuple[Any, Any, Any]:
        """The sure tokens, then the draw."""
        n = self.drafts - 1
        return drafted[..., :n], drafted[..., n : n + 1], drafted[..., n + 1 :]

    def conditional(self, draft: Rows, drafted: Past) -> Rows:
        """One-hot at the next most likely token, and for the last position what is left of q."""
        j = drafted.shape[-1]
        last = j == self.drafts - 1
        return without(draft, drafted) if last else one_hot(draft, self.deterministic_tokens(draft)[..., j : j + 1])


@dataclass(frozen=True)
class SpecHub(Greedy):
    """x_1 ~ q; if it is the most likely token, x_2 ~ q without it; otherwise x_2 is the most likely token.

    A set {a, i} of the most likely token a and another one is drafted with probability

        q_i + q_a q_i / (1 - q_a) = q_i / (1 - q_a)

    as by the greedy law with two drafts, and so the optimum is the same. SpecHub (Sun et al., 2024); eq. (21) of
    Towards Optimal MDSD has two cases that overlap when read literally (docs/theory.md, section 6).
    """

    name = "spechub"
    fixed_drafts = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        check_two(self.drafts)

    @staticmethod
    def optimal(target: Rows, draft: Rows, drafts: Counts) -> Rates:
        """That of the greedy law."""
        check_two(drafts)
        return Greedy.optimal(target, draft, 2)

    def conditional(self, draft: Rows, drafted: Past) -> Rows:
        """q at first; then the most likely token, or q without it where it is there already."""
        if drafted.shape[-1] == 0:
            return draft
        top = most_likely(draft, 1)
        return torch.where(drafted == top, without(draft, top), one_hot(draft, top))


def check_two(drafts: Counts) -> None:
    """Raise unless the number of drafts is that of SpecHub."""
    if torch.as_tensor(drafts != 2).any():
        raise AdviceError(f"spechub drafts exactly two tokens a node, not {drafts}; use drafts=2, or the law greedy")


@dataclass(frozen=True)
class Anchored(Staged):
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
    def optimal(target: Rows, draft: Rows, drafts: Counts, anchors: Counts | None = None, top_up: bool = True) -> Rates:
        """The optimum with the anchors that the law takes."""
        if anchors is None:
            anchors = anchor_count(draft, drafts)
        elif isinstance(anchors, int):  # all drafts where it is more
            anchors = min(anchors, drafts) if isinstance(drafts, int) else drafts.clamp(max=anchors)
        return optimal_anchored(target, draft, drafts, anchors, top_up)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag(self.top_up, "top_up")
        if self.anchors is not None:
            check_integer(self.anchors, "anchors", 0)

    @property
    def has_deterministic(self) -> bool:  # type: ignore[override]
        """Whether there can be anchors: a single draft is simply drawn, unless `anchors` says otherwise."""
        return self.drafts > 1 if self.anchors is None else self.anchors > 0

    @property
    def is_single_draw(self) -> bool:
        """Whether a tuple is a single token drawn from q itself: with one draft and without an anchor."""
        return super().is_single_draw and not self.has_deterministic

    @property
    def width(self) -> int:
        """n positions for anchors, n for draws, n - 1 for top-ups."""
        return 3 * self.drafts - 1 if self.top_up else 2 * self.drafts

    def deterministic_tokens(self, draft: Rows) -> Int[Tensor, "*batch sure"]:
        """The anchors of each row, padded with -1."""
        if not self.has_deterministic:
            return torch.full((*draft.shape[:-1], self.drafts), -1, device=draft.device)
        top = most_likely(draft, self.drafts)
        count = count_of(draft.double(), top, self.drafts)[..., None] if self.anchors is None else self.anchors
        return top.masked_fill(torch.arange(self.drafts, device=draft.device) >= count, -1)

    def parts(self, drafted: Any) -> tuple[Any, Any, Any]:
        """n positions for anchors, n for draws, and the others for top-ups."""
        n = self.drafts
        return drafted[..., :n], drafted[..., n : 2 * n], drafted[..., 2 * n :]

    def conditional(self, draft: Rows, drafted: Past) -> Rows:
        """An anchor for sure; then q'; then q' without what was drawn, once for every duplicate."""
        anchors, draws, top_ups = self.parts(drafted)
        j = anchors.shape[-1]
        if j < self.drafts:
            return one_hot(draft, self.deterministic_tokens(draft)[..., j : j + 1])
        if draws.shape[-1] < self.drafts:
            is_drawn = draws.shape[-1] < (anchors < 0).sum(-1, keepdim=True)
            return self.without_deterministic(draft, anchors) * is_drawn
        is_drawn = top_ups.shape[-1] < is_duplicate(draws).sum(-1, keepdim=True)
        return without(draft, drafted) * is_drawn

    def draw_all(self, draft: Rows, uniform: Float[Tensor, "*batch width"]) -> Tuples:
        """One search for the anchors, one sum for the draws, and top-ups only where needed; on the CPU."""
        return draw_rows(draft.cpu(), uniform.cpu(), self).to(draft.device)


def draw_rows(draft: Rows, uniform: Float[Tensor, "*batch width"], law: Anchored) -> Tuples:
    """The tuples of the law where something is drafted, by compiled loops."""
    same_shape("draft and uniform numbers", (*draft.shape[:-1], law.width), uniform.shape)
    drafted = np.full((draft.shape[:-1].numel(), law.width), -1)
    num_anchors = 0 if not law.has_deterministic else -1 if law.anchors is None else law.anchors
    draw_lines(drafted, lines(draft), lines(uniform), law.drafts, num_anchors, law.top_up, least(draft.dtype))
    return torch.from_numpy(drafted).view(uniform.shape)


@compile_loop
def draw_lines(drafted, draft, uniform, count, num_anchors, top_up, lowest):
    """Anchors, draws among the other tokens, and a top-up for every duplicate among the draws, for every line."""
    for row in range(len(drafted)):
        tokens, numbers, remaining = drafted[row], uniform[row], draft[row].astype(np.float64)
        num_found = take_anchors(remaining, num_anchors, tokens[:count])
        if num_anchors != 0:
            forget(remaining, tokens[:num_found], lowest)
        draws = tokens[count : 2 * count]
        pick_into(draws, remaining, numbers[count : 2 * count - num_found])
        for j in range(2 * count, 2 * count + count_repeats(draws) if top_up else 0):
            remaining = draft[row].astype(np.float64)
            forget(remaining, tokens[:j], lowest)
            pick_into(tokens[j : j + 1], remaining, numbers[j : j + 1])


@compile_loop
def count_repeats(tokens):
    """How many of the tokens were there before."""
    count = 0
    for j in range(tokens.size):
        count += tokens[j] >= 0 and (tokens[:j] == tokens[j]).any()
    return count


@compile_loop
def take_anchors(draft, num_anchors, anchors):
    """Fill in the anchors of one line, which are taken out of it; how many they are."""
    max_anchors = len(anchors) if num_anchors < 0 else min(num_anchors, len(anchors))
    top, num_found = likeliest(draft, max_anchors)
    values = draft[top[:num_found]]
    draft[top[:num_found]] = 0.0
    count = num_found if num_anchors >= 0 else anchors_among(values, sum_of(draft), len(anchors))
    anchors[:count] = top[:count]
    draft[top[count:num_found]] = values[count:]
    return count


@compile_loop
def likeliest(draft, max_tokens):
    """The most likely tokens, the lower id first among equals, and how many there are of positive probability."""
    top, num_found, least = np.empty(max_tokens, np.int64), 0, 0.0
    for token in range(draft.size if max_tokens > 0 else 0):
        if draft[token] > least:
            num_found = min(num_found + 1, max_tokens)
            place = num_found - 1
            while place > 0 and draft[top[place - 1]] < draft[token]:
                top[place] = top[place - 1]
                place -= 1
            top[place] = token
            least = draft[top[max_tokens - 1]] if num_found == max_tokens else 0.0
    return top, num_found


@compile_loop
def anchors_among(values, unlikely, drafts):
    """How many of the likeliest tokens are anchors, from their values and the sum of all others."""
    mass, count = unlikely, 0
    for j in range(values.size - 1, -1, -1):  # from the small end: exact even where q is nearly one-hot
        mass += values[j]
        count = count + 1 if values[j] * (drafts - j) >= TIE_FACTOR * mass else 0
    return count
