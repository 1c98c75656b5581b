"""A plugin for `pytest -p without_numba`: in this process Numba cannot be imported."""

import sys

sys.modules["numba"] = None  # type: ignore[assignment]  # what Python looks for first
