"""A device works while the host goes on, until the host looks at a value: then it waits for all that came before."""

import torch
from torch import Tensor


def placed(values: Tensor | list, device: torch.device) -> Tensor:
    """A copy on the device, for which the host does not wait: its own memory has been read when the call returns."""
    return (values if isinstance(values, Tensor) else torch.tensor(values)).to(device, non_blocking=True)
