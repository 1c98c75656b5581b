"""A tiny model cut from a large one, and what it says by plain arithmetic, to hold a library's answers against.

Its matrices are corners of the model's, one at least of each type of weights, so that every kernel that the model needs
computes. It is a Llama of two layers whose matrices are all of one shape. The norms of its attention are such that what
a token attends to shows in the logits, whatever the size of the model's weights; others are one.
"""

from collections.abc import Callable, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

from multidraft.errors import optional
from multidraft.models.gguf import header

WIDTH, HEADS, LAYERS = 256, 4, 2  # a block of the coarsest types has 256 weights
CONTEXT, ROPE_BASE, EPSILON, DEVIATION = 512, 10_000.0, 1e-5, 2.0
LAYER_MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
MATRICES = ("token_embd", "output", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in LAYER_MATRICES))
TEXT_TOKENS = 80  # of a text by which norms are set
ROUNDED_TOGETHER, SMALLEST = 32, 1e-9  # numbers that share a scale; a scale, where all are zero
NORMS = ("output_norm", *(f"blk.{layer}.{name}" for layer in range(LAYERS) for name in ("attn_norm", "ffn_norm")))


class Corner(NamedTuple):
    """The first rows of a matrix, cut off behind their first weights: bytes, and their type by ggml's number."""

    kind: int
    rows: UInt8[np.ndarray, "rows bytes"]


