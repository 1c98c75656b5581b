"""A layer of a head over few tokens on a CPU: four products in eight bits, and loops between."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.models.attention import listed
from multidraft.models.decoder_layers import FusedLayer, Positions, Tokens, has_plain_leaves
from multidraft.models.fused_loops import angles
from multidraft.models.heads import Layer
from multidraft.models.int8 import Int8Product
from multidraft.models.replacements import MIN_PACKED_NUMBERS, Replacement


class Rotary(Replacement):
    """The angles that tokens turn by, in one loop; only where they depend on nothing but the position."""

    copies = False

    @staticmethod
    def fits(module: nn.Module | None) -> bool:
        if not isinstance(module, LlamaRotaryEmbedding) or "forward" in module.__dict__:
            return False
        return module.rope_type in ("default", "linear", "llama3") and module.inv_freq.is_cpu

    def pack(self) -> None:
        """Try it once."""
        sample, positions = torch.zeros(1), torch.tensor([[0, 1, 77]])
        torch.testing.assert_close(self.forward(sample, positions), self.module.forward(sample, positions))

    def forward(self, states: Tensor, positions: Int[Tensor, "rows new"]) -> Positions:  # type: ignore[override]
        """Cosines and sines."""
        if states.dtype != torch.float32:
            return type(self.module).forward(self.module, states, positions)
        return angles(positions, self.module.inv_freq, self.module.attention_scaling)


class HeadLayer(FusedLayer):
    """Llama's layer as heads have it."""

    product_of = staticmethod(Int8Product)

    @staticmethod
    def fits(module: nn.Module | None) -> bool:
        if type(module) is not Layer or "forward" in module.__dict__:
            return False
        has_no_more_norms = next(module.self_attn.q_norm.parameters(), None) is None
        return has_no_more_norms and has_plain_leaves(module, MIN_PACKED_NUMBERS)

    def shape_of(self, attention: Any) -> tuple[int, int]:
        return attention.width, attention.number

    def forward(  # type: ignore[override]  # a layer has more inputs
        self, states: Tokens, inputs: Float[Tensor, "rows new inputs"], rotary: Positions, masks: Any, cache: Any
    ) -> Tokens:
        """What the layer gives, with rounded weights."""
        if not self.can_read(states, rotary):
            return type(self.module).forward(self.module, states, inputs, rotary, masks, cache)
        return self.read(states, inputs, masks[self.module.self_attn.kind], rotary, cache)

    def look_up(self, query: Any, keys: Any, values: Any, mask: Any) -> Float[Tensor, "rows new heads head_width"]:
        lists = listed(mask, query, keys, values)
        if lists is not None:
            return lists.attend(query, keys, values, self.head_width**-0.5)
        return scaled_dot_product_attention(query, keys, values, mask, enable_gqa=True).transpose(1, 2)
