"""A decoder layer of Llama's kind over few tokens on a CPU: four products where transformers has seven, loops between.

For a few tokens half of a pass is not products but the small operations around them. Here queries, keys and values are
one product, gates with what they let through another, and one loop each rotates positions, adds and normalises, and
lets through. Numbers are rounded where transformers rounds them.
"""

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from multidraft.models.attention import LOG2_E, NUMBERS, array_at, narrowed, power_of_two, widened
from multidraft.models.compat import GROUPED
from multidraft.models.norms import add_and_normalise, epsilon_of, normalise
from multidraft.models.replacements import Replacement, fits, is_taken_over, product_of
from multidraft.verification.loops import compiled

NAMES = ("LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")  # that compute what is computed here
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj"), ("gate_proj", "up_proj", "down_proj")
CLOSE = {torch.bfloat16: 0.02, torch.float32: 1e-5}  # to the largest number of a sample
Tokens = Float[Tensor, "rows new width"]
Positions = tuple[Float[Tensor, "rows new head_width"], Float[Tensor, "rows new head_width"]]


def parts_of(layer: Any) -> tuple[list[Any], list[Any]]:
    """The linear layers of a decoder layer, and its norms."""
    pairs = zip((layer.self_attn, layer.mlp), PROJECTIONS, strict=True)
    projections = [getattr(part, name) for part, names in pairs for name in names]
    return projections, [layer.input_layernorm, layer.post_attention_layernorm]


def has_interface(layer: Any) -> bool:
    """Whether its attention is one that can be called from here."""
    return layer.self_attn.config._attn_implementation in ("sdpa", GROUPED)


def can_take(module: nn.Module | None) -> bool:
    """Whether it is a decoder layer of a known kind, whose parts are plain ones on the CPU that nothing else uses."""
    if (
        module is None
        or type(module).__name__ not in NAMES
        or "forward" in module.__dict__
        or not has_interface(module)
    ):
        return False
    layer: Any = module
    projections, norms = parts_of(layer)
    return (
        all(fits(projection, 0) for projection in projections)
        and all(epsilon_of(norm) is not None for norm in norms)
        and type(layer.mlp.act_fn).__name__ in ("SiLU", "SiLUActivation")
        and len({part.weight.dtype for part in (*projections, *norms)}) == 1
        and not any(map(is_taken_over, (*projections, *norms, layer.mlp.act_fn)))
    )


class DecoderLayer(Replacement):
    """A layer, packed; raises AssertionError where it computes something else."""

    def pack(self) -> None:
        """Pack its weights, and try it once."""
        attention, mlp, (projections, norms) = self.module.self_attn, self.module.mlp, parts_of(self.module)
        leaves = [*projections, *norms, mlp.act_fn]
        self.hooks = [hooks for leaf in leaves for hooks in (leaf._forward_hooks, leaf._forward_pre_hooks)]
        self.contents = [leaf.__dict__ for leaf in leaves]
        self.into_heads = product_of([attention.q_proj, attention.k_proj, attention.v_proj])
        self.into_gates = product_of([mlp.gate_proj, mlp.up_proj])
        self.from_heads, self.from_gates = product_of([attention.o_proj]), product_of([mlp.down_proj])
        self.first, self.second = [(norm.weight.detach(), epsilon_of(norm) or 0.0) for norm in norms]
        self.width, self.groups = attention.head_dim, attention.k_proj.out_features // attention.head_dim
        self.try_once()

    @torch.inference_mode()
    def try_once(self) -> None:
        """Compare it with what the module gives for two rows of three tokens, a tree in the second."""
        random, dtype = torch.Generator().manual_seed(0), self.first[0].dtype
        states = torch.randn(2, 3, len(self.first[0]), generator=random).to(dtype)
        positions = tuple(torch.randn(2, 2, 3, self.width, generator=random).to(dtype))
        hidden = torch.tensor([[[0, 1, 1], [0, 0, 1], [0, 0, 0]], [[0, 1, 1], [0, 0, 1], [0, 1, 0]]], dtype=torch.bool)
        mask = torch.zeros(2, 1, 3, 3, dtype=dtype).masked_fill(hidden[:, None], torch.finfo(dtype).min)
        ways = self.forward, partial(type(self.module).forward, self.module)
        ours, theirs = (
            way(states, attention_mask=mask, position_embeddings=positions, past_key_values=DynamicCache())
            for way in ways
        )
        torch.testing.assert_close(ours, theirs, rtol=0, atol=CLOSE[dtype] * theirs.abs().max().item())

    def is_fresh(self) -> bool:
        is_unused = not any(self.hooks) and not any("forward" in contents for contents in self.contents)
        return is_unused and has_interface(self.module) and super().is_fresh()

    def can_read(self, states: Tokens, positions: Positions | None) -> bool:
        """Whether the loops read these."""
        return (
            states.is_cpu
            and states.is_contiguous()
            and states.dtype == self.first[0].dtype
            and states.shape[:-1].numel() <= self.into_heads.most_tokens
            and positions is not None
            and positions[0].dtype == states.dtype
            and positions[0].shape == (*states.shape[:-1], self.width)
        )

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
        projected = self.into_heads(normalise(hidden_states, *self.first))
        attended = self.attend(projected, attention_mask, position_embeddings, past_key_values)
        states, normalised = add_and_normalise(hidden_states, self.from_heads(attended), *self.second)
        return states.add_(self.from_gates(let_through(self.into_gates(normalised))))

    def attend(
        self, projected: Float[Tensor, "rows new columns"], mask: Any, positions: Any, cache: Any
    ) -> Float[Tensor, "rows new wide"]:
        """Attention of queries to the keys and values of the cache, which those of new tokens join."""
        rows, new, _ = projected.shape
        parts = projected.view(rows, new, -1, self.width)
        rotate(parts, parts.shape[2] - self.groups, *positions)
        parts = parts.transpose(1, 2)
        query, keys, values = parts.split([parts.shape[1] - 2 * self.groups, self.groups, self.groups], 1)
        attention = self.module.self_attn
        if cache is not None:
            keys, values = cache.update(keys, values, attention.layer_idx)
        interface = ALL_ATTENTION_FUNCTIONS[attention.config._attn_implementation]
        return interface(attention, query, keys, values, mask, scaling=attention.scaling)[0].reshape(rows, new, -1)


