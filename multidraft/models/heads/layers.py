"""The decoder layer of heads, Llama's or Qwen3's: its weights have the names of transformers, its keys and values go
wherever the caller keeps them, and its mask may be any tree's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import PretrainedConfig
from transformers.activations import ACT2FN
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.models.heads.formats import Settings

Rotary = tuple[Tensor, Tensor]  # cosines and sines, (rows, tokens, width of a head)
Mask = Bool[Tensor, "#rows 1 new slots"] | Float[Tensor, "#rows 1 new slots"]  # true where seen, or what scores gain
FULL, SLIDING = "full_attention", "sliding_attention"


class Drafting:
    """What all heads have: the tokens that they draft, as offsets to the columns (`d2t`) where they are a part."""

    d2t: Tensor | None
    settings: Settings

    def reduce(self: Any, settings: Settings) -> None:
        """Make room for the offsets."""
        self.register_buffer("d2t", torch.zeros(settings.drafted, dtype=torch.long) if settings.is_reduced else None)

    @property
    def ids(self) -> Int[Tensor, " drafted"] | None:
        """The target's token of each column; None where column c is token c."""
        return None if self.d2t is None else torch.arange(len(self.d2t), device=self.d2t.device) + self.d2t


@runtime_checkable
class KeysValues(Protocol):
    """Where keys and values stay, such as `TreeCache(...).cache`, or `Grown`."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Append new keys and values (rows, heads, new, width); all that the new tokens may see, in order of slots."""
        ...


class Grown:
    """Keys and values side by side, through which gradients pass."""

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        if layer in self.layers:
            before = self.layers[layer]
            keys, values = torch.cat([before[0], keys], 2), torch.cat([before[1], values], 2)
        self.layers[layer] = keys, values
        return keys, values


class Turned(nn.Module):
    """Rotary positions of a configuration, whatever kind it asks for."""

    def __init__(self, config: PretrainedConfig):
        super().__init__()
        self.embedding = LlamaRotaryEmbedding(config)  # type: ignore[arg-type]

    def forward(self, like: Tensor, positions: Int[Tensor, "rows new"]) -> Rotary:
        """Cosines and sines at these positions, in the dtype of `like`."""
        return self.embedding(like, positions)


