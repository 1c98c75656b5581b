"""The judging of trees as one captured piece on a GPU: its inputs are copied into tensors that stay, and it replays.

A piece is recorded once its key has come `OFTEN` times, so that trees which hardly ever come again cost nothing. Every
thread has pieces of its own.
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from multidraft.decoding.judging import Inputs, Judging
from multidraft.machine.cuda_graphs import captured
from multidraft.sampling.settings import Sampling

KINDS = {"cuda"}  # of devices that capture
OFTEN, MOST = 3, 16


class Piece:
    """A judging over tensors that stay, also the indices of its groups, at which a graph reads."""

    def __init__(self, judging: Judging, inputs: Inputs, pool: Any):
        self.judging = judging
        with torch.inference_mode(False):  # so that they can be written in any mode
            logits, tokens, drafted, uniform, *levels = map(torch.empty_like, tensors_of(inputs))
        self.inputs = Inputs(logits, tokens, drafted, uniform, levels)
        self.fill(inputs)
        self.replay = captured(lambda: judging(self.inputs), pool)

    def fill(self, inputs: Inputs) -> None:
        """Write a step's inputs."""
        for own, given in zip(tensors_of(self.inputs), tensors_of(inputs), strict=True):
            own.copy_(given)


class Pieces(threading.local):
    """A thread's pieces, and how often keys without one have come; what has not been asked for lately is forgotten."""

    def __init__(self) -> None:
        self.known: OrderedDict[Hashable, Piece | int] = OrderedDict()
        self.pool: Any = None
        self.works = True

    def run(self, key: Hashable, judging: Judging, inputs: Inputs) -> list[Tensor]:
        """What comes of the inputs, by a replay where there is one; `key` says all else that it depends on."""
        if not (self.works and inputs.logits.device.type in KINDS and isinstance(judging.sampling, Sampling)):
            return judging(inputs)
        with torch.no_grad():
            sizes = tuple((each.shape, each.dtype, each.device) for each in tensors_of(inputs))
            piece = self.piece((key, sizes), judging, inputs)
            return piece.replay() if piece else judging(inputs)

    def piece(self, key: Hashable, judging: Judging, inputs: Inputs) -> Piece | None:
        """The key's piece with these inputs, if it has come often enough."""
        found = self.known.pop(key, 0)
        if isinstance(found, Piece):
            found.fill(inputs)
        else:
            found = self.recorded(judging, inputs) if found + 1 == OFTEN else found + 1
        self.known[key] = found
        if len(self.known) > MOST:
            self.known.popitem(last=False)
        return found if isinstance(found, Piece) else None

    def recorded(self, judging: Judging, inputs: Inputs) -> Piece | int:
        """A new piece; where that fails, all goes on without."""
        try:
            with torch.cuda.device_of(inputs.logits):
                if self.pool is None and inputs.logits.is_cuda:
                    self.pool = torch.cuda.graph_pool_handle()
                return Piece(judging, inputs, self.pool)
        except Exception as error:  # whatever a driver may raise
            self.works = False
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            warnings.warn(
                f"steps are not captured, so their operations are launched one by one: {reason}", stacklevel=2
            )
            return 0


def tensors_of(inputs: Inputs) -> list[Tensor]:
    """All inputs in a row."""
    return [inputs.logits, inputs.tokens, inputs.drafted, inputs.uniform, *inputs.levels]


PIECES = Pieces()
