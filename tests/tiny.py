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
HALF = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": ["full_attention", "sliding_attention"]}

CONFIGURATIONS = {
    "llama": ("LlamaConfig", ROTARY),
    "gpt2": ("GPT2Config", {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT}),
    "opt": ("OPTConfig", {**COMMON, "ffn_dim": 48, "max_position_embeddings": CONTEXT, "word_embed_proj_dim": 32}),
    "qwen2": ("Qwen2Config", ROTARY),
    "qwen2 window": ("Qwen2Config", {**ROTARY, **HALF}),
    "qwen3": ("Qwen3Config", {**ROTARY, "head_dim": 8}),
    "gemma": ("GemmaConfig", {**ROTARY, "head_dim": 8}),
    "gemma2": ("Gemma2Config", {**ROTARY, **MIXED, "head_dim": 8}),
    "gemma3": ("Gemma3TextConfig", {**ROTARY, **MIXED, "head_dim": 8}),
    "gpt_neox": ("GPTNeoXConfig", {**COMMON, "intermediate_size": 48, "max_position_embeddings": CONTEXT}),
    "mistral": ("MistralConfig", {**ROTARY, "sliding_window": None}),
    "mistral window": ("MistralConfig", {**ROTARY, "sliding_window": WINDOW}),
    "phi": ("PhiConfig", ROTARY),
    "phi3 window": ("Phi3Config", {**ROTARY, "sliding_window": WINDOW}),
}
WINDOWED = ["qwen2 window", "gemma2", "gemma3", "mistral window", "phi3 window"]
EAGER_ONLY = ["gemma2"]  # its soft cap on the scores has no place in sdpa
CASES = [(name, attention) for name in CONFIGURATIONS for attention in ("sdpa", "eager")]
CASES = [case for case in CASES if case not in [(name, "sdpa") for name in EAGER_ONLY]]


@cache
def tiny_model(name: str, attention: str = "sdpa") -> PreTrainedModel:
    """A model of this family with weights N(0, 0.3), the same at every call."""
    kind, settings = CONFIGURATIONS[name]
    config = getattr(transformers, kind)(**settings, **NO_IDS)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.3, generator=generator)
    return model
