"""Toy pairs whose optimal acceptance rate is a formula, and the numbers behind SpecTr's Figures 4 to 6."""

import torch

from multidraft.verification.laws.iid import Iid, optimal_iid
from multidraft.verification.rules.k_sequential import rate_of_k_sequential
from multidraft.verification.rules.recursive_rejection import rate_of_rejection

Curves = dict[str, list[float]]


def bernoulli_optimum(target: float, draft: float, drafts: int) -> float:
    """Optimal acceptance rate of i.i.d. drafts for two tokens: `min(p, 1 - (1-q)^n) + min(1 - p, 1 - q^n)`.

    `target` and `draft` are the probabilities of heads. SpecTr, eq. (10).

    >>> bernoulli_optimum(0.5, 1.0, 3)
    0.5
    """
    return min(target, 1 - (1 - draft) ** drafts) + min(1 - target, 1 - draft**drafts)


def uniform_optimum(ratio: float, drafts: int) -> float:
    """Optimal acceptance rate for a draft uniform over `ratio` times as many tokens as the target: `1 - (1 - 1/r)^n`.

    K-SEQ reaches it, with the discount `r (1 - (1 - 1/r)^n)`. SpecTr, Appendix B.

    >>> uniform_optimum(2.0, 2)
    0.75
    """
    return 1 - (1 - 1 / ratio) ** drafts


def figure_4(draft: float = 0.25, targets: tuple[float, ...] = (0.1, 0.25, 0.75, 1.0), max_drafts: int = 10) -> Curves:
    """Acceptance of the optimal rule and of K-SEQ by number of drafts, for pairs of coins (SpecTr, Figure 4)."""
    rules = {"optimal": _optimal, "k_sequential": rate_of_k_sequential}
    return _curves(rules, draft, targets, max_drafts)


def figure_5(size: int = 120, ratios: tuple[int, ...] = (1, 2, 4, 8), max_drafts: int = 10) -> Curves:
    """Optimal acceptance by number of drafts: draft uniform over `size` tokens, target over a part (Figure 5)."""
    draft = torch.full((size,), 1 / size, dtype=torch.float64)
    curves = {}
    for ratio in ratios:
        target = torch.where(torch.arange(size) < size // ratio, ratio / size, 0.0).double()
        curves[f"U({size // ratio})"] = [float(optimal_iid(target, draft, n)) for n in range(1, max_drafts + 1)]
    return curves


def figure_6(draft: float = 0.25, targets: tuple[float, ...] = (0.1, 0.75, 1.0), max_drafts: int = 10) -> Curves:
    """Acceptance of three rules, one of them recursive rejection (SpecTr's MULTI-ROUND; SpecTr, Figure 6)."""
    rules = {
        "optimal": _optimal,
        "k_sequential": rate_of_k_sequential,
        "recursive_rejection": rate_of_rejection,
    }
    return _curves(rules, draft, targets, max_drafts)


def _curves(rules: dict, draft: float, targets: tuple[float, ...], max_drafts: int) -> Curves:
    """One curve for every rule and target."""
    return {
        f"{name}, Ber({target:g})": [float(rule(_coin(target), _coin(draft), Iid(n))) for n in range(1, max_drafts + 1)]
        for name, rule in rules.items()
        for target in targets
    }


def _optimal(target: torch.Tensor, draft: torch.Tensor, law: Iid) -> torch.Tensor:
    """The optimum, called as the formulas of the rules are."""
    return optimal_iid(target, draft, law.drafts)


def _coin(heads: float) -> torch.Tensor:
    """Two tokens, the second with probability `heads`."""
    return torch.tensor([1 - heads, heads], dtype=torch.float64)
