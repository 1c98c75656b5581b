"""EAGLE-3 and 3.1 (Li et al., 2025): a decoder layer that reads each token beside the target's states before it.

At slot i it reads the embedding of token i + 1 and the target's states at token i, of several layers, put together by
`fc`; its logits are those of token i + 2. Deeper in a tree, where the target has not been, it reads its own state of
the slot's parent instead.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig

from multidraft.models.heads.formats import Settings
from multidraft.models.heads.layers import MLP, Attention, Body, KeysValues, Layer, Mask, Rotary, mask_of, norm


class First(nn.Module):
    """The layer that sees embeddings and states side by side, each normed; what it adds to are the states.

    `before`: it adds to the normed states (`norm_before_residual`).
    """

    def __init__(self, config: PretrainedConfig, normed: bool, before: bool):
        super().__init__()
        self.before = before
        self.self_attn = Attention(config, 2 * config.hidden_size, normed)
        self.mlp = MLP(config)
        self.input_layernorm = norm(config, config.hidden_size)
        self.hidden_norm = norm(config, config.hidden_size)
        self.post_attention_layernorm = norm(config, config.hidden_size)

    def forward(
        self, embedded: Float[Tensor, "rows new hidden"], states: Float[Tensor, "rows new hidden"], rotary: Rotary,
        mask: Mask, cache: KeysValues, layer: int,
    ) -> Float[Tensor, "rows new hidden"]:  # fmt: skip
        """The states behind it."""
        normed = self.hidden_norm(states)
        both = torch.cat([self.input_layernorm(embedded), normed], -1)
        states = (normed if self.before else states) + self.self_attn(both, rotary, mask, cache, layer)
        return states + self.mlp(self.post_attention_layernorm(states))


class Eagle3(Body):
    """The head. Names of weights are those of `speculators`.

    `fuse` makes one state of the target's, `forward` reads tokens with the states before them, `logits` are those of
    `ids`. Masks, positions and keys and values are the caller's, so that the module serves trees and training alike:
    all that is in a step is a function of its arguments.
    """

    def __init__(self, settings: Settings):
        config, width = settings.layer, settings.target_width
        normed = config.model_type == "qwen3"
        first = First(config, normed, settings.norm_before_residual)
        super().__init__(settings, [first, *(Layer(config, normed) for _ in range(1, config.num_hidden_layers))])
        self.input_norm = norm(config, len(settings.layers) * width) if settings.norm_before_fc else None
        self.fc_norm = nn.ModuleList(norm(config, width) for _ in settings.layers) if settings.fc_norm else None

    def fuse(self, features: Float[Tensor, "rows new inputs"]) -> Float[Tensor, "rows new hidden"]:
        """One state of those of the target's layers, which stand side by side."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts: Any = zip(self.fc_norm, features.chunk(len(self.fc_norm), -1), strict=True)
            features = torch.cat([own(part) for own, part in parts], -1)
        return self.fc(features)

    def forward(
        self, tokens: Int[Tensor, "rows new"], states: Float[Tensor, "rows new hidden"],
        positions: Int[Tensor, "rows new"], masks: Mask | Mapping[str, Mask], cache: KeysValues,
    ) -> Float[Tensor, "rows new hidden"]:  # fmt: skip
        """The states of tokens, each of which follows one that has the state beside it; those go to later tokens.

        Keys and values go to the cache. Positions may begin anywhere: only their differences count.
        """
        rotary, embedded = self.rotary(states, positions), self.embed_tokens(tokens).to(self.fc.weight.dtype)
        states = self.layers[0](embedded, states, rotary, mask_of(masks, self.kinds[0]), cache, 0)
        for number, (layer, kind) in enumerate(zip(self.layers[1:], self.kinds[1:], strict=True), 1):
            states = layer(states, rotary, mask_of(masks, kind), cache, number)
        return self.norm(states) if self.settings.norm_output else states

    def logits(self, states: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape drafted"]:
        """What a token's state says of the next one, over the tokens that the head has."""
        normed = states if self.settings.norm_output else self.norm(states)
        return self.lm_head(normed) * self.settings.logit_scale
