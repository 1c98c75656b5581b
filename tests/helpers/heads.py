"""Tiny draft heads with random weights for the tiny models, and what they say of one path, read plainly."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from tiny import VOCABULARY, tiny_model
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, PreTrainedModel, Qwen3Config

from multidraft.models.compat import windows
from multidraft.models.heads.drafters import Head, drafter
from multidraft.models.heads import DFLASH, EAGLE3, MEDUSA, MODULES, Settings

LAYERS, WIDTH = (0, 1, 2), 32
SHAPE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "head_dim": 8}
TWO = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5}
LLAMA, QWEN = LlamaConfig(**SHAPE), Qwen3Config(**SHAPE | TWO | {"use_sliding_window": True, "max_window_layers": 1})
PLAIN = Settings(EAGLE3, LLAMA, LAYERS, VOCABULARY, WIDTH)
BLOCK = replace(PLAIN, kind=DFLASH, layer=QWEN, block=4, mask_token=7)
CASES = {
    "eagle3": PLAIN,
    "eagle3.1": replace(PLAIN, norm_output=True, fc_norm=True, norm_before_residual=True),
    "eagle3 reduced, two layers": replace(PLAIN, layer=QWEN, drafted=20, norm_before_fc=True),
    "dflash": BLOCK,
    "dflash reduced, from anchor": replace(BLOCK, layer=Qwen3Config(**SHAPE), drafted=20, from_anchor=True),
    "dflash, window both ways": replace(BLOCK, causal_window=False),
    "medusa": replace(PLAIN, kind=MEDUSA, layers=(2,), heads=3),
}


def filled(module: Any, seed: int = 3) -> Any:
    """The module with weights N(0, 0.3), its drafted tokens spread over the vocabulary."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    if module.d2t is not None:
        chosen = torch.randperm(VOCABULARY, generator=generator)[: len(module.d2t)].sort().values
        module.d2t.copy_(chosen - torch.arange(len(module.d2t)))
    return module.eval()


@cache
def module_of(name: str) -> Any:
    """The random module of a case."""
    return filled(MODULES[CASES[name].kind](CASES[name]))


def head_of(name: str) -> Head:
    """The random head of a case as a drafter."""
    return drafter(module_of(name))


@torch.no_grad()
def states_of(target: PreTrainedModel, text: list[int], layers: tuple[int, ...]) -> Tensor:
    """The target's states of a text, (tokens, layers, width)."""
    found = target(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.stack([found[layer][0] for layer in layers], 1)


@torch.no_grad()
def said_plainly(name: str, text: list[int], path: list[int], target: PreTrainedModel | None = None) -> Tensor:
    """What the head says at the end of a path below a text, which ends with the root: one row and no tree."""
    module, target = module_of(name), target or tiny_model("llama")
    states = states_of(target, text[:-1], module.settings.layers)
    if name == "medusa":
        return module(states[-1, -1])[min(len(path), module.settings.heads - 1)]
    fused, cache = module.fuse(states.flatten(1)[None]), DynamicCache()
    places = torch.arange(len(text) + 8)
    if name.startswith("dflash"):
        return of_block(module, fused, text, len(path), cache)
    here = torch.tensor([text[1:]])
    masks = {kind: causal(places[: len(text) - 1], window_of(module, kind)) for kind in windows(module.config)}
    last = module(here, fused, places[None, : len(text) - 1], masks, cache)[:, -1:]
    for depth, token in enumerate(path):
        seen = places[: len(text) + depth]
        masks = {kind: causal(seen, window_of(module, kind))[..., -1:, :] for kind in windows(module.config)}
        last = module(torch.tensor([[token]]), last, seen[None, -1:], masks, cache)
    return module.logits(last)[0, 0]


def of_block(module: Any, fused: Tensor, text: list[int], depth: int, cache: DynamicCache) -> Tensor:
    settings, before = module.settings, len(text) - 1
    places = torch.arange(before + settings.block)
    module.remember(fused, places[None, :before], cache)
    masks = {}
    for kind in windows(module.config):
        window = window_of(module, kind)
        distance = places[before:, None] - places
        seen = (distance < window) if window else torch.ones_like(distance, dtype=torch.bool)
        if window:
            seen &= (distance >= 0) if settings.causal_window else (-distance < window)
        masks[kind] = seen[None, None]
    block = module.block(torch.tensor([text[-1]]))
    said = module.logits(module(block, places[None, before:], masks, cache))[0]
    said = said if settings.from_anchor else said[1:]
    return said[min(depth, len(said) - 1)]


def window_of(module: Any, kind: str) -> int | None:
    return module.config.sliding_window if kind == "sliding_attention" else None


def causal(places: Tensor, window: int | None) -> Tensor:
    distance = places[:, None] - places
    return ((distance >= 0) & (distance < (window or len(places) + 1)))[None, None]
