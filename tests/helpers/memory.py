"""How much memory tensors take."""

import gc

import torch
from torch import Tensor
from torch.nn import Parameter


def live_bytes() -> int:
    """Bytes of all tensors that are alive, shared storage counted once."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if type(tensor) in (Tensor, Parameter) and tensor.device.type != "meta" and tensor.layout == torch.strided
    }
    return sum(storages.values())
