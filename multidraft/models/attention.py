"""Attention of several tokens under one mask: heads that share keys and values read them once.

transformers copies keys and values for every such head before PyTorch's attention, in every layer and pass. Here the
heads of a group stand side by side as though they were tokens, which gives every one of them what it had before.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from multidraft.models.compat import GROUPED

SPECIAL = ("position_bias", "softcap", "s_aux", "cache")  # of models that need more than a mask


def attend(
    module: nn.Module,
    query: Float[Tensor, "rows heads new width"],
    key: Float[Tensor, "rows shared slots width"],
    value: Float[Tensor, "rows shared slots wide"],
    attention_mask: Float[Tensor, "rows _ new _"] | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Float[Tensor, "rows new heads wide"], None]:
    """What transformers' `sdpa` gives."""
    (rows, heads, new, width), shared, mask = query.shape, key.shape[1], attention_mask
    special = any(more.get(name) is not None for name in SPECIAL)
    if special or mask is None or shared == heads or mask.shape[1] > 1 or mask.numel() > 2 * key.numel():
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **more)
    side_by_side, masks = query.reshape(rows, shared, -1, width), repeated(mask, heads // shared)
    found = scaled_dot_product_attention(side_by_side, key, value, masks, scale=scaling)
    return found.view(rows, shared, heads // shared, new, -1).permute(0, 3, 1, 2, 4).reshape(rows, new, heads, -1), None


def repeated(mask: Float[Tensor, "rows 1 new slots"], times: int) -> Float[Tensor, "rows 1 side slots"]:
    """The mask of several heads side by side, made once for all layers of a pass: the mask itself remembers it."""
    known: dict[int, Tensor] = mask.__dict__.setdefault("repeated", {})
    if times not in known:
        known[times] = mask.repeat(1, 1, times, 1)
    return known[times]


AttentionInterface.register(GROUPED, attend)
AttentionMaskInterface.register(GROUPED, sdpa_mask)  # for a pass of somebody else's, in another thread meanwhile


@contextmanager
def grouped(config: PretrainedConfig) -> Iterator[None]:
    """Let a model with these settings use it for a while, in place of `sdpa` and of nothing else."""
    heads, shared = (getattr(config, name, None) for name in ("num_attention_heads", "num_key_value_heads"))
    if config._attn_implementation != "sdpa" or not shared or heads == shared:
        yield
        return
    config._attn_implementation = GROUPED
    try:
        yield
    finally:
        config._attn_implementation = "sdpa"
