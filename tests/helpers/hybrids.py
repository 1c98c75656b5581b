"""Tiny random models that masks cannot read trees of: with recurrent states, or with ways of their own to see."""

from functools import cache

import torch
import transformers
from tiny import COMMON, CONTEXT, NO_IDS, ROTARY, VOCABULARY, WINDOW
from transformers import AutoModelForCausalLM, PreTrainedModel

NETS = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
NETS |= {"layer_types": ["linear_attention", "full_attention", "linear_attention"], "num_hidden_layers": 3}
STATE = {"mamba_d_state": 8, "mamba_n_heads": 4, "mamba_d_head": 16, "mamba_n_groups": 1, "mamba_chunk_size": 4}
HEADS = {"head_dim": 16, "n_groups": 1, "chunk_size": 4}
MAMBA = {**HEADS, "num_heads": 4, "state_size": 8}
NEMOTRON = {**HEADS, "mamba_num_heads": 4, "mamba_head_dim": 16, "ssm_state_size": 8, "hybrid_override_pattern": "M*"}
MANY = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 24}
FEW = {"num_local_experts": 2, "num_experts_per_tok": 1, "shared_intermediate_size": 24, "intermediate_size_mlp": 48}
GPT = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": CONTEXT}
LOCAL = {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW}

ONE_PASS = {
    "qwen3_next": ("Qwen3NextConfig", {**ROTARY, **NETS, **MANY, "head_dim": 8}),
    "qwen3_5": ("Qwen3_5TextConfig", {**ROTARY, **NETS, "head_dim": 8}),
    "olmo_hybrid": ("OlmoHybridConfig", {**ROTARY, **NETS}),
}
AS_PATHS = {
    "lfm2": ("Lfm2Config", {**ROTARY, "layer_types": ["conv", "full_attention"], "block_auto_adjust_ff_dim": False}),
    "bamba": ("BambaConfig", {**ROTARY, **STATE, "attn_layer_indices": [1]}),
    "falcon_h1": ("FalconH1Config", {**ROTARY, **STATE, "mamba_d_ssm": 64}),
    "mamba2": ("Mamba2Config", {**COMMON, **MAMBA}),
    "mamba": ("MambaConfig", COMMON),
}
MORE = {  # the general way is one and the same for all
    "jamba": ("JambaConfig", {**ROTARY, "num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
    "nemotron_h": ("NemotronHConfig", {**ROTARY, **NEMOTRON}),
    "granitemoehybrid": ("GraniteMoeHybridConfig", {**ROTARY, **STATE, **FEW, "layer_types": ["mamba", "attention"]}),
    "minimax": (
        "MiniMaxConfig",
        {**ROTARY, **FEW, "block_size": 4, "layer_types": ["linear_attention", "full_attention"]},
    ),
    "llama4": ("Llama4TextConfig", {**ROTARY, **FEW, "attention_chunk_size": WINDOW, "head_dim": 8}),
    "bloom": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_layer": 2, "n_head": 4}),
    "gpt_neo": ("GPTNeoConfig", {**GPT, **LOCAL}),
}
HYBRIDS = ONE_PASS | AS_PATHS | MORE


@cache
def hybrid(name: str, **changes: int) -> PreTrainedModel:
    """A model of this family with weights N(0, 0.3), the same at every call."""
    kind, settings = HYBRIDS[name]
    config = getattr(transformers, kind)(**{**settings, **changes}, **NO_IDS)
    model = AutoModelForCausalLM.from_config(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model
