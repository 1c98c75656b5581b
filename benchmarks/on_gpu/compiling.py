"""How compiled passes are asked for: the one place that knows what this version of the library calls them."""

from inspect import signature
from typing import Any

import multidraft as md

WHOLE = "compile" in signature(md.generate).parameters  # both models; else the draft model alone can be compiled


def compiled(on: bool, has_draft: bool = True) -> dict[str, Any]:
    """The setting of `generate`."""
    if WHOLE:
        return dict(compile=on)
    return dict(compile_draft=on) if has_draft else {}


def what_is_compiled() -> str:
    """For the report."""
    return "both models" if WHOLE else "the draft model alone"
