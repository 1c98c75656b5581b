"""How large the trees of `tree="auto"` may grow. Without torch."""

import re
from dataclasses import dataclass

from multidraft.errors import AdviceError

FIXED_TREE = "2x1x1x1"  # where nothing can be chosen: the best on the average of the processors measured (docs/log.md)


@dataclass(frozen=True)
class TreeLimits:
    """How large trees may grow; memory is allocated for that."""

    nodes: int = 32
    depth: int = 31  # a chain and its root are then 32 tokens: a number that kernels take at once, as they do 16

    @classmethod
    def parse(cls, text: str) -> "TreeLimits":
        """Parse the limits after `auto`, as in `auto,nodes=24,depth=6`."""
        match = re.fullmatch(r"auto((?:,(?:nodes|depth)=[1-9]\d{0,3})*)", text.replace(" ", "").lower())
        settings = [setting.split("=") for setting in match[1].split(",")[1:]] if match else []
        if not match or len(dict(settings)) < len(settings):
            raise AdviceError(f"tree {text!r} does not parse; write auto, or auto,nodes=24,depth=6")
        return cls(**{name: int(value) for name, value in settings})
