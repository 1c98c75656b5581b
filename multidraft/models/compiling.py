"""What is compiled of a model, and kept with it: its step, and the rooms that its batches take turns in."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from itertools import chain
from threading import RLock
from types import FunctionType
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from multidraft.errors import AdviceError
from multidraft.machine.memory import available, readable
from multidraft.models.fixed import FixedStorage, Room
from multidraft.models.frames import Step

LENDING = RLock()  # a model may be shared by threads
COPIES = 4  # of the weights at most, on a CPU: for one row and several, for one token and several


class FixedLayer(DynamicLayer):
    """One layer's whole buffers; new keys and values go to the slots given, and the first `seen` are attended to."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Int[Tensor, " new"], seen: int):
        super().__init__()
        self.keys, self.values, self.slots, self.seen, self.is_initialized = keys, values, slots, seen, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.keys[:, :, : self.seen], self.values[:, :, : self.seen]

    def get_seq_length(self, *args) -> int:
        return 0


def step(
    model: PreTrainedModel,
    tokens: Int[Tensor, "rows new"],
    positions: Int[Tensor, "rows new"],
    kinds: tuple[str, ...],
    masks: Sequence[Float[Tensor, "rows 1 new seen"]],
    slots: Int[Tensor, " new"],
    *memory: Float[Tensor, "rows heads slots _"],
) -> Float[Tensor, "rows new vocabulary"]:
    """A function of tensors alone: the logits; keys and values are written into the memory."""
    pairs, seen = zip(memory[::2], memory[1::2], strict=True), masks[0].shape[3]
    cache = Cache(layers=[FixedLayer(keys, values, slots, seen) for keys, values in pairs])
    mask = dict(zip(kinds, masks, strict=True)) if len(masks) > 1 else masks[0]
    output = model(input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True)
    return output.logits


class Steps:
    """A model's compiled step, for all sizes: it is compiled at most four times, for one or many rows and tokens."""

    def __init__(self, model: PreTrainedModel):
        self.device, self.weights = model.device, versions_of(model)
        self.step = compiled(model)
        self.works = True
        self.rooms: list[Room] = []
        if len({weight.device for weight in model.parameters()}) > 1 or self.device.type == "meta":
            self.give_up(AdviceError("its weights are not all on one device"))

    def storage(self, layers: int, rows: int, capacity: int, slot: int) -> FixedStorage:
        """A room that nobody else has, for slots of so many bytes; raises AdviceError where memory lacks."""
        with LENDING:
            return FixedStorage(layers, self.room(rows, capacity, slot))

    def room(self, rows: int, capacity: int, slot: int) -> Room:
        """One that is free; a new one takes the place of those that are too small."""
        free = [room for room in self.rooms if room.is_free]
        if found := [room for room in free if room.holds(rows, capacity)]:
            return min(found, key=lambda room: room.rows * room.capacity)
        self.rooms = [room for room in self.rooms if not room.is_free]
        del free
        room = Room(rows, capacity)
        check_fits(room.slots * slot, self.device)
        self.rooms.append(room)
        return room

    def give_up(self, error: Exception) -> None:
        """From now on the model reads without."""
        self.works = False
        lines = str(error).strip().splitlines() or [type(error).__name__]
        warnings.warn(f"a model does not compile, so it runs without: {lines[0]}", stacklevel=2)


STEPS: WeakKeyDictionary[PreTrainedModel, Steps] = WeakKeyDictionary()


def steps_of(model: PreTrainedModel) -> Steps:
    """What is kept with a model, unless its weights have changed since: they may have been compiled in."""
    if model not in STEPS or STEPS[model].weights != versions_of(model):
        STEPS[model] = Steps(model)
    return STEPS[model]


def versions_of(model: PreTrainedModel) -> list[tuple[int, int]]:
    """Where the weights are, and how often they have been changed in place."""
    weights = chain(model.parameters(), model.buffers())
    return [(weight.data_ptr(), 0 if weight.is_inference() else weight._version) for weight in weights]


def compiled(model: PreTrainedModel) -> Step:
    """The compiled step; it does not keep the model alive.

    On a CPU the weights are compiled in, laid out as matrix products read them best, if there is room for copies.
    """
    if model.device.type != "cpu":
        return torch.compile(own_copy(step))
    torch._inductor.config.compile_threads = 1  # workers that wait would slow down everything after
    room, size = available(model.device), sum(weight.nbytes for weight in model.parameters())
    return torch.compile(own_copy(step), options={"freezing": room is None or COPIES * size < room})


def own_copy(function: Callable) -> Callable:
    """A copy for one model: a compiler keeps what it has made with the code, and looks through all of it."""
    bare = inspect.unwrap(function)  # what checks shapes has no code of the function's own
    return FunctionType(bare.__code__.replace(), bare.__globals__)


def check_fits(size: int, device: torch.device) -> None:
    """Raise unless so many bytes can be had."""
    room = available(device)
    if room is not None and size > room:
        raise AdviceError(
            f"keys and values of compiled steps need {readable(size)}, and {readable(room)} are free; "
            "decode fewer or shorter rows at once"
        )
