"""Tiny random models with a recurrent state, of many families."""

from functools import cache

import torch
import transformers
from tiny import COMMON, NO_IDS, ROTARY, VOCABULARY
from transformers import AutoModelForCausalLM, PreTrainedModel

NETS = {
    "linear_num_value_heads": 4,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "num_hidden_layers": 3,
}
STATE = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 4}
EXPERTS = {"num_experts_per_tok": 1, "num_local_experts": 2, "shared_intermediate_size": 24}
NEXT = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
HYBRIDS = {
    "qwen3_next": ("Qwen3NextConfig", {**ROTARY, **NETS, **NEXT, "head_dim": 8}),
    "qwen3_5": ("Qwen3_5TextConfig", {**ROTARY, **NETS, "head_dim": 8}),
    "olmo_hybrid": ("OlmoHybridConfig", {**ROTARY, **NETS}),
    "lfm2": ("Lfm2Config", {**ROTARY, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "bamba": ("BambaConfig", {**ROTARY, **STATE, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", {**ROTARY, **STATE, "mamba_d_ssm": 64}),
    "mamba2": (
        "Mamba2Config",
        {**COMMON, "num_heads": 4, "head_dim": 16, "state_size": 8, "n_groups": 1, "chunk_size": 4},
    ),
    "mamba": ("MambaConfig", COMMON),
    "jamba": ("JambaConfig", {**ROTARY, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **ROTARY,
            "mamba_num_heads": 4,
            "mamba_head_dim": 16,
            "ssm_state_size": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "hybrid_override_pattern": "M*",
            "head_dim": 8,
        },
    ),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {**ROTARY, **STATE, **EXPERTS, "layer_types": ["mamba", "attention"]},
    ),
    "minimax": (
        "MiniMaxConfig",
        {**ROTARY, "num_local_experts": 2, "block_size": 4, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "llama4": (
        "Llama4TextConfig",
        {**ROTARY, "intermediate_size_mlp": 48, "num_local_experts": 2, "attention_chunk_size": 5, "head_dim": 8},
    ),
    "bloom": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "vocab_size": VOCABULARY,
            "hidden_size": 32,
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 5,
            "max_position_embeddings": 64,
        },
    ),
}


@cache
def hybrid(name: str) -> PreTrainedModel:
    """A model of this family with weights N(0, 0.3), the same at every call."""
    kind, settings = HYBRIDS[name]
    config = getattr(transformers, kind)(**settings, **NO_IDS)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model
