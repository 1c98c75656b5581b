"""Numbers between the CPU and a device, with as few waits of the CPU as possible.

On a GPU a copy that blocks ends what was queued. A copy to the device need not block: its driver copies ordinary memory
into a buffer at once. A copy to the CPU has to, so that all tensors go in one.
"""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor
from torch.nn.functional import pad

ALIGNMENT = 8  # bytes, of the largest numbers


def upload(values: Tensor | np.ndarray | Sequence, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Numbers of the CPU on a device; the CPU does not wait. Those of another device are copied as ever."""
    tensor = torch.as_tensor(values, dtype=dtype)
    return tensor.to(device, non_blocking=tensor.is_cpu)


def take(values: Shaped[Tensor, "*shape"], *places: Sequence[int]) -> Shaped[Tensor, "*lines"]:
    """`values[places]`, as with lists of Python's numbers; the CPU does not wait."""
    return values[tuple(upload(places, values.device, torch.int64).unbind())]


def concatenate(parts: Sequence[Tensor]) -> Tensor:
    """The lines of all parts, uncopied where there is one."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


def download(*tensors: Tensor) -> list[Tensor]:
    """The tensors on the CPU, of which those on one device wait once; those of the CPU are returned as they are."""
    away = [tensor for tensor in tensors if not tensor.is_cpu]
    if len(away) < 2 or len({tensor.device for tensor in away}) > 1:
        return [tensor.cpu() for tensor in tensors]
    flat = [tensor.contiguous().view(-1).view(torch.uint8) for tensor in away]
    padded = [pad(part, (0, -len(part) % ALIGNMENT)) if len(part) % ALIGNMENT else part for part in flat]
    arrived = torch.cat(padded).cpu().split([len(part) for part in padded])
    copies = {
        id(tensor): part[: len(raw)].view(tensor.dtype).view(tensor.shape)
        for tensor, raw, part in zip(away, flat, arrived, strict=True)
    }
    return [copies.get(id(tensor), tensor) for tensor in tensors]
