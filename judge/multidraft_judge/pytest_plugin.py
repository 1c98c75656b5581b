"""A plug-in of pytest: the fixture `judge`, with which an engine's own tests say that it is lossless.

Pytest imports this file wherever the package is installed, so the judge itself is imported when a test asks for it.
"""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from multidraft_judge.verdict import Verdict


@pytest.fixture
def judge() -> "Callable[..., Verdict]":
    """Judge a sampler, or the server at a URL; the test fails if it is guilty, unless `check=False` is passed."""
    return judge_in_a_test


def judge_in_a_test(
    subject: "str | Callable[[str, int], Any]",
    model: str | None = None,
    *,
    check: bool = True,
    seed: int = 0,
    **settings: Any,
) -> "Verdict":
    """The verdict, as of `multidraft_judge.judge`, with the same draws in every run; fails the test if it is guilty."""
    from multidraft_judge.judgement import judge

    with seeded(seed):
        verdict = judge(subject, model, **settings)
    if check and verdict.guilty:
        __tracebackhide__ = True
        raise AssertionError(complaint(verdict))
    return verdict


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators of Python, NumPy and, where it is imported, PyTorch start here, and later go on as before.

    A sampler with a generator of its own seeds that itself; requests to a server have seeds of their own.
    """
    import numpy as np

    torch: Any = sys.modules.get("torch")
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        stack.callback(np.random.set_state, np.random.get_state())
        random.seed(seed)
        np.random.seed(seed)
        if torch is not None:
            stack.enter_context(torch.random.fork_rng(devices=[]))
            torch.manual_seed(seed)
        yield


def complaint(verdict: "Verdict") -> str:
    """Why a test fails, and how likely a false alarm is."""
    evidence = [f"  {what}: {found} ({tokens} tokens)" for what, tokens, found in verdict.rows() if tokens]
    lines = [f"{verdict.subject} is guilty: {'; '.join(verdict.reasons)}", *evidence]
    return "\n".join([*lines, f"  the bets find an innocent one guilty with probability {verdict.alpha:g} at most"])
