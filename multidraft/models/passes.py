"""What makes passes over few tokens fast: heads read shared keys and values once, and weights on CPUs are packed once.

transformers copies keys and values for every head that shares them before PyTorch's attention, in every layer and pass.
Here the heads of a group stand side by side as though they were tokens, which gives every one of them what it had.

PyTorch packs a linear layer's weights in the order in which oneDNN multiplies, anew in every call, which takes longer
than to multiply them with a few tokens. Here a packed copy stays; the model is left as it was, and what changes its
weights is noticed.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, TypeGuard
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from multidraft.machine import available
from multidraft.models.attention import SlotLists
from multidraft.models.compat import GROUPED
from multidraft.models.norms import can_normalise, epsilon_of, normalise

SPECIAL = ("position_bias", "softcap", "s_aux", "cache")  # of models whose attention needs more than a mask
MIN_PACKED_NUMBERS = 2**14  # in a weight that is worth packing
# Packing helps passes of few tokens; oneDNN keeps 0.7 MB of code for each number of tokens, and prompts are of any.
MAX_PACKED_TOKENS = 128
KINDS = (torch.bfloat16, torch.float32)


def attend(
    module: nn.Module,
    query: Float[Tensor, "rows heads new width"],
    key: Float[Tensor, "rows shared slots width"],
    value: Float[Tensor, "rows shared slots wide"],
    attention_mask: Float[Tensor, "rows _ new _"] | None,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "rows new heads wide"], None]:
    """What transformers' `sdpa` gives."""
    (rows, heads, new, width), shared, mask = query.shape, key.shape[1], attention_mask
    special = any(options.get(name) is not None for name in SPECIAL)
    lists = None if mask is None or special else mask.__dict__.get("slot_lists")
    if lists is not None and lists.can_attend(query, key, value):
        return lists.attend(query, key, value, width**-0.5 if scaling is None else scaling), None
    if special or mask is None or shared == heads or mask.shape[1] > 1 or mask.numel() > 2 * key.numel():
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)
    times, repeated = heads // shared, mask.__dict__.setdefault("repeated", {})  # made once for all layers of a pass
    if times not in repeated:
        repeated[times] = mask.repeat(1, 1, times, 1)
    side_by_side = query.reshape(rows, shared, -1, width)
    outputs = scaled_dot_product_attention(side_by_side, key, value, repeated[times], scale=scaling)
    return outputs.view(rows, shared, times, new, -1).permute(0, 3, 1, 2, 4).reshape(rows, new, heads, -1), None


AttentionInterface.register(GROUPED, attend)
AttentionMaskInterface.register(GROUPED, sdpa_mask)  # for a pass of somebody else's, in another thread meanwhile


@contextmanager
def grouped(config: PretrainedConfig, masks: Iterable[Float[Tensor, "rows 1 new slots"]]) -> Iterator[None]:
    """Let a model with these settings use it for a pass with such masks, in place of `sdpa` and of nothing else."""
    gains = config._attn_implementation == "sdpa" and getattr(config, "num_key_value_heads", None)
    if gains:
        config._attn_implementation = GROUPED
        for mask in masks:
            mask.__dict__["slot_lists"] = SlotLists.of(mask)
    try:
        yield
    finally:
        if gains:
            config._attn_implementation = "sdpa"


