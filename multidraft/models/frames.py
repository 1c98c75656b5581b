"""A step's inputs in tensors that stay, padded to a bucket, so that the step is the same every time: a replay."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.machine.cuda_graphs import Call, captured

Masks = dict[str, Float[Tensor, "_ 1 _ _"]]  # by type of layer
SPARE = 8  # slots of the memory that no step sees
Step = Callable[..., Tensor]  # of tokens, positions, masks, slots, and all keys and values


class Frame:
    """A step of so many rows and tokens that sees so many slots, all of them buckets.

    Its first run, which is there to compile, writes where nobody looks: behind the memory's slots that steps see.
    """

    def __init__(self, size: tuple[int, int, int], kinds: Iterable[str], dtype: torch.dtype, memory: list[Tensor]):
        rows, new, slots = size
        device, self.hidden = memory[0].device, torch.finfo(dtype).min
        self.memory = [buffer[:rows] for buffer in memory]
        self.tokens, self.positions = (torch.zeros(rows, new, dtype=torch.int64, device=device) for _ in range(2))
        self.places = torch.arange(new, device=device)
        self.slots = memory[0].shape[2] - 1 - self.places % SPARE
        shape = (rows, 1, new, slots)
        self.masks = {kind: torch.full(shape, self.hidden, dtype=dtype, device=device) for kind in kinds}
        self.replay: Call | None = None
        self.mark()

    def mark(self) -> None:
        """Say which sizes others of its kind do not share, lest they are compiled in."""
        marks = [(self.slots, [0]), (self.tokens, [0, 1]), (self.positions, [0, 1])]
        marks += [(mask, [0, 2, 3]) for mask in self.masks.values()] + [(buffer, [0, 2]) for buffer in self.memory]
        for tensor, sizes in marks:
            torch._dynamo.maybe_mark_dynamic(tensor, sizes)

    def fill(
        self, tokens: Int[Tensor, "batch new"], positions: Int[Tensor, "batch new"], masks: Masks, first: int
    ) -> None:
        """Write a step's inputs; its keys and values go to the slots from `first` on. Nothing sees what is padded."""
        rows, new = tokens.shape
        self.tokens[:rows, :new] = tokens
        self.positions[:rows, :new] = positions
        torch.add(self.places, first, out=self.slots)
        for kind, mask in masks.items():
            whole = self.masks[kind].fill_(self.hidden)
            whole[:rows, :, :new, : mask.shape[3]] = mask

    def record(self, step: Step, pool: Any) -> None:
        """Run for the first time: what is to be compiled is compiled, and on a GPU what is launched is captured."""
        if self.tokens.is_cuda:
            self.replay = captured(lambda: [self.call(step)], pool)
        else:
            self.call(step)

    def run(self, step: Step) -> Float[Tensor, "rows tokens vocabulary"]:
        """The logits, of padded rows and tokens too."""
        return self.replay()[0] if self.replay else self.call(step)

    def call(self, step: Step) -> Tensor:
        """Run the step itself."""
        return step(self.tokens, self.positions, tuple(self.masks), list(self.masks.values()), self.slots, *self.memory)
