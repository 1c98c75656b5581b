"""What makes passes over few tokens fast: heads read shared keys and values once, and weights on CPUs are packed once.

transformers copies keys and values for every head that shares them before PyTorch's attention, in every layer and pass.
Here the heads of a group stand side by side as though they were tokens, which gives every one of them what it had.

PyTorch packs a linear layer's weights in the order in which oneDNN multiplies, anew in every call, which takes longer
than to multiply them with a few tokens. Here a packed copy stays; the model is left as it was, and what changes its
weights is noticed.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from multidraft.machine import available
from multidraft.models.attention import SlotLists
from multidraft.models.compat import GROUPED
from multidraft.models.decoder_layers import DecoderLayer, can_take
from multidraft.models.norms import epsilon_of
from multidraft.models.replacements import Layer, Norm, Replacement, can_pack, fits

SPECIAL = ("position_bias", "softcap", "s_aux", "cache")  # of models whose attention needs more than a mask


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


Places = list[tuple[dict[str, nn.Module | None], str]]
PACKED: WeakKeyDictionary[nn.Module, list[Replacement]] = WeakKeyDictionary()


def places_in(module: nn.Module) -> Places:
    """Where all modules within one are: what their parent holds by name, and the name."""
    return [(parent._modules, name) for parent in module.modules() for name in parent._modules]


def made(kind: type[Replacement], places: Places, fits: Callable[[nn.Module | None], object]) -> Iterator[Replacement]:
    """Replacements of one kind for all modules that it fits, each once, and that it gives the results of."""
    for module, place in {place[0][place[1]]: place for place in places}.items():
        if fits(module):
            with suppress(AssertionError, RuntimeError):
                yield kind(module, *place)


def replacements_of(module: nn.Module, kind: type[Layer]) -> list[Replacement]:
    """All that can take places in a module; packed weights only if half of the memory that is left holds them."""
    places = places_in(module)
    free, parts = available(torch.device("cpu")), {place[0][place[1]] for place in places}
    copied = sum(part.weight.nbytes for part in parts if fits(part) and can_pack(part.weight.dtype))
    if free is not None and copied > free / 2:
        return [*made(Norm, places, epsilon_of)]
    whole = [*made(DecoderLayer, places, can_take)] if kind is Layer else []
    inside = {part for layer in whole for part in layer.module.modules()}
    places = [place for place in places if place[0][place[1]] not in inside]
    return [*whole, *made(kind, places, fits), *made(Norm, places, epsilon_of)]


@contextmanager
def packed(module: nn.Module, kind: type[Layer] = Layer) -> Iterator[None]:
    """Let the layers and norms of a module be computed our way for a while, made anew where a weight has changed.

    A module's are always of one kind.
    """
    layers = [] if torch.is_autocast_enabled("cpu") else PACKED.get(module)
    if layers is None or not all(layer.is_fresh() for layer in layers):
        layers = PACKED[module] = replacements_of(module, kind)
    for layer in layers:
        layer.module.__dict__.setdefault("forward", layer.forward)  # what else has taken a layer over since stays
    try:
        yield
    finally:
        for layer in layers:
            if layer.module.__dict__.get("forward") == layer.forward:
                del layer.module.__dict__["forward"]