class Replacement:
    """What takes the place of a module's forward for a while; raises RuntimeError where this processor cannot.

    `siblings` are what its parent holds by name: the parent itself may be the key that this is kept by.
    """

    def __init__(self, module: Any, siblings: Mapping[str, nn.Module | None], name: str):
        self.module, self.weight, self.siblings, self.name = module, module.weight, siblings, name
        self.version, self.place = self.weight._version, self.weight.data_ptr()
        self.pack(self.weight.detach())

    @abstractmethod
    def pack(self, weight: Tensor) -> None:
        """Get ready, and try it once."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> Tensor:
        """What the module gives."""

    def is_fresh(self) -> bool:
        """Whether the module is still in its place, with the weight that was there."""
        module = self.siblings.get(self.name)
        if module is None or module is not self.module:  # as after `resize_token_embeddings`
            return False
        weight = module._parameters["weight"]
        return weight is self.weight and weight._version == self.version and weight.data_ptr() == self.place


class Norm(Replacement):
    """An RMS norm in one loop; raises AssertionError where the module is another kind of norm."""

    def pack(self, weight: Float[Tensor, " width"]) -> None:
        """Try it once."""
        epsilon = epsilon_of(self.module)
        assert epsilon is not None
        self.epsilon, self.detached = float(epsilon), weight
        sample = torch.linspace(-3, 5, 2 * len(weight), dtype=weight.dtype).view(2, -1)
        with torch.inference_mode():
            torch.testing.assert_close(self.forward(sample), type(self.module).forward(self.module, sample))

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens width"]:
        """What the norm gives."""
        if not can_normalise(inputs, self.detached):
            return type(self.module).forward(self.module, inputs)
        return normalise(inputs, self.detached, self.epsilon)


class Layer(Replacement):
    """A linear layer and a packed copy of its weight."""

    def pack(self, weight: Float[Tensor, "wide width"]) -> None:
        """Make the copy, and try it once."""
        if not torch.backends.mkldnn.is_available():
            raise RuntimeError("this processor has no oneDNN")
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        sample = torch.ones(1, 3, self.module.in_features, dtype=weight.dtype)
        torch.testing.assert_close(self.forward(sample), self.module.forward(sample))

    def forward(self, inputs: Float[Tensor, "*tokens width"]) -> Float[Tensor, "*tokens wide"]:
        """What the layer gives."""
        if inputs.shape[:-1].numel() > MAX_PACKED_TOKENS:
            return linear(inputs, self.weight, self.module.bias)
        return torch.ops.mkldnn._linear_pointwise(inputs, self.packed, self.module.bias, "none", [], "")


PACKED: WeakKeyDictionary[nn.Module, list[Replacement]] = WeakKeyDictionary()


def fits(module: nn.Module | None) -> TypeGuard[nn.Linear]:
    """Whether it is a plain linear layer on a CPU, large enough, that nothing else has taken over."""
    if type(module) is not nn.Linear or "forward" in module.__dict__ or module.weight.is_inference():
        return False
    weight = module.weight
    return weight.device.type == "cpu" and weight.dtype in KINDS and weight.numel() >= MIN_PACKED_NUMBERS


def places_in(module: nn.Module) -> list[tuple[dict[str, nn.Module | None], str]]:
    """Where all modules within one are: what their parent holds by name, and the name."""
    return [(parent._modules, name) for parent in module.modules() for name in parent._modules]


def pack(module: nn.Module, kind: type[Layer] = Layer) -> list[Layer]:
    """All layers of a module that can be packed, if half of the memory that is left holds them; else none."""
    places = places_in(module)
    places_of_layers = {child: place for place in places if fits(child := place[0][place[1]])}  # each once
    free = available(torch.device("cpu"))
    if free is not None and sum(layer.weight.nbytes for layer in places_of_layers) > free / 2:
        return []
    try:
        return [kind(layer, *place) for layer, place in places_of_layers.items()]
    except (AssertionError, RuntimeError):
        return []


def norms_of(module: nn.Module) -> list[Norm]:
    """The norms of a module that a loop can compute."""
    norms = []
    for siblings, name in places_in(module):
        if epsilon_of(siblings[name]) is not None:
            with suppress(AssertionError, RuntimeError):
                norms.append(Norm(siblings[name], siblings, name))
    return norms


@contextmanager
def packed(module: nn.Module, kind: type[Layer] = Layer) -> Iterator[None]:
    """Let the layers and norms of a module be computed our way for a while, made anew where a weight has changed.

    A module's are always of one kind.
    """
    layers = [] if torch.is_autocast_enabled("cpu") else PACKED.get(module)
    if layers is None or not all(layer.is_fresh() for layer in layers):
        layers = PACKED[module] = [*pack(module, kind), *norms_of(module)]
    for layer in layers:
        layer.module.__dict__.setdefault("forward", layer.forward)  # what else has taken a layer over since stays
    try:
        yield
    finally:
        for layer in layers:
            if layer.module.__dict__.get("forward") == layer.forward:
                del layer.module.__dict__["forward"]
