"""Logits of a pair of models at the same positions: what studies of acceptance run on."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Recording:
    """Next-token logits of both models at the same positions, each in the dtype in which its model gives them."""

    target: Float[Tensor, "positions vocabulary"]
    draft: Float[Tensor, "positions vocabulary"]

    def __len__(self) -> int:
        return len(self.target)


def join(recordings: Iterable[Recording]) -> Recording:
    """One recording of all."""
    parts = list(recordings)
    return Recording(torch.cat([r.target for r in parts]), torch.cat([r.draft for r in parts]))


def resize(logits: Float[Tensor, "*batch own"], vocabulary: int) -> Float[Tensor, "*batch vocabulary"]:
    """Leave tokens out at the end, or add some that have no probability."""
    missing = vocabulary - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits


def fault_of(target: Tensor, draft: Tensor) -> str | None:
    """What is wrong with the logits of a pair."""
    if target.shape != draft.shape or target.ndim != 2 or not target.numel():
        return f"holds logits of shapes {tuple(target.shape)} and {tuple(draft.shape)}, not positions x vocabulary"
    for name, logits in ("target", target), ("draft", draft):
        if not logits.is_floating_point() or (logits.isnan() | (logits == torch.inf)).any():
            return f"has logits of the {name} that are no numbers"
        if (logits == -torch.inf).all(-1).any():
            return f"has a position where the {name} allows no token"
    return None
