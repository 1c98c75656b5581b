"""Attention of passes: heads that share keys and values read them once.

transformers copies keys and values for every head that shares them before PyTorch's attention, in every layer and pass.
Here the heads of a group stand side by side as though they were tokens, which gives every one of them what it had. Few
tokens on a CPU read lists of slots.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, PretrainedConfig
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from multidraft.models.attention import list_slots, listed
from multidraft.models.compat import GROUPED_ATTENTION

SPECIAL_ARGUMENTS = ("position_bias", "softcap", "s_aux", "cache")  # of models whose attention needs more than a mask


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
    special = any(options.get(name) is not None for name in SPECIAL_ARGUMENTS)
    lists = None if mask is None or special else listed(mask, query, key, value)
    if lists is not None:
        return lists.attend(query, key, value, width**-0.5 if scaling is None else scaling), None
    if special or mask is None or shared == heads or mask.shape[1] > 1 or mask.numel() > 2 * key.numel():
        return sdpa_attention_forward(module, query, key, value, mask, scaling=scaling, **options)
    times, repeated = heads // shared, mask.__dict__.setdefault("repeated", {})  # made once for all layers of a pass
    if times not in repeated:
        repeated[times] = mask.repeat(1, 1, times, 1)
    side_by_side = query.reshape(rows, shared, -1, width)
    outputs = scaled_dot_product_attention(side_by_side, key, value, repeated[times], scale=scaling)
    return outputs.view(rows, shared, times, new, -1).permute(0, 3, 1, 2, 4).reshape(rows, new, heads, -1), None


AttentionInterface.register(GROUPED_ATTENTION, attend)
AttentionMaskInterface.register(GROUPED_ATTENTION, sdpa_mask)  # for a pass of another thread meanwhile


@contextmanager
def grouped(config: PretrainedConfig, masks: Iterable[Float[Tensor, "rows 1 new slots"]]) -> Iterator[None]:
    """Let a model with these settings use it for a pass with such masks, in place of `sdpa` and of nothing else."""
    gains = config._attn_implementation == "sdpa" and getattr(config, "num_key_value_heads", None)
    if gains:
        config._attn_implementation = GROUPED_ATTENTION
        list_slots(masks)
    try:
        yield
    finally:
        if gains:
            config._attn_implementation = "sdpa"
