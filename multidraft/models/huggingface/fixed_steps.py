"""Steps of few shapes over memory that stays: on a GPU recorded as CUDA graphs; compiled where somebody asks for it.

A step is padded to buckets of rows, tokens and slots, so that what is compiled or recorded for one serves many. On a
GPU every model is read so that can be: launching its kernels one by one takes three to five times as long, and cuDNN's
attention builds a plan for every new shape. What is recorded stays with the model, and so do the buffer pools: memory
at fixed addresses, which batches use in turn.
"""

import inspect
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from math import inf
from threading import RLock
from types import FunctionType
from typing import Any
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from jaxtyping import Float, Int
from torch import Tensor, from_dlpack
from tqdm import tqdm
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from multidraft.errors import AdviceError
from multidraft.machine import available, format_bytes
from multidraft.models.huggingface.compat import memory_name, needs_paths
from multidraft.models.huggingface.kv_cache import Storage, TreeCache
from multidraft.models.huggingface.weight_marks import GLOBAL_HOOKS, ModelMark, PlaceMark, PlaceWatch, has_additions

MAX_STEP_TOKENS = 256  # of a step that is compiled; a wider one is bound by arithmetic
MIN_SLOTS = 256  # that a step sees
SPARE_SLOTS = 8  # of a pool, which no step sees
MAX_COPIES = 4  # of the weights on a CPU: for one row and several, for one token and several
POOLS_LOCK = RLock()  # a model may be shared by threads
Size = tuple[int, int, int]  # rows, tokens and slots
StepTokens = Int[Tensor, "rows new"]
KindMasks = dict[str, Float[Tensor, "rows 1 new seen"]]  # by type of layer
StepFunction = Callable[..., list[Tensor]]  # of tokens, positions, masks, slots, and all keys and values


def capture_graph(call: Callable[[], list[Tensor]], pool: Any) -> Callable[[], list[Tensor]]:
    """A call's replay on a GPU over the same memory, as one launch; it runs once before, to settle choices."""
    current, side, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(current)
    with torch.cuda.stream(side):
        call()
    current.wait_stream(side)
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may go on
        results = call()

    def replay() -> list[Tensor]:
        graph.replay()
        return [result.clone() for result in results]  # which the next replay of any graph of the pool may overwrite

    return replay


def bucket(count: int, smallest: int = 1) -> int:
    """The power of two that holds so many."""
    return max(smallest, 1 << max(count - 1, 0).bit_length())


