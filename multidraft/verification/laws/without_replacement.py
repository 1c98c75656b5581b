"""One token after another, each from the draft without those already drawn, and the optimum for such drafts.

Whether all drafts fall into a token set `H` is a race: let token `i` arrive at a time `T_i ~ Exp(q_i)`; the first `n`
arrivals are `n` draws without replacement. With `c = q(V \\ H)` and `N_H(t)` the tokens of `H` that came by `t`,

    1 - Q(H) = int_0^inf  c e^{-ct}  P(N_H(t) < n)  dt,      P(N_H(t) < n) = e^{-q(H) t} sum_{j<n} e_j(H)

with the elementary symmetric polynomials `e_j` of the odds `e^{q_i t} - 1`. Their terms are positive and
`e_j(H + x) = e_j(H) + odds_x e_{j-1}(H)`: `n - 1` prefix sums give all prefixes of an order, to full relative
precision. (The `W_{n,H} / W_{n,V}` of Towards Optimal Multi-Draft Speculative Decoding, section 4.2.2, belongs to
another law: q = (.5, .3, .2), n = 2, H = {1, 2} has Q = 0.5143, not 0.4839.)

**The error is known in advance.** With `t = e^u` the integral is a sum over equally spaced `u`. For complex `t` at
angle `b`, `|1 - e^{-q t}| <= (1 - e^{-q Re t}) / cos b`, so the trapezoidal sum of step `h` is off by at most
`2 cos(b)^{-n} / (e^{2 pi b / h} - 1)` for every `b < pi / 2` (Trefethen and Weideman, The exponentially convergent
trapezoidal rule, 2014, Theorem 5.1). `step_for` picks the largest `h` that keeps this below 1e-10.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.verification.law import Law, without
from multidraft.verification.loops import same_shape
from multidraft.verification.precision import Past, Rates, Rows, least

ACCURACY = 1e-10  # of the trapezoidal sum; what is cut off below adds less than twice as much
CERTAIN_EXPONENT = 28.0  # an arrival that fails with probability e^-28 = 7e-13 counts as certain
MAX_EXPONENT = 690.0  # e^690 is still a float64
MOST_LINEAR = 24  # drafts; up to here P(N < n) is below 1e-12 before e^LARGEST is reached. Beyond, logarithms
MAX_PREFIX_NUMBERS = 1 << 18  # numbers held per prefix sum: memory stays linear in the vocabulary, and in the cache


def optimal_without_replacement(target: Rows, draft: Rows, drafts: int | Int[Tensor, "*batch"]) -> Rates:
    """Largest acceptance rate with `drafts` draws without replacement: min_k target(H_k) + 1 - Q(H_k).

    `Q(H)` is the probability that all drafts fall into `H`, and `H_k` has the `k` tokens of largest `draft / target`.
    To 1e-9, in `O(V log V)`. With no more than `drafts` possible tokens all of them are drafted: the optimum is
    `target(support)`. Computed in float64, returned in the dtype of `target`, which may sum to less than one. Raises
    AdviceError if the shapes differ. Towards Optimal Multi-Draft Speculative Decoding, Theorems 4 and 6.

    >>> p, q = torch.tensor([0.2, 0.2, 0.6]), torch.tensor([0.5, 0.3, 0.2])
    >>> optimal_without_replacement(p, q, drafts=2)
    tensor(0.8857)
    """
    same_shape("target and draft", target.shape, draft.shape)
    drawn = draft.masked_fill(draft < least(draft.dtype), 0.0)  # as the law draws
    p, q = (x.double().reshape(-1, x.shape[-1]) for x in (target, drawn))
    q = q / q.sum(-1, keepdim=True).clamp(min=least(q.dtype))
    counts = torch.as_tensor(drafts, device=p.device).expand(target.shape[:-1]).reshape(-1)
    support = (q > 0).sum(-1)
    rate = torch.where(q > 0, p, 0.0).sum(-1) * (counts > 0)  # right where all of the support is drafted
    for n in counts[(counts > 0) & (support > counts)].unique().tolist():
        rows = (counts == n) & (support > counts)
        rate[rows] = best_prefix(p[rows], q[rows], n)
    return rate.reshape(target.shape[:-1]).to(target.dtype)


def best_prefix(p: Tensor, q: Tensor, drafts: int) -> Tensor:
    """min(1, min_k p(H_k) + 1 - Q(H_k)); one is the empty set's value."""
    order = torch.where(q > 0, p / q, torch.inf).argsort(dim=-1)[..., : int((q > 0).sum(-1).max())]
    p, q = p.gather(-1, order), q.gather(-1, order)
    p = torch.where(q > 0, p, 0.0)
    return (p.cumsum(-1) + some_outside(q, drafts)).amin(-1).clamp(max=1)


def some_outside(draft: Rows, drafts: int) -> Rows:
    """`1 - Q(H)` for every prefix `H` of the tokens in the order given.

    Each row of `draft` sums to one and has more than `drafts` tokens with mass; float64. `drafts` is at least one.

    >>> some_outside(torch.tensor([[0.5, 0.3, 0.2]], dtype=torch.float64), 2)
    tensor([[1.0000, 0.4857, 0.0000]], dtype=torch.float64)
    """
    outside = draft.flip(-1).cumsum(-1).flip(-1)
    outside = torch.cat([outside[..., 1:], torch.zeros_like(outside[..., :1])], -1)  # exactly zero at the end
    if drafts == 1:
        return outside
    if drafts == 2:  # sum over the first draft: outside H, or i in H and then outside
        return outside * (1 + (draft / one_minus(draft)).cumsum(-1))
    return outside * integral(draft, outside, drafts)


