"""The string-kernel test of judge_teeth.py: its p-values are those of a test, and it finds another law."""

import random

import numpy as np
from judge_teeth import agreement, p_value, padded

PROMPTS = ("one", "two", "three")


def sample(rng: random.Random, shift: float) -> list[tuple[str, list[int]]]:
    """Eight texts of six tokens for each prompt, whose tokens are 1 more often by `shift`."""
    return [(prompt, [int(rng.random() < 0.5 + shift) for _ in range(6)]) for prompt in PROMPTS for _ in range(8)]


def test_the_kernel_counts_positions():
    kernel = agreement(padded([[1, 2, 3], [1, 2, 4], [1, 2]]))
    assert np.allclose(1 - kernel[0], np.array([0, 1, 1]) / 64)


def test_p_values_are_uniform_for_one_law_and_small_for_two():
    """Of 30 tests at 0.1, more than 10 have odds below 1e-3; the twin has another law."""
    rng = random.Random(0)
    equal = [p_value(sample(rng, 0.0), sample(rng, 0.0), seed) for seed in range(30)]
    assert sum(value <= 0.1 for value in equal) <= 10
    assert min(equal) > 0
    unequal = [p_value(sample(rng, 0.0), sample(rng, 0.3), seed) for seed in range(10)]
    assert np.median(unequal) < 0.01
