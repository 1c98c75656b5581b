"""Cases of which a few run by default, and all by `make test-slow`."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(fast: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """All cases; only the `fast` ones are not marked slow. A case of several parameters is a tuple."""
    cases, fast = list(cases), list(fast)
    assert all(case in cases for case in fast)
    slow = [case for case in cases if case not in fast]
    marked = [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow) for case in slow]
    return fast + marked