def one_minus(draft: Tensor) -> Tensor:
    """`1 - q_i` for every token, without cancellation when it is almost one."""
    likeliest = draft.argmax(-1, keepdim=True)
    beside = draft.scatter(-1, likeliest, 0.0).sum(-1, keepdim=True)
    return (1 - draft).scatter(-1, likeliest, beside)


def integral(draft: Tensor, outside: Tensor, drafts: int) -> Tensor:
    """The integral of `e^{-ct} P(N_H(t) < drafts)` over all times, for every prefix `H`."""
    step = step_for(drafts)
    early = math.log(ACCURACY / 10 * math.factorial(drafts + 1)) / (drafts + 1)  # too early for so many, even repeated
    start = math.floor(early / step)
    total = before(outside, drafts, step, start)
    width = max(1, MAX_PREFIX_NUMBERS // draft.numel())
    fewer = torch.ones_like(draft)
    while bool((fewer[..., -1] > ACCURACY / 100).any()):  # P(N_V(t) < drafts) bounds all later terms, for every H
        node = torch.arange(start, start + width, dtype=draft.dtype, device=draft.device)[:, None, None]
        time = (node * step).exp()
        fewer, start = fewer_arrivals(draft * time, drafts), start + width
        # Once ct > CERTAIN the true integrand is nothing, but `fewer` counted at most CERTAIN for a token outside H.
        total += step * torch.where(outside * time < CERTAIN_EXPONENT, time * fewer, 0.0).sum(0)
        fewer = fewer[-1]
    return total


def step_for(drafts: int) -> float:
    """The largest step for which the trapezoidal sum is certain to be off by less than ACCURACY."""
    angles = (math.pi / 2 * k / 200 for k in range(1, 200))
    return max(2 * math.pi * b / (math.log(2 / ACCURACY) - drafts * math.log(math.cos(b))) for b in angles)


def before(outside: Tensor, drafts: int, step: float, start: int) -> Tensor:
    """The sum over all nodes before `start`, where it does not matter whether a token may arrive again.

    The integrand is then `e^{-t} sum_j ((1 - c) t)^j / j!`: a polynomial in `1 - c`, the same for all prefixes.
    """
    node = torch.arange(start - math.ceil(40 / step), start, dtype=torch.float64) * step
    total = torch.zeros_like(outside)
    for j in reversed(range(drafts)):
        coefficient = step * (node * (j + 1) - node.exp() - math.lgamma(j + 1)).exp().sum().item()
        total = total * (1 - outside) + coefficient
    return total


def fewer_arrivals(rate: Rows, drafts: int) -> Rows:
    """`P(fewer than drafts tokens of H, and none outside H, came)` for each prefix `H`; rates are cut at CERTAIN."""
    rate = rate.clamp(max=CERTAIN_EXPONENT)
    if drafts > MOST_LINEAR:
        return fewer_by_logarithms(rate, drafts)
    all_rates = rate.sum(-1, keepdim=True)
    odds = torch.where(all_rates < MAX_EXPONENT, rate, 0.0).expm1()  # beyond, the answer is zero and odds overflow
    symmetric = odds.cumsum(-1)
    total = 1 + symmetric
    for _ in range(drafts - 1, 1, -1):
        symmetric = (odds[..., 1:] * symmetric[..., :-1]).cumsum(-1)
        odds = odds[..., 1:]
        total[..., -symmetric.shape[-1] :] += symmetric
    total = total if drafts > 1 else torch.ones_like(rate)
    return total * torch.where(all_rates < MAX_EXPONENT, (-all_rates).exp(), 0.0)


def fewer_by_logarithms(rate: Tensor, drafts: int) -> Tensor:
    """`fewer_arrivals` for many drafts, whose symmetric polynomials need not fit a float64; some ten times slower."""
    odds = rate + torch.log(-torch.expm1(-rate))
    symmetric = odds.logcumsumexp(-1)
    total = torch.logaddexp(symmetric, torch.zeros_like(symmetric))
    for _ in range(drafts - 1, 1, -1):
        odds = odds[..., 1:]
        symmetric = (odds + symmetric[..., :-1]).logcumsumexp(-1)
        tail = slice(-symmetric.shape[-1], None)
        total[..., tail] = torch.logaddexp(total[..., tail], symmetric)
    return (total - rate.sum(-1, keepdim=True)).exp()


@dataclass(frozen=True)
class WithoutReplacement(Law):
    """P(x_1, .., x_n) = prod_j q(x_j) / (1 - q(x_1) - .. - q(x_{j-1})); positions stay empty once q is used up.

    Towards Optimal Multi-Draft Speculative Decoding, eq. (6).
    """

    name = "without_replacement"
    optimal = staticmethod(optimal_without_replacement)

    def conditional(self, draft: Rows, drafted: Past) -> Rows:
        """q renormalised without the tokens drawn so far."""
        return without(draft, drafted)
