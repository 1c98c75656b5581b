"""A reader whose steps are compiled: prompts are read as ever, then the batch moves into buffers that stay."""

import warnings
from itertools import product
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import Scored
from multidraft.models.buckets import SLOTS, WIDEST, bucket, buckets
from multidraft.models.compiling import steps_of
from multidraft.models.fixed import FixedStorage, memory
from multidraft.models.frames import Frame
from multidraft.models.huggingface import CausalLM

Size = tuple[int, int, int]  # rows, tokens and slots
BEGIN = 1024  # slots of the buffers that prompts are read into; they grow with what is read


class CompiledCausalLM(CausalLM):
    """A `CausalLM` whose steps run through `torch.compile`, and on a GPU as CUDA graphs.

    Steps are padded to buckets of rows, tokens and slots. What is compiled and recorded stays with `model`, and so does
    the memory. Where compiling fails, or memory lacks, one warning says so and all goes on without. Logits agree with
    those of the model up to rounding.
    """

    def __init__(self, model: PreTrainedModel, capacity: int = 256):
        super().__init__(model, min(capacity, BEGIN))
        self.steps, self.asked, self.fits = steps_of(model), capacity, True

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        if logits is True and 0 < tokens.shape[1] <= WIDEST and not self.cache.pending:
            self.settle(tokens.shape[1])
        return super().forward(tokens, positions, visible, logits)

    @torch.inference_mode()
    def settle(self, new: int) -> None:
        """Move the batch into a room with slots for trees that begin with so many tokens, unless it is in one."""
        if not (self.steps.works and self.fits and all(cache.is_filled for cache in self.lanes.caches)):
            return
        longest = max(cache.base for cache in self.lanes.caches)
        if self.lanes.is_fixed and longest + 2 * bucket(new) <= self.cache.capacity:
            return
        capacity = bucket(max(self.asked, longest + 4 * bucket(new)), SLOTS)
        slot = sum(buffer[0, :, 0].nbytes for layer in self.cache.layers for buffer in layer.buffers)
        try:
            rows, layers = bucket(len(self.lanes.order)), len(self.cache.layers)
            self.lanes.unite(self.steps.storage(layers, rows, capacity, slot))
        except (AdviceError, torch.OutOfMemoryError) as error:
            self.fits = False
            warnings.warn(f"decoding goes on without compiled steps: {str(error).splitlines()[0]}", stacklevel=2)

    def read(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        settings: dict[str, int],
    ) -> Float[Tensor, "batch scored vocabulary"]:
        (rows, new), first = tokens.shape, self.cache.written
        size = (bucket(rows), bucket(new), bucket(first + bucket(new), SLOTS))
        if settings or new > WIDEST or not (self.steps.works and self.lanes.is_fixed and size[2] <= self.slots):
            return super().read(tokens, positions, visible, settings)
        try:
            frame = self.frame(size)
            frame.fill(tokens, positions, self.masks_of(self.cache, visible), first)
            logits = frame.run(self.step)
        except Exception as error:  # whatever a compiler may raise; what has been written is written again
            self.steps.give_up(error)
            return super().read(tokens, positions, visible, settings)
        self.cache.advance(new)
        return logits[:rows, :new]

    @property
    def slots(self) -> int:
        """How many slots steps may see, where the batch is."""
        return self.cache.storage.capacity

    def step(self, *inputs: Any) -> Tensor:
        """The compiled step of this model."""
        return self.steps.step(self.model, *inputs)

    def frame(self, size: Size) -> Frame:
        """The step of such a size, ready to be filled."""
        assert isinstance(self.cache.storage, FixedStorage)
        frames = self.cache.storage.room.frames
        for each in (first_of(size), size):
            if each not in frames:
                frame = Frame(each, self.windows, self.model.dtype, memory(self.cache.layers))
                frame.record(self.step, self.cache.storage.room.pool)
                frames[each] = frame
        return frames[size]


def first_of(size: Size) -> Size:
    """What is compiled first, and serves all sizes of this kind: a compiler takes sizes that are equal for the same."""
    rows, new, _ = size
    return 2 if rows > 1 else 1, 4 if new > 1 else 1, SLOTS


@torch.inference_mode()
def prepare(model: PreTrainedModel, rows: int, new: tuple[int, int], lengths: tuple[int, int]) -> None:
    """Compile and record the steps of up to so many rows: between two numbers of tokens, and two of slots."""
    reader = CompiledCausalLM(model, lengths[1])
    first = torch.zeros(rows, 1, dtype=torch.int64)
    reader.forward(first, first, torch.ones(rows, 1, 1, dtype=torch.bool), logits=False)
    reader.keep(first)
    reader.settle(min(new[1], WIDEST))
    sizes = sizes_of(reader, rows, new, lengths[0]) if reader.lanes.is_fixed else []
    for size in tqdm(sizes, desc="compiling", unit="step", leave=False, delay=2):
        try:
            reader.frame(size)
        except Exception as error:
            return reader.steps.give_up(error)


def sizes_of(reader: CompiledCausalLM, rows: int, new: tuple[int, int], shortest: int) -> list[Size]:
    """Those that may come up; on a CPU, where nothing is recorded, what is compiled for the ends serves between."""
    slots = [size for size in buckets(reader.slots, SLOTS) if size >= shortest]
    each, tokens = buckets(rows), buckets(min(new[1], WIDEST), new[0])
    if reader.device.type == "cpu":
        each, tokens, slots = [each[0], each[-1]], [tokens[0], tokens[-1]], slots[:1]
    return list(dict.fromkeys(product(each, tokens, slots)))
