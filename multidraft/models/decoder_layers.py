"""A decoder layer of Llama's kind over few tokens on a CPU: four products where transformers has seven, loops between.

For a few tokens half of a pass is not products but the small operations around them. Here queries, keys and values are
one product, gates with what they let through another, and one loop each turns queries and keys, adds and normalises,
and lets through.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from multidraft.models.compat import GROUPED_ATTENTION
from multidraft.models.fused_loops import let_through, rotate
from multidraft.models.norms import add_and_normalise, epsilon_of, normalise
from multidraft.models.products import product_of
from multidraft.models.replacements import Replacement, is_plain, is_taken_over

NAMES = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")  # that compute what is computed here
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
CLOSE = {torch.bfloat16: 0.02, torch.float32: 1e-5}  # to the largest number of a sample
Tokens = Float[Tensor, "rows new width"]
Positions = tuple[Float[Tensor, "rows new head_width"], Float[Tensor, "rows new head_width"]]


def leaves_of(layer: Any) -> tuple[list[Any], list[Any]]:
    """The linear layers of a decoder layer, and its norms."""
    pairs = zip((layer.self_attn, layer.mlp), PROJECTIONS, strict=True)
    projections = [getattr(part, name) for part, names in pairs for name in names]
    return projections, [layer.input_layernorm, layer.post_attention_layernorm]


def has_plain_leaves(layer: Any, smallest: int = 0) -> bool:
    """Whether they are plain ones on the CPU, of one dtype, with SiLU between, that nothing else uses."""
    projections, norms = leaves_of(layer)
    return (
        all(is_plain(projection, smallest) for projection in projections)
        and all(epsilon_of(norm) is not None for norm in norms)
        and type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and len({part.weight.dtype for part in (*projections, *norms)}) == 1
        and not any(map(is_taken_over, (*projections, *norms, layer.mlp.act_fn)))
    )


class FusedLayer(Replacement):
    """What decoder layers have in common from the normed inputs of their attention on."""

    product_of: Callable[[Sequence[nn.Linear]], Any] = staticmethod(product_of)

    def pack(self) -> None:
        """Pack its weights."""
        attention, mlp, (projections, norms) = self.module.self_attn, self.module.mlp, leaves_of(self.module)
        leaves = [*projections, *norms, mlp.act_fn]
        self.hooks = [hooks for leaf in leaves for hooks in (leaf._forward_hooks, leaf._forward_pre_hooks)]
        self.contents = [leaf.__dict__ for leaf in leaves]
        self.into_heads = self.product_of([attention.q_proj, attention.k_proj, attention.v_proj])
        self.into_gates = self.product_of([mlp.gate_proj, mlp.up_proj])
        self.from_heads, self.from_gates = self.product_of([attention.o_proj]), self.product_of([mlp.down_proj])
        self.first, self.second = [(norm.weight.detach(), float(epsilon_of(norm) or 0)) for norm in norms]
        self.dtype, self.head_width, self.number = self.first[0].dtype, *self.shape_of(attention)
        self.groups = attention.k_proj.out_features // self.head_width

    @abstractmethod
    def shape_of(self, attention: Any) -> tuple[int, int]:
        """The width of a head, and the layer's number in the cache."""

    @abstractmethod
    def look_up(self, query: Any, keys: Any, values: Any, mask: Any) -> Float[Tensor, "rows new heads head_width"]:
        """The attention of queries to keys and values."""

    def is_fresh(self) -> bool:
        is_unused = not any(self.hooks) and not any("forward" in contents for contents in self.contents)
        return is_unused and super().is_fresh()

    def can_read(self, states: Tokens, positions: Positions | None) -> bool:
        """Whether the loops read these."""
        return (
            states.is_cpu
            and states.is_contiguous()
            and states.dtype == self.dtype
            and states.shape[:-1].numel() <= self.into_heads.most_tokens
            and positions is not None
            and positions[0].dtype == self.dtype
            and positions[0].shape == (*states.shape[:-1], self.head_width)
        )

    def read(
        self, states: Tokens, normed: Float[Tensor, "rows new inputs"], mask: Any, positions: Any, cache: Any
    ) -> Tokens:
        """The states with what is read of their normed inputs, and then with what gates let through."""
        attended = self.attend(self.into_heads(normed), mask, positions, cache)
        states, normalised = add_and_normalise(states, self.from_heads(attended), *self.second)
        return states.add_(self.from_gates(let_through(self.into_gates(normalised))))

    def attend(
        self, projected: Float[Tensor, "rows new columns"], mask: Any, positions: Any, cache: Any
    ) -> Float[Tensor, "rows new wide"]:
        """Attention of queries to the keys and values of the cache, which those of new tokens join."""
        rows, new, _ = projected.shape
        parts = projected.view(rows, new, -1, self.head_width)
        rotate(parts, parts.shape[2] - self.groups, *positions)
        sizes = [parts.shape[2] - 2 * self.groups, self.groups, self.groups]
        query, keys, values = parts.transpose(1, 2).split(sizes, 1)
        if cache is not None:
            keys, values = cache.update(keys, values, self.number)
        return self.look_up(query, keys, values, mask).reshape(rows, new, -1)


