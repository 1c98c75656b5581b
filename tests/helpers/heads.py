"""Tiny draft heads with random weights for the tiny models, and what they say of one path, read plainly."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from tiny import VOCABULARY, tiny_model
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, PreTrainedModel, Qwen3Config

from multidraft.models.heads.drafters import Head, drafter
from multidraft.models.heads.networks import DFLASH, EAGLE3, MEDUSA, MODULES, Settings
from multidraft.models.huggingface.compat import windows

LAYERS, WIDTH = (0, 1, 2), 32
SHAPE: dict[str, Any] = {"vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48}
SHAPE |= {"num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1, "head_dim": 8}
TWO = {"num_hidden_layers": 2, "layer_types": ["full_attention", "sliding_attention"], "sliding_window": 5}
LLAMA, QWEN = LlamaConfig(**SHAPE), Qwen3Config(**SHAPE | TWO | {"use_sliding_window": True, "max_window_layers": 1})
EAGLE_SETTINGS = Settings(EAGLE3, LLAMA, LAYERS, VOCABULARY, WIDTH)
DFLASH_SETTINGS = replace(EAGLE_SETTINGS, kind=DFLASH, layer=QWEN, block=4, mask_token=7)
CASES = {
    "eagle3": EAGLE_SETTINGS,
    "eagle3.1": replace(EAGLE_SETTINGS, norm_output=True, fc_norm=True, norm_before_residual=True),
    "eagle3 reduced, two layers": replace(EAGLE_SETTINGS, layer=QWEN, drafted=20, norm_before_fc=True),
    "dflash": DFLASH_SETTINGS,
    "dflash reduced, from anchor": replace(DFLASH_SETTINGS, layer=Qwen3Config(**SHAPE), drafted=20, from_anchor=True),
    "dflash, window both ways": replace(DFLASH_SETTINGS, causal_window=False),
    "medusa": replace(EAGLE_SETTINGS, kind=MEDUSA, layers=(2,), heads=3),
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
    hidden_states = target(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states
    return torch.stack([hidden_states[layer][0] for layer in layers], 1)


def plain_logits(name: str, text: list[int], path: list[int]) -> Tensor:
    """What the head of a case says at the end of a path below a text of the tiny Llama's, which ends with the root."""
    module = module_of(name)
    return logits_along(module, states_of(tiny_model("llama"), text[:-1], module.settings.layers), text, path)


@torch.no_grad()
def logits_along(module: Any, states: Tensor, text: list[int], path: list[int]) -> Tensor:
    """The same of any module, from the states before the root: one row and no tree."""
    settings, fused, cache = module.settings, module.fuse(states.flatten(1)[None]), DynamicCache()
    root = len(text) - 1
    if settings.kind == MEDUSA:
        return module[min(len(path), settings.heads - 1)](fused[0, -1])
    if settings.kind == DFLASH:
        module.remember(fused, torch.arange(root)[None], cache)
        places = torch.arange(root, root + settings.block)
        block = module.block(torch.tensor([text[-1]]))
        logits = module.logits(module(block, places[None], masks(module, places, root + settings.block), cache))[0]
        logits = logits if settings.from_anchor else logits[1:]
        return logits[min(len(path), len(logits) - 1)]
    places = torch.arange(root)
    last = module(torch.tensor([text[1:]]), fused, places[None], masks(module, places, root), cache)[:, -1:]
    for place, token in enumerate(path, root):
        token_place = torch.tensor([place])
        last = module(torch.tensor([[token]]), last, token_place[None], masks(module, token_place, place + 1), cache)
    return module.logits(last)[0, 0]


def own_text(out: Path) -> None:
    """What the embedded target has written for `train-head --self` before it was stopped: short texts, and enough."""
    out.mkdir(exist_ok=True)
    texts = ["Once upon a time", "It was a dark night", "The old house stood", "He looked at the sea"] * 4
    records = [{"id": f"self/{n}", "text": text, "tokens": 8} for n, text in enumerate(texts)]
    (out / "text.jsonl").write_text("".join(f"{json.dumps(record)}\n" for record in records))


def masks(module: Any, places: Tensor, end: int) -> dict[str, Tensor]:
    """What tokens at these places see of all before the end; in a block those behind them too, in windows if it may."""
    settings, distance = module.settings, places[:, None] - torch.arange(end)
    is_block = settings.kind == DFLASH
    masks_by_kind = {}
    for kind, window in windows(module.config).items():
        seen = distance < (window or end + 1)
        if is_block and window and not settings.causal_window:
            seen &= -distance < window
        elif window or not is_block:
            seen &= distance >= 0
        masks_by_kind[kind] = seen[None, None]
    return masks_by_kind