def rotate(
    parts: Float[Tensor, "rows new heads width"],
    count: int,
    cosines: Float[Tensor, "rows new width"],
    sines: Float[Tensor, "rows new width"],
) -> None:
    """Turn the first heads of each token by its position, in place."""
    rows, new, heads, width = parts.shape
    cosines, sines = cosines.contiguous(), sines.contiguous()
    addresses = parts.data_ptr(), cosines.data_ptr(), sines.data_ptr()
    rotate_heads(*addresses, rows * new, heads, count, width, NUMBERS[parts.dtype](0))


@partial(compiled, any_order=True)
def rotate_heads(parts, cosines, sines, tokens, heads, count, width, number):
    """The same for numbers at an address."""
    lines = array_at(parts, number, tokens * heads * width).reshape((tokens, heads, 2, width // 2))
    turns = array_at(cosines, number, tokens * width).reshape((tokens, 2, width // 2))
    slopes = array_at(sines, number, tokens * width).reshape((tokens, 2, width // 2))
    for token in range(tokens):
        for head in range(count):
            first, second = lines[token, head, 0], lines[token, head, 1]
            for i in range(width // 2):
                x, y = widened(first[i]), widened(second[i])
                first[i] = turned(x, -y, turns[token, 0, i], slopes[token, 0, i], number)
                second[i] = turned(y, x, turns[token, 1, i], slopes[token, 1, i], number)


@compiled
def turned(along, across, cosine, sine, number):
    """One number of a turned vector, rounded as transformers does."""
    kept = widened(narrowed(along * widened(cosine), number))
    return narrowed(kept + widened(narrowed(across * widened(sine), number)), number)


def let_through(gates: Float[Tensor, "rows new columns"]) -> Float[Tensor, "rows new wide"]:
    """silu(g) u, for gates g before what they let through."""
    rows, new, columns = gates.shape
    outputs = torch.empty(rows, new, columns // 2, dtype=gates.dtype)
    let_lines_through(gates.data_ptr(), outputs.data_ptr(), rows * new, columns // 2, NUMBERS[gates.dtype](0))
    return outputs


@partial(compiled, any_order=True)
def let_lines_through(gates, outputs, count, width, number):
    """The same for lines at an address."""
    sources = array_at(gates, number, 2 * count * width).reshape((count, 2, width))
    results = array_at(outputs, number, count * width).reshape((count, width))
    for line in range(count):
        gate, value, result = sources[line, 0], sources[line, 1], results[line]
        for i in range(width):
            x = widened(gate[i])
            power = power_of_two(-abs(x) * np.float32(LOG2_E))
            opened = narrowed(x * (np.float32(1) if x >= 0 else power) / (np.float32(1) + power), number)
            result[i] = narrowed(widened(opened) * widened(value[i]), number)
