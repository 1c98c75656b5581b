"""How much memory tensors take."""

import gc

from torch import Tensor


def live_bytes() -> int:
    """Bytes of all tensors that are alive, shared storage counted once."""
    gc.collect()
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor in gc.get_objects()
        if issubclass(type(tensor), Tensor) and tensor.device.type != "meta"
    }
    return sum(storages.values())
