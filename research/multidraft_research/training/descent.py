"""What every training here shares: two optimizers, learning rates that rise, stay and fall, and a checkpoint."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from multidraft.models.huggingface.packed_view import can_pack


def has_bfloat16(device: str) -> bool:
    """Whether a device multiplies numbers in bfloat16; on processors without it float32 takes a thirtieth of the time.

    >>> has_bfloat16("cuda")
    True
    """
    return device != "cpu" or can_pack(torch.bfloat16)


def autocast(device: str) -> torch.autocast:
    """Products in bfloat16 where the device has it."""
    return torch.autocast(device, torch.bfloat16, enabled=has_bfloat16(device))


class InFloat32(TorchFunctionMode):
    """Whatever asks for bfloat16, as torch's Muon does, gets float32."""

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function is torch.Tensor.bfloat16:
            return args[0].to(torch.float32, copy=True)
        return function(*args, **(kwargs or {}))


def schedule(step: int, steps: int, warmup: int, decay: float) -> float:
    """Share of the learning rates at `step`: a warm-up, a plateau, a linear decay to nothing over the last `decay`.

    >>> [round(schedule(step, steps=100, warmup=10, decay=0.5), 2) for step in (4, 40, 75)]
    [0.5, 1.0, 0.5]
    """
    return min((step + 1) / warmup, 1.0, (steps - step) / (decay * steps))


class Descent:
    """Muon for matrices within a model, AdamW for all else (Jordan et al., 2024), from the checkpoint if there is one.

    `done` is the number of steps that have been taken. All parameters of `model` are trained.
    """

    def __init__(
        self, model: nn.Module, matrices: Sequence[nn.Parameter], rate: float, other_rate: float, checkpoint: Path,
        weight_decay: float = 0.0,
    ):  # fmt: skip
        self.model, self.checkpoint = model, checkpoint
        apart = set(map(id, matrices))
        others = [parameter for parameter in model.parameters() if id(parameter) not in apart]
        self.optimizers: list[torch.optim.Optimizer] = [
            torch.optim.Muon(matrices, lr=rate, weight_decay=weight_decay),
            torch.optim.AdamW(others, lr=other_rate, betas=(0.9, 0.95), weight_decay=0.0),
        ]
        self.rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        self.done = load_checkpoint(checkpoint, model, self.optimizers)

    def step(self, share: float, accumulate: Callable[[], float]) -> float:
        """A step at this share of the learning rates, on the gradients that `accumulate` makes; its loss."""
        groups = (group for optimizer in self.optimizers for group in optimizer.param_groups)
        for rate, group in zip(self.rates, groups, strict=True):
            group["lr"] = rate * share
        loss = accumulate()
        with nullcontext() if has_bfloat16(next(self.model.parameters()).device.type) else InFloat32():
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
        self.done += 1
        return loss

    def save(self) -> None:
        """Write the checkpoint."""
        save_checkpoint(self.checkpoint, self.model, self.optimizers, self.done)


def save_checkpoint(path: Path, model: nn.Module, optimizer: list[torch.optim.Optimizer], step: int) -> None:
    """Write beside the old checkpoint and move over it, so that an interruption leaves a whole one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new_path = path.with_suffix(".new")
    torch.save({"model": model.state_dict(), "optimizer": [o.state_dict() for o in optimizer], "step": step}, new_path)
    new_path.replace(path)


def load_checkpoint(path: Path, model: nn.Module, optimizer: list[torch.optim.Optimizer]) -> int:
    """Fill model and optimizers from the checkpoint, if there is one; the number of steps already done."""
    if not path.exists():
        return 0
    saved = torch.load(path, map_location=next(model.parameters()).device, weights_only=True)
    model.load_state_dict(saved["model"])
    for o, state in zip(optimizer, saved["optimizer"], strict=True):
        o.load_state_dict(state)
    return saved["step"]