def whole_slots(count: int) -> int:
    """So many slots, in whole pieces: a power of two would be up to twice the memory."""
    return max(-(-count // MIN_SLOTS), 1) * MIN_SLOTS


def buckets(largest: int, smallest: int = 1) -> list[int]:
    """All powers of two up to the one that holds so many, the largest first.

    >>> buckets(40, 16), buckets(0)
    ([64, 32, 16], [1])
    """
    top = bucket(largest, smallest)
    return [top >> shift for shift in range(top.bit_length()) if top >> shift >= smallest]


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
    memory: str,
    tokens: StepTokens,
    positions: StepTokens,
    masks: KindMasks,
    slots: Int[Tensor, " new"],
    *buffers: Tensor,
    layers: tuple[int, ...],
) -> list[Tensor]:
    """A function of tensors: the logits, and the states of `layers` if any; keys and values go into the memory."""
    mask = next(iter(masks.values()))
    pairs = zip(buffers[::2], buffers[1::2], strict=True)
    output = model(
        input_ids=tokens,
        position_ids=positions,
        attention_mask=masks if len(masks) > 1 else mask,
        use_cache=True,
        **{memory: Cache(layers=[FixedLayer(*pair, slots, mask.shape[3]) for pair in pairs])},
        **({"output_hidden_states": True} if layers else {}),
    )
    states = [torch.stack([output.hidden_states[layer] for layer in layers], 2)] if layers else []
    return [output.logits, *states]


class CapturedStep:
    """A step's inputs in tensors that stay, padded to a size: the step is the same every time.

    Its first run, which is there to compile, writes where nobody looks: behind the memory's slots that steps see.
    """

    def __init__(self, size: Size, kinds: Iterable[str], dtype: torch.dtype, memory: list[Tensor]):
        rows, new, slots = size
        device, self.hidden = memory[0].device, torch.finfo(dtype).min
        self.memory = [buffer[:rows] for buffer in memory]
        self.tokens, self.positions = (torch.zeros(rows, new, dtype=torch.int64, device=device) for _ in range(2))
        self.places = torch.arange(new, device=device)
        self.slots = memory[0].shape[2] - 1 - self.places % SPARE_SLOTS
        shape = (rows, 1, new, slots)
        self.masks = {kind: torch.full(shape, self.hidden, dtype=dtype, device=device) for kind in kinds}
        self.replay: Callable[[], list[Tensor]] | None = None
        shared = [(self.slots, [0]), (self.tokens, [0, 1]), (self.positions, [0, 1])]
        shared += [(mask, [0, 2, 3]) for mask in self.masks.values()] + [(buffer, [0, 2]) for buffer in self.memory]
        for tensor, sizes in shared:  # other steps of this kind have other sizes, which must not be compiled in
            torch._dynamo.maybe_mark_dynamic(tensor, sizes)

    def fill(self, tokens: StepTokens, positions: StepTokens, masks: KindMasks, first: int) -> None:
        """Write a step's inputs; its keys and values go to the slots from `first` on. Nothing sees what is padded."""
        rows, new = tokens.shape
        self.tokens[:rows, :new] = tokens
        self.positions[:rows, :new] = positions
        torch.add(self.places, first, out=self.slots)
        for kind, mask in masks.items():
            whole = self.masks[kind].fill_(self.hidden)
            whole[:rows, :, :new, : mask.shape[3]] = mask

    def run(self, step: StepFunction, pool: Any = None) -> list[Tensor]:
        """The results, of padded rows and tokens too; with a pool, what is launched on a GPU is captured first."""
        inputs = self.tokens, self.positions, self.masks, self.slots, *self.memory
        if pool is not None and self.tokens.is_cuda:
            self.replay = capture_graph(lambda: step(*inputs), pool)
        return self.replay() if self.replay else step(*inputs)


class BufferPool(Storage):
    """Memory for one batch at a time, with what was recorded in it; that is forgotten where the memory has to grow."""

    shrink_ratio = inf  # it never becomes smaller

    def __init__(self, layers: int, rows: int, capacity: int):
        super().__init__(layers, bucket(rows), whole_slots(capacity) + SPARE_SLOTS)
        self.capacity = self.planned
        self.captured_steps: dict[Size, CapturedStep] = {}
        self.holder: ReferenceType[TreeCache] | None = None
        # Recorded steps share memory, because they run one after another.
        self.graph_pool = torch.cuda.graph_pool_handle() if torch.cuda.is_available() else None

    @property
    def is_free(self) -> bool:
        """Whether no cache has it."""
        return self.holder is None or self.holder() is None

    def reserve(self, rows: int, capacity: int) -> None:
        if rows > self.rows or capacity + SPARE_SLOTS > self.capacity:
            self.captured_steps.clear()
            super().reserve(bucket(rows), whole_slots(capacity) + SPARE_SLOTS)

    def slots_for(self, needed: int) -> int:
        """How many slots a step sees that needs so many: a power of two, or all that there are."""
        return min(bucket(needed, MIN_SLOTS), max(self.capacity - SPARE_SLOTS, whole_slots(needed)))

    def captured_step(
        self, size: Size, cache: TreeCache, kinds: Iterable[str], dtype: torch.dtype, step: StepFunction, compiles: bool
    ) -> CapturedStep:
        """The step of such a size, ready to be filled."""
        rows, new, slots = size
        self.reserve(rows, slots)
        # What is compiled first serves all sizes of its kind: a compiler takes sizes that are equal for the same.
        first_of_kind = [(2 if rows > 1 else 1, 4 if new > 1 else 1, MIN_SLOTS)] if compiles else []
        for recorded in (*first_of_kind, size):
            if recorded not in self.captured_steps:
                # No two share a storage, so that a compiler need not ask whether they overlap.
                memory = [from_dlpack(buffer) for layer in cache.layers for buffer in layer.buffers]
                captured_step = CapturedStep(recorded, kinds, dtype, memory)
                captured_step.run(step, self.graph_pool)
                self.captured_steps[recorded] = captured_step
        return self.captured_steps[size]


class FixedSteps:
    """A model's step in fixed shapes, which tells the states of `layers` too: compiled, or as it is.

    It is compiled at most four times, for one or many rows and tokens; then logits agree with those of the model up to
    rounding. Where compiling or recording fails, or memory lacks, one warning says so and all goes on without.
    """

    def __init__(self, model: PreTrainedModel, compiles: bool, layers: tuple[int, ...] = ()):
        self.device, self.dtype, self.compiles = model.device, model.dtype, compiles
        self.memory = memory_name(model)
        self.mark: ModelMark | PlaceMark = ModelMark([model]) if compiles else PlaceMark(model)
        self.step = partial(compile_step(model) if compiles else step, layers=layers)
        self.works, self.recorded_sizes = True, 0
        self.pools: list[BufferPool] = []
        if len({weight.device for weight in model.parameters()}) > 1 or self.device.type == "meta":
            self.give_up(AdviceError("its weights are not all on one device"))

    def give_up(self, error: Exception) -> None:
        """From now on the model reads without."""
        self.works = False
        lines = str(error).strip().splitlines() or [type(error).__name__]
        what = "a model does not compile" if self.compiles else "a model's steps cannot be recorded"
        warnings.warn(f"{what}, so it runs without: {lines[0]}", stacklevel=2)

    def move_to_pool(self, cache: TreeCache, capacity: int) -> None:
        """Move a cache into a pool for so many slots, unless it is in one, or some layer has not read.

        Raises AdviceError, or torch.OutOfMemoryError, where memory lacks.
        """
        if not self.works or isinstance(cache.storage, BufferPool) or not all(layer.block for layer in cache.layers):
            return
        with POOLS_LOCK:
            pool = self.acquire(cache, max(capacity, cache.base + cache.width))
            pool.holder = ref(cache)
        cache.move(pool)

    def acquire(self, cache: TreeCache, capacity: int) -> BufferPool:
        """One that nobody has, with nothing in it; a new one takes the place of those that are too small."""
        rows, free = len(cache.lengths), [pool for pool in self.pools if pool.is_free]
        if large_enough := [pool for pool in free if rows <= pool.rows and capacity + SPARE_SLOTS <= pool.capacity]:
            pool = min(large_enough, key=lambda pool: pool.rows * pool.capacity)
            for block in pool.blocks:
                block.taken = 0
                for tensor in block.contents.tensors:
                    tensor.zero_()
            return pool
        self.pools = [pool for pool in self.pools if not pool.is_free]
        del free
        pool = BufferPool(len(cache.layers), rows, capacity)
        slot = sum(buffer[0, :, 0].nbytes for layer in cache.layers for buffer in layer.buffers)
        needed, free_bytes = pool.rows * pool.capacity * slot, available(self.device)
        if free_bytes is not None and needed > free_bytes:
            raise AdviceError(
                f"keys and values of fixed size need {format_bytes(needed)}, and {format_bytes(free_bytes)} "
                "are free; decode fewer or shorter rows at once"
            )
        self.pools.append(pool)
        return pool

    def run(
        self, watch: PlaceWatch, cache: TreeCache, tokens: StepTokens, positions: StepTokens, masks: KindMasks
    ) -> list[Tensor] | None:
        """A step that the cache has made room for: its logits, and states if any.

        None where the model must be read as it is. While a GPU is at work, the host looks whether what was recorded is
        what the watched model does now.
        """
        (rows, new), pool = tokens.shape, cache.storage
        if not (self.works and isinstance(pool, BufferPool) and new <= MAX_STEP_TOKENS):
            return None
        first, step = cache.base + cache.width - new, self.step_of(watch.model)
        size = (bucket(rows), bucket(new), pool.slots_for(first + bucket(new)))
        try:
            self.recorded_sizes += size not in pool.captured_steps
            captured_step = pool.captured_step(size, cache, masks, self.dtype, step, self.compiles)
            captured_step.fill(tokens, positions, masks, first)
            results = captured_step.run(step)
        except Exception as error:  # whatever a compiler may raise; what has been written is written again
            self.give_up(error)
            return None
        if isinstance(self.mark, PlaceMark) and not self.mark.is_unmoved(watch):
            self.works = False
            return None
        for layer in cache.layers:
            layer.end += new
        return [result[:rows, :new] for result in results]

    def step_of(self, model: PreTrainedModel) -> StepFunction:
        """The step, of tensors alone."""
        return partial(self.step, model, self.memory)

    def prepare(
        self, model: PreTrainedModel, cache: TreeCache, kinds: Iterable[str], new: tuple[int, int], shortest: int
    ) -> None:
        """Compile and record the steps that may come up in the pool of a cache, between two numbers of tokens.

        On a CPU, where nothing is recorded, what is compiled for the ends serves between.
        """
        if not isinstance(pool := cache.storage, BufferPool):
            return
        longest = pool.capacity - SPARE_SLOTS
        slots = [min(size, longest) for size in buckets(longest, MIN_SLOTS) if size >= shortest]
        rows, tokens = buckets(len(cache.lengths)), buckets(min(new[1], MAX_STEP_TOKENS), new[0])
        if self.device.type == "cpu":
            rows, tokens, slots = [rows[0], rows[-1]], [tokens[0], tokens[-1]], slots[:1]
        sizes = list(dict.fromkeys(product(rows, tokens, slots)))
        for size in tqdm(sizes, desc="compiling", unit="step", leave=False, delay=2):
            try:
                pool.captured_step(size, cache, kinds, self.dtype, self.step_of(model), self.compiles)
            except Exception as error:
                return self.give_up(error)


def can_compile(model: PreTrainedModel) -> bool:
    """Whether a model's steps can be compiled; warns where they cannot."""
    if reason := why_not_fixed(model):
        warnings.warn(f"decoding goes on without compiled steps: {reason}", stacklevel=2)
    return not reason


def why_not_fixed(model: PreTrainedModel) -> str:
    """Why a model's steps cannot be compiled or recorded; empty where they can."""
    if needs_paths(model):
        return f"{model.config.model_type} is not read by masks alone"
    if any(GLOBAL_HOOKS) or any(map(has_additions, model.modules())):
        return "the model has hooks or forwards of its own, which compiled code might leave out"
    return ""


Kinds = dict[tuple[bool, tuple[int, ...]], FixedSteps]  # by whether they are compiled, and layers
STEPS: WeakKeyDictionary[PreTrainedModel, Kinds] = WeakKeyDictionary()


def steps_of(model: PreTrainedModel, compiles: bool = True, layers: tuple[int, ...] = ()) -> FixedSteps:
    """What is kept with a model, unless it has changed since: its weights may have been compiled in."""
    kinds, kind = STEPS.setdefault(model, {}), (compiles, layers)
    if kind not in kinds or not kinds[kind].mark.agrees():
        kinds[kind] = FixedSteps(model, *kind)
    return kinds[kind]


def compile_step(model: PreTrainedModel) -> StepFunction:
    """The compiled step; it does not keep the model alive.

    On a CPU the weights are compiled in, laid out as matrix products read them best, if there is memory for copies.
    """
    if model.device.type != "cpu":
        return torch.compile(copy_of(step))
    torch._inductor.config.compile_threads = 1  # workers that wait would slow down everything after
    free, size = available(model.device), sum(weight.nbytes for weight in model.parameters())
    return torch.compile(copy_of(step), options={"freezing": free is None or MAX_COPIES * size < free})


def copy_of(function: Callable) -> Callable:
    """A copy for one model: a compiler keeps what it has made with the code, and looks through all of it."""
    unwrapped = inspect.unwrap(function)  # what checks shapes has no code of the function's own
    return FunctionType(unwrapped.__code__.replace(), unwrapped.__globals__)
