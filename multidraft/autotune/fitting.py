"""Predictions learnt from positions of real text, where the rule's claims are known without noise."""

import numpy as np
import torch
from jaxtyping import Float

from multidraft.autotune.positions import Judged, Positions, judged
from multidraft.autotune.predictions import CLASSES, COUNTS, Confidence, Curve, class_of, log_odds, share_of_rest
from multidraft.verification.distributions import tempered
from multidraft.verification.scheme import Scheme

RIDGE = 2.0  # positions' worth of the belief that confidence tells nothing
ROUNDS = 12


def confidence_of(scheme: Scheme, positions: Positions, tempers: list[float], seed: int = 0) -> Confidence:
    """What confidence tells of each number of drafts at these positions, each counted as often as walks pass it."""
    target, draft, sure = (torch.stack(part) for part in (positions.targets, positions.drafts, positions.sure))
    generator, top = torch.Generator().manual_seed(seed), sure.topk(2, -1).values.tolist()
    seen = np.array([[log_odds(first), share_of_rest(first, second)] for first, second in top])
    counted, accepted, claimed = positions.passing().numpy() * len(positions), [], []
    for n in COUNTS:
        found = judged(scheme.with_drafts(n), target, tempered(draft, tempers[n]), generator, weights=(1.0,))
        accepted.append(curve(seen, found.acceptance[0].numpy(), counted))
        claimed.append(curve_of_children(found, sure, counted))
    classes = np.bincount([class_of(*pair) for pair in top], counted, CLASSES)
    return Confidence(tuple(accepted), tuple(claimed), tuple((classes / classes.sum()).tolist()))


def curve_of_children(
    found: Judged, sure: Float[torch.Tensor, "positions vocabulary"], counted: Float[np.ndarray, " positions"]
) -> Curve:
    """What a child claims, by its draft probability and its place."""
    tokens, claims = found.children, found.claims
    own = sure.gather(-1, tokens.clamp(min=0))
    place = torch.arange(1, tokens.shape[-1] + 1).log().expand_as(own)
    drawn = tokens >= 0
    seen = zip(map(log_odds, own[drawn].tolist()), place[drawn].tolist(), strict=True)
    often = counted[drawn.nonzero()[:, 0].numpy()]
    return curve(np.array(list(seen)), claims[drawn].numpy(), often)


def curve(
    seen: Float[np.ndarray, "positions 2"],
    rates: Float[np.ndarray, " positions"],
    counted: Float[np.ndarray, " positions"],
) -> Curve:
    """The logistic curve that is most likely to have given these rates, its slopes drawn towards zero.

    Newton's method from the average, which is the curve where confidence tells nothing.
    """
    features, rates = np.insert(seen, 0, 1.0, axis=1), rates.clip(0, 1)
    mean = float(np.average(rates, weights=counted))
    weights, ridge = np.array([log_odds(mean), 0.0, 0.0]), np.diag([1e-6, RIDGE, RIDGE])
    for _ in range(ROUNDS):
        values = 1 / (1 + np.exp(-features @ weights))
        bend = (features.T * (counted * (values * (1 - values) + 1e-4))) @ features + ridge
        weights = weights - np.linalg.solve(bend, features.T @ (counted * (values - rates)) + ridge @ weights)
    constant, first, second = weights.tolist()
    return constant, first, second
