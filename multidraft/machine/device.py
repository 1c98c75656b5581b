"""A device works while the host goes on, until the host looks at a value: then it waits for all that came before."""

from functools import lru_cache

import torch
from torch import Tensor


def waits(values: Tensor) -> bool:
    """Whether looking at a value makes the host wait."""
    return is_far(values.device)


def is_far(device: torch.device) -> bool:
    """Whether the host waits for what is there."""
    return device.type != "cpu"


def placed(values: Tensor | list, device: torch.device) -> Tensor:
    """A copy on the device, for which the host does not wait: its own memory has been read when the call returns."""
    return (values if isinstance(values, Tensor) else torch.tensor(values)).to(device, non_blocking=True)


def numbers_at(values: Tensor, places: list[int]) -> list[float]:
    """The numbers at places of a tensor that is laid out in one line; NumPy looks there in less time than PyTorch."""
    if waits(values):
        return values.take(placed(places, values.device)).tolist()
    return values.detach().numpy().take(places).tolist()


@lru_cache(4096)
def index(places: tuple[int, ...], device: torch.device) -> slice | Tensor:
    """These places as an index that is there already: a slice where they stand next to each other."""
    first, last = places[0], places[-1]
    return slice(first, last + 1) if places == tuple(range(first, last + 1)) else placed(list(places), device)
