"""Tiny random Hugging Face models of many families: clearly different logits, fast, nothing to download."""

from functools import cache

import torch
import transformers
from transformers import AutoModelForCausalLM, PreTrainedModel

VOCABULARY, CONTEXT, WINDOW = 61, 64, 5

COMMON = {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
ROTARY = {**COMMON, "intermediate_size": 48, "max_position_embeddings": CONTEXT, "num_key_value_heads": 2}
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT // 4}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
GPT = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}
FALCON = {**COMMON, "max_position_embeddings": CONTEXT}
HALF = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]}

CONFIGURATIONS = {
    "llama": ("LlamaConfig", ROTARY),
    "llama3 rope": (
        "LlamaConfig",
        {**ROTARY, "rope_scaling": {**LLAMA3, "original_max_position_embeddings": CONTEXT // 4}, "rope_theta": 1e4},
    ),
    "yarn rope": ("LlamaConfig", {**ROTARY, "rope_scaling": YARN, "rope_theta": 1e4}),
    "dynamic rope": ("LlamaConfig", {**ROTARY, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0}}),
    "gpt2": ("GPT2Config", GPT),
    "gptj": ("GPTJConfig", {**GPT, "rotary_dim": 4}),
    "opt": ("OPTConfig", {**COMMON, "ffn_dim": 48, "max_position_embeddings": CONTEXT, "word_embed_proj_dim": 32}),
    "qwen2": ("Qwen2Config", ROTARY),
    "qwen2 window": ("Qwen2Config", {**ROTARY, **HALF}),
    "qwen3": ("Qwen3Config", {**ROTARY, "head_dim": 8}),
    "gemma": ("GemmaConfig", {**ROTARY, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**ROTARY, **MIXED, "head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", {**ROTARY, **MIXED, "head_dim": 8}),
    "olmo": ("OlmoConfig", ROTARY),
    "olmo2": ("Olmo2Config", ROTARY),
    "granite": ("GraniteConfig", {**ROTARY, "attention_multiplier": 0.3, "logits_scaling": 2.0}),
    "cohere": ("CohereConfig", ROTARY),
    "falcon": ("FalconConfig", FALCON),
    "falcon many heads": ("FalconConfig", {**FALCON, "multi_query": False, "parallel_attn": False}),
    "falcon new": ("FalconConfig", {**FALCON, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "mixtral": ("MixtralConfig", {**ROTARY, "num_local_experts": 4}),
    "qwen3 experts": ("Qwen3MoeConfig", {**ROTARY, **EXPERTS}),
    "gpt_oss": ("GptOssConfig", {**ROTARY, **MIXED, "head_dim": 8, "num_local_experts": 4, "rope_scaling": YARN}),
    "gpt_neox": ("GPTNeoXConfig", {**COMMON, "intermediate_size": 48, "max_position_embeddings": CONTEXT}),
    "mistral": ("MistralConfig", {**ROTARY, "sliding_window": None}),
    "mistral window": ("MistralConfig", {**ROTARY, "sliding_window": WINDOW}),
    "phi": ("PhiConfig", ROTARY),
    "phi3 window": ("Phi3Config", {**ROTARY, "sliding_window": WINDOW}),
}
WINDOWED = ["qwen2 window", "gemma2", "gemma3", "mistral window", "phi3 window"]
EAGER_ONLY = ["gemma2", "gptj", "gpt_oss"]  # a soft cap or a sink among the scores has no place in sdpa
CASES = [(name, attention) for name in CONFIGURATIONS for attention in ("sdpa", "eager")]
CASES = [case for case in CASES if case not in [(name, "sdpa") for name in EAGER_ONLY]]


@cache
def tiny_model(name: str, attention: str = "sdpa", **changes: float) -> PreTrainedModel:
    """A model of this family with weights N(0, 0.3), the same at every call."""
    kind, settings = CONFIGURATIONS[name]
    config = getattr(transformers, kind)(**{**settings, **changes}, **NO_IDS)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model
