"""DFlash (2026): one parallel pass drafts a block, with the same law for every node of a level of a tree.

The target's states of the tokens before the block, put together by `fc` and normed, are keys and values of every layer.
The block is its known first token and `mask_token` in the other places; all see each other and all before. Only
the keys and values of those states stay when the next block begins.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.models.heads.formats import Settings
from multidraft.models.heads.layers import Body, KeysValues, Layer, Mask, mask_of, norm


class DFlash(Body):
    """The head. Names of weights are those of `speculators`, which are the original ones.

    `fuse` and `remember` take the target's states in, `forward` reads blocks, `logits` are those of `ids`. With
    `from_anchor` place j of a block says what token j + 1 is, else what token j is (and its first place nothing).
    """

    def __init__(self, settings: Settings):
        config = settings.layer
        normed = config.model_type == "qwen3"
        super().__init__(settings, (Layer(config, normed) for _ in range(config.num_hidden_layers)))
        self.hidden_norm = norm(config, config.hidden_size)

    def fuse(self, features: Float[Tensor, "rows new inputs"]) -> Float[Tensor, "rows new hidden"]:
        """One state of those of the target's layers, which stand side by side."""
        return self.hidden_norm(self.fc(features))

    def remember(
        self, states: Float[Tensor, "rows new hidden"], positions: Int[Tensor, "rows new"], cache: KeysValues
    ) -> None:
        """Put keys and values of the target's fused states into the cache."""
        rotary = self.rotary(states, positions)
        for number, layer in enumerate(self.layers):
            attention: Any = layer.self_attn
            keys, values = attention.keys_values(states, rotary)
            cache.update(keys, values, number)

    def block(self, first: Int[Tensor, " rows"]) -> Int[Tensor, "rows block"]:
        """The tokens of a block in each row: the known one, then masks."""
        return torch.cat(
            [first[:, None], first.new_full((len(first), self.settings.block - 1), self.settings.mask_token)], 1
        )

    def forward(
        self, tokens: Int[Tensor, "rows new"], positions: Int[Tensor, "rows new"],
        masks: Mask | Mapping[str, Mask], cache: KeysValues,
    ) -> Float[Tensor, "rows new hidden"]:  # fmt: skip
        """The states of a block, whose own keys and values go to the cache behind those of the target's states."""
        states = self.embed_tokens(tokens).to(self.fc.weight.dtype) * self.settings.embedding_scale
        rotary = self.rotary(states, positions)
        for number, (layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            states = layer(states, rotary, mask_of(masks, kind), cache, number)
        return states

    def logits(self, states: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape drafted"]:
        """What the states of a block say, over the tokens that the head has."""
        return self.lm_head(self.norm(states)) * self.settings.logit_scale