class DecoderLayer(FusedLayer):
    """A layer of a model of transformers; raises AssertionError where it computes something else."""

    @staticmethod
    def fits(module: nn.Module | None) -> bool:
        if module is None or type(module).__name__ not in NAMES or "forward" in module.__dict__:
            return False
        return has_interface(module) and has_plain_leaves(module)

    def pack(self) -> None:
        super().pack()
        self.try_once()

    def shape_of(self, attention: Any) -> tuple[int, int]:
        return attention.head_dim, attention.layer_idx

    @torch.inference_mode()
    def try_once(self) -> None:
        """Compare it with what the module gives for two rows of three tokens, a tree in the second."""
        random, dtype = torch.Generator().manual_seed(0), self.dtype
        states = torch.randn(2, 3, len(self.first[0]), generator=random).to(dtype)
        positions = tuple(torch.randn(2, 2, 3, self.head_width, generator=random).to(dtype))
        hidden = torch.tensor([[[0, 1, 1], [0, 0, 1], [0, 0, 0]], [[0, 1, 1], [0, 0, 1], [0, 1, 0]]], dtype=torch.bool)
        mask = torch.zeros(2, 1, 3, 3, dtype=dtype).masked_fill(hidden[:, None], torch.finfo(dtype).min)
        ways = self.forward, partial(type(self.module).forward, self.module)
        ours, theirs = (
            way(states, attention_mask=mask, position_embeddings=positions, past_key_values=DynamicCache())
            for way in ways
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[dtype] * theirs.abs().max().item())

    def is_fresh(self) -> bool:
        return has_interface(self.module) and super().is_fresh()

    def forward(  # type: ignore[override]  # a layer has more inputs
        self,
        hidden_states: Tokens,
        attention_mask: Float[Tensor, "rows _ new slots"] | None = None,
        position_embeddings: Positions | None = None,
        past_key_values: Any = None,
        **options: Any,
    ) -> Tokens:
        """What the layer gives."""
        if not self.can_read(hidden_states, position_embeddings):
            options |= dict(position_embeddings=position_embeddings, past_key_values=past_key_values)
            return type(self.module).forward(self.module, hidden_states, attention_mask=attention_mask, **options)
        normed = normalise(hidden_states, *self.first)
        return self.read(hidden_states, normed, attention_mask, position_embeddings, past_key_values)

    def look_up(self, query: Any, keys: Any, values: Any, mask: Any) -> Float[Tensor, "rows new heads head_width"]:
        attention = self.module.self_attn
        interface = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
        return interface(attention, query, keys, values, mask, scaling=attention.scaling)[0]


def has_interface(layer: Any) -> bool:
    """Whether its attention is one that can be called from here."""
    return layer.self_attn.config._attn_implementation in ("sdpa", GROUPED_ATTENTION)