def turn(states: Float[Tensor, "rows heads new width"], rotary: Rotary) -> Float[Tensor, "rows heads new width"]:
    """Queries or keys at their positions; where fewer dimensions turn than there are, the last ones stay."""
    cos, sin = (each[:, None] for each in rotary)
    size = cos.shape[-1]
    turned, rest = states[..., :size], states[..., size:]
    half = torch.cat([-turned[..., size // 2 :], turned[..., : size // 2]], -1)
    return torch.cat([turned * cos + half * sin, rest], -1)


class Attention(nn.Module):
    """Attention whose inputs may be wider than the model; `normed`: queries and keys have norms, as in Qwen3."""

    def __init__(self, config: PretrainedConfig, inputs: int, normed: bool):
        super().__init__()
        heads, own = config.num_attention_heads, config.num_key_value_heads
        self.width = getattr(config, "head_dim", None) or config.hidden_size // heads
        bias = bool(getattr(config, "attention_bias", False))
        self.q_proj = nn.Linear(inputs, heads * self.width, bias=bias)
        self.k_proj = nn.Linear(inputs, own * self.width, bias=bias)
        self.v_proj = nn.Linear(inputs, own * self.width, bias=bias)
        self.o_proj = nn.Linear(heads * self.width, config.hidden_size, bias=bias)
        self.q_norm = norm(config, self.width) if normed else None
        self.k_norm = norm(config, self.width) if normed else None

    def split(self, states: Float[Tensor, "rows new all"]) -> Float[Tensor, "rows heads new width"]:
        """The heads of a projection."""
        return states.unflatten(-1, (-1, self.width)).transpose(1, 2)

    def keys_values(self, states: Float[Tensor, "rows new inputs"], rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys, turned, and values of tokens."""
        keys = self.split(self.k_proj(states))
        keys = keys if self.k_norm is None else self.k_norm(keys)
        return turn(keys, rotary), self.split(self.v_proj(states))

    def queries(
        self, states: Float[Tensor, "rows new inputs"], rotary: Rotary
    ) -> Float[Tensor, "rows heads new width"]:
        """Queries of tokens, turned."""
        queries = self.split(self.q_proj(states))
        return turn(queries if self.q_norm is None else self.q_norm(queries), rotary)

    def forward(
        self, states: Float[Tensor, "rows new inputs"], rotary: Rotary, mask: Mask, cache: KeysValues, layer: int
    ) -> Float[Tensor, "rows new hidden"]:
        """What the tokens read; their keys and values go to the cache first."""
        queries = self.queries(states, rotary)
        keys, values = cache.update(*self.keys_values(states, rotary), layer)
        read = nn.functional.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
        return self.o_proj(read.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """The gated layer of Llama and Qwen."""

    def __init__(self, config: PretrainedConfig):
        super().__init__()
        width, inner, bias = config.hidden_size, config.intermediate_size, bool(getattr(config, "mlp_bias", False))
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)
        self.activation = ACT2FN[config.hidden_act]

    def forward(self, states: Float[Tensor, "rows new hidden"]) -> Float[Tensor, "rows new hidden"]:
        """Each token by itself."""
        return self.down_proj(self.activation(self.gate_proj(states)) * self.up_proj(states))


class Layer(nn.Module):
    """A decoder layer."""

    def __init__(self, config: PretrainedConfig, normed: bool):
        super().__init__()
        self.self_attn = Attention(config, config.hidden_size, normed)
        self.mlp = MLP(config)
        self.input_layernorm = norm(config, config.hidden_size)
        self.post_attention_layernorm = norm(config, config.hidden_size)

    def forward(
        self, states: Float[Tensor, "rows new hidden"], rotary: Rotary, mask: Mask, cache: KeysValues, layer: int
    ) -> Float[Tensor, "rows new hidden"]:
        """The states behind it."""
        states = states + self.self_attn(self.input_layernorm(states), rotary, mask, cache, layer)
        return states + self.mlp(self.post_attention_layernorm(states))


class Body(nn.Module, Drafting):
    """A head of decoder layers: the target's states go in by `fc`, tokens by embeddings, and the last norm's go out."""

    embed_tokens: nn.Embedding
    lm_head: nn.Linear

    def __init__(self, settings: Settings, layers: Iterable[nn.Module]):
        super().__init__()
        config, self.settings, self.config = settings.layer, settings, settings.layer
        width = config.hidden_size
        self.fc = nn.Linear(len(settings.layers) * settings.target_width, width, bias=False)
        self.layers = nn.ModuleList(layers)
        self.norm = norm(config, width)
        self.embed_tokens = nn.Embedding(config.vocab_size, width)
        self.lm_head = nn.Linear(width, settings.drafted, bias=False)
        self.reduce(settings)
        self.rotary, self.kinds = Turned(config), kinds(config)

    def settle(self, device: torch.device) -> None:
        """Compute what no file holds."""
        self.rotary = Turned(self.config).to(device)


class Norm(nn.RMSNorm):
    """A norm in the dtype of its weights: where heads are trained, states are narrower than they."""

    def forward(self, states: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        """Each state by itself."""
        return super().forward(states.to(self.weight.dtype))


def norm(config: PretrainedConfig, width: int) -> Norm:
    """The norm of a configuration."""
    return Norm(width, eps=config.rms_norm_eps)


def kinds(config: PretrainedConfig) -> list[str]:
    """Of each layer, whether it sees all before it or a window."""
    found: Any = getattr(config, "layer_types", None)
    return list(found) if found else [FULL] * config.num_hidden_layers


def mask_of(masks: Mask | Mapping[str, Mask], kind: str) -> Mask:
    """The mask of a kind of layer; one may stand for all."""
    return masks[kind] if isinstance(masks, Mapping) else masks
