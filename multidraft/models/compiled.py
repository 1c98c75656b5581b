"""A drafter whose steps are compiled: the same shapes every time, so that what is compiled once serves all steps."""

import math
import warnings
from collections.abc import Callable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from multidraft.models.causal_lm import CausalLM

BUCKET = 1024  # capacities are this, twice this, four times this: another one compiles anew
MOST_NEW = 16  # wider steps gain little
Step = Callable[..., Tensor]
STEPS: WeakKeyDictionary[PreTrainedModel, Step] = WeakKeyDictionary()


class FixedLayer(DynamicLayer):
    """One layer's whole buffers; new keys and values go to the slots given, and all slots are attended to."""

    def __init__(self, keys: Tensor, values: Tensor, slots: Int[Tensor, " new"]):
        super().__init__()
        self.keys, self.values, self.slots, self.is_initialized = keys, values, slots, True

    def update(self, key_states: Tensor, value_states: Tensor, *args, **kwargs) -> tuple[Tensor, Tensor]:
        assert self.keys is not None
        assert self.values is not None
        self.keys.index_copy_(2, self.slots, key_states)
        self.values.index_copy_(2, self.slots, value_states)
        return self.keys, self.values

    def get_seq_length(self, *args) -> int:
        return 0


class CompiledCausalLM(CausalLM):
    """A `CausalLM` that runs small steps of one row through `torch.compile`; other steps run as ever.

    A step of `new` tokens is compiled when it first comes (seconds each; a tree has a few such sizes), and the compiled
    steps stay with `model`. On a GPU they are CUDA graphs. Where compiling fails, a warning says why and all goes on
    without. Logits agree with those of the model up to rounding.
    """

    def __init__(self, model: PreTrainedModel, capacity: int = 256):
        bucket = BUCKET * 2 ** math.ceil(math.log2(max(capacity / BUCKET, 1)))
        super().__init__(model, bucket, may_split=lambda: False)  # lanes come in any size
        self.step: Step | None = step_of(model)

    def read(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        settings: dict[str, int],
    ) -> Float[Tensor, "batch scored vocabulary"]:
        fits = len(tokens) == 1 and tokens.shape[1] <= MOST_NEW and not settings
        if self.step is None or not fits or not self.cache.is_filled:
            return super().read(tokens, positions, visible, settings)
        mask, slots = self.mask(visible), self.cache.new_slots(tokens.shape[1])
        mask = {k: self.widened(m) for k, m in mask.items()} if isinstance(mask, dict) else self.widened(mask)
        buffers = [buffer for layer in self.cache.layers for buffer in layer.buffers]
        try:
            logits = self.step(tokens, positions, mask, slots, *buffers)
        except Exception as error:  # whatever a compiler may raise: the step has then not been run
            warnings.warn(
                f"the draft model does not compile, so it runs without: {str(error).strip().splitlines()[0]}",
                stacklevel=2,
            )
            self.step = None
            return super().read(tokens, positions, visible, settings)
        self.cache.advance(tokens.shape[1])
        return logits

    def widened(self, mask: Float[Tensor, "1 1 new slots"]) -> Float[Tensor, "1 1 new capacity"]:
        """The mask over the whole buffers; nothing sees the slots behind the pending ones."""
        behind = self.cache.capacity - mask.shape[-1]
        return torch.nn.functional.pad(mask, (0, behind), value=torch.finfo(mask.dtype).min)


def step_of(model: PreTrainedModel) -> Step:
    """The model's compiled step: a function of tensors alone, which writes into the buffers that it is given."""
    if model not in STEPS:
        inductor, dynamo = torch._inductor.config, torch._dynamo.config
        inductor.compile_threads = 1  # workers that wait would slow down everything after
        dynamo.recompile_limit = max(dynamo.recompile_limit, 4 * MOST_NEW)

        def step(tokens: Tensor, positions: Tensor, mask: Tensor, slots: Tensor, *buffers: Tensor) -> Tensor:
            pairs = zip(buffers[::2], buffers[1::2], strict=True)
            cache = Cache(layers=[FixedLayer(keys, values, slots) for keys, values in pairs])
            output = model(
                input_ids=tokens, position_ids=positions, attention_mask=mask, past_key_values=cache, use_cache=True
            )
            return output.logits

        mode = "reduce-overhead" if model.device.type == "cuda" else None
        STEPS[model] = torch.compile(step, dynamic=False, mode=mode)
    return STEPS[model]