def corners(path: Path) -> dict[int, list[Corner]]:
    """By type of weights the corners of a model's first matrices, as many as a sample may need."""
    found: dict[int, list[Corner]] = {}
    for part in header.parts(path):
        for _, kind, sizes, place in header.header_of(part).tensors:
            is_known = kind in header.BLOCKS and len(sizes) > 1 and min(sizes[:2]) >= WIDTH
            if is_known and len(of_kind := found.setdefault(kind, [])) < len(MATRICES):
                block, size = header.BLOCKS[kind]
                rows = np.memmap(part, np.uint8, "r", place, (WIDTH, sizes[0] // block * size))
                of_kind.append(Corner(kind, np.array(rows[:, : WIDTH // block * size])))
    return found


def matrices(path: Path) -> dict[str, Corner]:
    """The sample's matrices by name, their types by turns; none where the model's are too small."""
    by_type = [cycle(corners) for _, corners in sorted(corners(path).items())]
    return {name: next(by_type[index % len(by_type)]) for index, name in enumerate(MATRICES)} if by_type else {}


def write(matrices: dict[str, Corner], path: Path) -> None:
    """Write the sample as a GGUF file without a tokenizer."""
    gguf: Any = optional("gguf", "the package gguf", "gguf")
    writer = gguf.GGUFWriter(path, "llama")
    for add, size in (
        (writer.add_context_length, CONTEXT),
        (writer.add_embedding_length, WIDTH),
        (writer.add_block_count, LAYERS),
        (writer.add_feed_forward_length, WIDTH),
        (writer.add_head_count, HEADS),
        (writer.add_head_count_kv, HEADS),
        (writer.add_layer_norm_rms_eps, EPSILON),
        (writer.add_rope_freq_base, ROPE_BASE),
        (writer.add_rope_dimension_count, WIDTH // HEADS),
        (writer.add_vocab_size, WIDTH),
        (writer.add_tokenizer_model, "no_vocab"),
    ):
        add(size)
    for name, corner in matrices.items():
        writer.add_tensor(f"{name}.weight", corner.rows, raw_dtype=gguf.GGMLQuantizationType(corner.kind))
    norms = dict.fromkeys(NORMS, 1.0)
    norms |= {f"blk.{layer}.attn_norm": norm for layer, norm in enumerate(attention_norms(weights_of(matrices)))}
    for name, norm in norms.items():
        writer.add_tensor(f"{name}.weight", np.full(WIDTH, norm, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def weights_of(matrices: dict[str, Corner]) -> dict[str, Float[np.ndarray, "rows weights"]]:
    """The sample's matrices as numbers, in float64."""
    gguf: Any = optional("gguf", "the package gguf", "gguf")
    return {
        name: gguf.quants.dequantize(corner.rows, gguf.GGMLQuantizationType(corner.kind)).astype(np.float64)
        for name, corner in matrices.items()
    }


def logits(
    matrices: dict[str, Corner], tokens: Sequence[int], *, is_rounded: bool = False
) -> Float[np.ndarray, "tokens vocabulary"]:
    """What the sample says after each token of a text, in float64; or as kernels do that round what they multiply."""
    weights = weights_of(matrices)
    states = weights["token_embd"][list(tokens)]
    for layer, norm in enumerate(attention_norms(weights)):
        states = states_after(weights, layer, norm, states, in_eight_bits if is_rounded else np.asarray)
    return normalisation(states) @ weights["output"].T


def attention_norms(weights: dict[str, Float[np.ndarray, "rows weights"]]) -> list[float]:
    """The norm of each layer's attention by which its scores deviate by `DEVIATION`.

    A smaller one would hide which tokens are attended to; a larger one makes errors of rounding large.
    """
    norms, states = [], weights["token_embd"][:TEXT_TOKENS]
    for layer in range(LAYERS):
        query, key = (weights[f"blk.{layer}.{name}"].T for name in LAYER_MATRICES[:2])
        inputs = normalisation(states)
        scores = scores_of(rotation(inputs @ query), rotation(inputs @ key))
        norms.append(float(np.float32(np.sqrt(DEVIATION / max(scores[np.isfinite(scores)].std(), SMALLEST)))))
        states = states_after(weights, layer, norms[-1], states)
    return norms


def states_after(
    weights: dict[str, Float[np.ndarray, "rows weights"]],
    layer: int,
    norm: float,
    states: np.ndarray,
    taken: Callable[[np.ndarray], np.ndarray] = np.asarray,
) -> Float[np.ndarray, "tokens width"]:
    """The states of a text's tokens after a layer, whose products take their inputs in some form."""
    query, key, value, out, gate, up, down = (weights[f"blk.{layer}.{name}"].T for name in LAYER_MATRICES)
    inputs = taken(norm * normalisation(states))
    attended = attention(rotation(inputs @ query), rotation(inputs @ key), by_head(inputs @ value))
    states = states + taken(attended) @ out
    inputs = taken(normalisation(states))
    gates = inputs @ gate
    return states + taken(gates / (1 + np.exp(-gates)) * (inputs @ up)) @ down


def in_eight_bits(states: Float[np.ndarray, "tokens width"]) -> Float[np.ndarray, "tokens width"]:
    """States in eight bits, each block of some by its largest."""
    blocks = states.reshape(len(states), -1, ROUNDED_TOGETHER)
    step = np.maximum(np.abs(blocks).max(-1, keepdims=True) / np.iinfo(np.int8).max, SMALLEST)
    return (np.round(blocks / step) * step).reshape(states.shape)


def normalisation(states: Float[np.ndarray, "tokens width"]) -> Float[np.ndarray, "tokens width"]:
    """States of mean square one."""
    return states / np.sqrt((states**2).mean(-1, keepdims=True) + EPSILON)


def by_head(states: Float[np.ndarray, "tokens width"]) -> Float[np.ndarray, "heads tokens size"]:
    """States, cut into heads."""
    return states.reshape(len(states), HEADS, -1).swapaxes(0, 1)


def rotation(states: Float[np.ndarray, "tokens width"]) -> Float[np.ndarray, "heads tokens size"]:
    """States by head, with neighbours turned by their position, as Llama files have it."""
    heads = by_head(states)
    size = heads.shape[-1]
    angles = np.outer(np.arange(len(states)), ROPE_BASE ** -(np.arange(0, size, 2) / size))
    pairs = heads.reshape(*heads.shape[:2], size // 2, 2)
    first, second = pairs[..., 0], pairs[..., 1]
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.stack([first * cosine - second * sine, first * sine + second * cosine], -1).reshape(heads.shape)


def scores_of(query: np.ndarray, key: np.ndarray) -> Float[np.ndarray, "heads tokens tokens"]:
    """By how much each token attends to others; nothing to later ones."""
    scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
    scores[:, *np.triu_indices(scores.shape[-1], 1)] = -np.inf
    return scores


def attention(query: np.ndarray, key: np.ndarray, value: np.ndarray) -> Float[np.ndarray, "tokens width"]:
    """What each token attends to of those up to it; heads side by side."""
    scores = scores_of(query, key)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return ((shares / shares.sum(-1, keepdims=True)) @ value).swapaxes(0, 1).reshape(query.shape[1], -1)
