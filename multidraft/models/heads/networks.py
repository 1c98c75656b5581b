"""Draft heads, which read a target's hidden states: EAGLE-3, DFlash and Medusa. Weights are named as in `speculators`.

EAGLE-3 and 3.1 (Li et al., 2025): decoder layers that read each token beside the target's states before it. At slot i
they read the embedding of token i + 1 and the target's states at token i, of several layers, put together by `fc`; the
logits are those of token i + 2. Deeper in a tree, where the target has not been, they read their own state of the
slot's parent instead.

DFlash (2026): one parallel pass drafts a block, with the same law for every node of a level of a tree. The target's
states of the tokens before the block, put together by `fc` and normed, are keys and values of every layer. The block is
its known first token and `mask_token` in the other places; all see each other and all before. Only the keys and values
of those states stay when the next block begins.

Medusa (Cai et al., 2024): heads on the target's last state. From the state at token i, with token i + 1 known, head h
gives the law of token i + 2 + h, whatever stands between.

Masks, positions and keys and values are the caller's, so that a module serves trees and training alike.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import Cache, PretrainedConfig
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRotaryEmbedding
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from multidraft.models.huggingface.compat import windows

KINDS = EAGLE3, DFLASH, MEDUSA = "eagle3", "dflash", "medusa"
MAX_QUERIES = 256  # of whom all scores are in memory at once, where attention is made of products
NewTokens = Int[Tensor, "rows new"]
States = Float[Tensor, "rows new hidden"]
Inputs = Float[Tensor, "rows new inputs"]  # of an attention or of `fc`, which may be wider
Heads = Float[Tensor, "rows heads new width"]
KeyHeads = Float[Tensor, "rows key_heads slots width"]  # keys or values, of which several heads share one
Vectors = Float[Tensor, "*shape width"]
Rotary = tuple[Tensor, Tensor]  # cosines and sines, (rows, tokens, width of a head)
AttentionMask = Bool[Tensor, "#rows 1 new slots"] | Float[Tensor, "#rows 1 new slots"]  # seen, or what scores gain
Masks = AttentionMask | Mapping[str, AttentionMask]  # by type of layer, as in `windows`, or one for all


@dataclass(frozen=True)
class Settings:
    """What a head's `config.json` says."""

    kind: str
    layer: PretrainedConfig  # of its decoder layers, Llama's or Qwen3's; `vocab_size` is the target's
    layers: tuple[int, ...]  # of the target, whose states it reads
    drafted: int  # tokens that it has
    target_width: int
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    logit_scale: float = 1.0
    block: int = 0  # DFlash: tokens of a block, the one that is known among them
    mask_token: int = 0  # DFlash: stands for the others
    from_anchor: bool = False  # DFlash: the known token's place says what follows it
    causal_window: bool = True  # DFlash: in layers with a window a block's token sees none behind it
    embedding_scale: float = 1.0
    heads: int = 0  # Medusa
    depth: int = 1  # Medusa: layers of each head

    @property
    def is_reduced(self) -> bool:
        """Whether it has only some of the target's tokens."""
        return self.drafted != self.layer.vocab_size


class Norm(nn.RMSNorm):
    """A norm in the dtype of its weights: where heads are trained, states are narrower than they."""

    def __init__(self, config: PretrainedConfig, width: int):
        super().__init__(width, eps=config.rms_norm_eps)

    def forward(self, states: Vectors) -> Vectors:
        """Vectors state by itself."""
        return super().forward(states.to(self.weight.dtype))


def turn(states: Heads, rotary: Rotary) -> Heads:
    """Queries or keys at their positions; where fewer dimensions turn than there are, the last ones stay."""
    cos, sin = (part[:, None] for part in rotary)
    size = cos.shape[-1]
    turned, rest = states[..., :size], states[..., size:]
    half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
    return torch.cat([turned * cos + half * sin, rest], -1)


def attend(queries: Heads, keys: KeyHeads, values: KeyHeads, mask: AttentionMask) -> Heads:
    """What queries read of the values whose keys they see.

    On a GPU it is made of products where nothing is learnt: PyTorch gives masked attention to cuDNN there, which plans
    for 0.1 seconds at every new number of keys, and a step of a tree brings one.
    """
    if queries.is_cuda and mask.is_floating_point() and not torch.is_grad_enabled():
        return attend_by_products(queries, keys, values, mask)
    return nn.functional.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)


def attend_by_products(
    queries: Heads, keys: KeyHeads, values: KeyHeads, mask: Float[Tensor, "#rows 1 new slots"]
) -> Heads:
    """The same, some queries at a time: all their scores are in memory at once."""
    results, shared = list[Tensor](), (keys.shape[1], queries.shape[1] // keys.shape[1])
    for some, seen in zip(queries.split(MAX_QUERIES, 2), mask.split(MAX_QUERIES, 2), strict=True):
        grouped = (some * some.shape[-1] ** -0.5).unflatten(1, shared).flatten(2, 3)
        scores = (grouped @ keys.mT).unflatten(2, (shared[1], -1)) + seen[:, None]
        weights = scores.softmax(-1, dtype=torch.float32).to(values.dtype).flatten(2, 3)
        results.append((weights @ values).unflatten(2, (shared[1], -1)).flatten(1, 2))
    return results[0] if len(results) == 1 else torch.cat(results, 2)


class Attention(nn.Module):
    """Attention of a layer, whose inputs may be wider than the model; queries and keys have norms in Qwen3."""

    def __init__(self, config: PretrainedConfig, number: int, inputs: int):
        super().__init__()
        heads, key_heads, normed = config.num_attention_heads, config.num_key_value_heads, config.model_type == "qwen3"
        kinds = getattr(config, "layer_types", None) or [*windows(config)] * config.num_hidden_layers
        self.number, self.kind = number, kinds[number]
        self.width = getattr(config, "head_dim", None) or config.hidden_size // heads
        bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = nn.Linear(inputs, heads * self.width, bias=bias)
        self.k_proj = nn.Linear(inputs, key_heads * self.width, bias=bias)
        self.v_proj = nn.Linear(inputs, key_heads * self.width, bias=bias)
        self.o_proj = nn.Linear(heads * self.width, config.hidden_size, bias=bias)
        self.q_norm, self.k_norm = (Norm(config, self.width) if normed else nn.Identity() for _ in range(2))

    def split(self, states: Float[Tensor, "rows new all"]) -> Heads:
        """The heads of a projection."""
        return states.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def remember(self, states: Inputs, rotary: Rotary, cache: Cache) -> tuple[Tensor, Tensor]:
        """Put the tokens' keys, turned, and values into the cache; all that it holds of this layer."""
        keys, values = self.k_norm(self.split(self.k_proj(states))), self.split(self.v_proj(states))
        return cache.update(turn(keys, rotary), values, self.number)

    def forward(self, states: Inputs, rotary: Rotary, masks: Masks, cache: Cache) -> States:
        """What the tokens read; their keys and values go to the cache first."""
        queries = turn(self.q_norm(self.split(self.q_proj(states))), rotary)
        keys, values = self.remember(states, rotary, cache)
        mask = masks[self.kind] if isinstance(masks, Mapping) else masks
        return self.o_proj(attend(queries, keys, values, mask).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """A decoder layer, Llama's or Qwen3's; `inputs` of the model's width stand side by side where it attends."""

    def __init__(self, config: PretrainedConfig, number: int, inputs: int = 1):
        super().__init__()
        self.self_attn = Attention(config, number, inputs * config.hidden_size)
        self.mlp = Qwen3MLP(config) if config.model_type == "qwen3" else LlamaMLP(config)
        self.input_layernorm = Norm(config, config.hidden_size)
        self.post_attention_layernorm = Norm(config, config.hidden_size)

    def forward(self, states: States, inputs: Inputs, *seen: Any) -> States:
        """The states with what is read of the inputs, and then with the gated layer's; `seen` is for the attention."""
        states = states + self.self_attn(inputs, *seen)
        return states + self.mlp(self.post_attention_layernorm(states))


class Drafting(nn.Module):
    """What all heads have: the tokens that they draft, as offsets to the columns (`d2t`) where they are a part."""

    d2t: Tensor | None

    def __init__(self, settings: Settings):
        super().__init__()
        self.settings = settings
        self.register_buffer("d2t", torch.zeros(settings.drafted, dtype=torch.long) if settings.is_reduced else None)

    @property
    def ids(self) -> Int[Tensor, " drafted"] | None:
        """The target's token of each column; None where column c is token c."""
        return None if self.d2t is None else torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t


class Body(Drafting):
    """A head of decoder layers: the target's states go in by `fc`, tokens by embeddings, and the last norm's go out."""

    inputs_of_first = 1

    def __init__(self, settings: Settings):
        super().__init__(settings)
        config = self.config = settings.layer
        width, inputs = config.hidden_size, [self.inputs_of_first] + [1] * (config.num_hidden_layers - 1)
        self.fc = nn.Linear(len(settings.layers) * settings.target_width, width, bias=False)
        self.layers = nn.ModuleList(Layer(config, number, count) for number, count in enumerate(inputs))
        self.norm = Norm(config, width)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.lm_head = nn.Linear(width, settings.drafted, bias=False)
        self.rotary = LlamaRotaryEmbedding(config)  # type: ignore[arg-type]  # of whatever kind it asks for

    def embed(self, tokens: NewTokens) -> States:
        """Tokens as states."""
        weight, scale = self.embed_tokens.weight, self.settings.embedding_scale
        known = tokens.clamp(max=len(weight) - 1)  # a target that has been resized since has more
        states = nn.functional.embedding(known, weight).to(self.fc.weight.dtype)
        return states if scale == 1 else states * scale

    def logits(self, states: Float[Tensor, "*shape hidden"]) -> Float[Tensor, "*shape drafted"]:
        """What states say of the next token, over the tokens that the head has."""
        normed = states if self.settings.norm_output else self.norm(states)
        return self.lm_head(normed) * self.settings.logit_scale


class Eagle3(Body):
    """EAGLE-3: `fuse` makes one state of the target's, `forward` reads tokens with the states before them."""

    inputs_of_first = 2  # embeddings and states, each normed

    def __init__(self, settings: Settings):
        super().__init__(settings)
        config, width, count = settings.layer, settings.target_width, len(settings.layers)
        self.layers[0].hidden_norm = Norm(config, config.hidden_size)
        self.input_norm = Norm(config, count * width) if settings.norm_before_fc else None
        self.fc_norm = nn.ModuleList(Norm(config, width) for _ in range(count)) if settings.fc_norm else None

    def fuse(self, features: Inputs) -> States:
        """One state of those of the target's layers, which stand side by side."""
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts: Any = zip(self.fc_norm, features.chunk(len(self.fc_norm), -1), strict=True)
            features = torch.cat([norm(part) for norm, part in parts], -1)
        return self.fc(features)

    def forward(self, tokens: NewTokens, states: States, positions: NewTokens, masks: Masks, cache: Cache) -> States:
        """The states of tokens, each of which follows one that has the state beside it; those go to later tokens.

        Keys and values go to the cache. Positions may begin anywhere: only their differences count.
        """
        first, *others = list[Any](self.layers)
        seen, normed = (self.rotary(states, positions), masks, cache), first.hidden_norm(states)
        both = torch.cat([first.input_layernorm(self.embed(tokens)), normed], -1)
        states = first(normed if self.settings.norm_before_residual else states, both, *seen)
        for layer in others:
            states = layer(states, layer.input_layernorm(states), *seen)
        return self.norm(states) if self.settings.norm_output else states


class DFlash(Body):
    """DFlash: `fuse` and `remember` take the target's states in, `forward` reads blocks.

    With `from_anchor` place j of a block says what token j + 1 is, else what token j is (and its first place nothing).
    """

    def __init__(self, settings: Settings):
        super().__init__(settings)
        self.hidden_norm = Norm(settings.layer, settings.layer.hidden_size)

    def fuse(self, features: Inputs) -> States:
        """One state of those of the target's layers, which stand side by side."""
        return self.hidden_norm(self.fc(features))

    def remember(self, states: States, positions: NewTokens, cache: Cache) -> None:
        """Put keys and values of the target's fused states into the cache."""
        rotary = self.rotary(states, positions)
        for layer in list[Any](self.layers):
            layer.self_attn.remember(states, rotary, cache)

    def block(self, first: Int[Tensor, " rows"]) -> Int[Tensor, "rows block"]:
        """The tokens of a block in each row: the known one, then masks."""
        block = first.new_full((len(first), self.settings.block), self.settings.mask_token)
        block[:, 0] = first
        return block

    def forward(self, tokens: NewTokens, positions: NewTokens, masks: Masks, cache: Cache) -> States:
        """The states of a block, whose own keys and values go to the cache behind those of the target's states."""
        states = self.embed(tokens)
        rotary = self.rotary(states, positions)
        for layer in list[Any](self.layers):
            states = layer(states, layer.input_layernorm(states), rotary, masks, cache)
        return states


class MedusaBlock(nn.Module):
    """Medusa's layer, which adds to what it reads: `x + SiLU(W x + b)`."""

    def __init__(self, width: int):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, states: Vectors) -> Vectors:
        """Vectors state by itself."""
        return states + nn.functional.silu(self.linear(states))


class Medusa(Drafting, nn.ModuleList):
    """Medusa's heads, each some layers and an output: weights are `{head}.{layer}.linear.weight` and so on."""

    def __init__(self, settings: Settings):
        super().__init__(settings)
        width = settings.target_width
        for _ in range(settings.heads):
            output = nn.Linear(width, settings.drafted, bias=False)
            self.append(nn.Sequential(*(MedusaBlock(width) for _ in range(settings.depth)), output))

    def fuse(self, features: Float[Tensor, "rows new width"]) -> Float[Tensor, "rows new width"]:
        """The target's last states, normed, as they are."""
        return features

    def forward(self, states: Vectors) -> Float[Tensor, "heads *shape drafted"]:
        """What every head says."""
        return torch.stack([head(states) for head in self])


AnyHead = Eagle3 | DFlash | Medusa
MODULES: dict[str, Any] = {EAGLE3: Eagle3, DFLASH: DFlash, MEDUSA: Medusa}
