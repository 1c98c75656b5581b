"""Models of published shapes with random weights: what a pass costs does not depend on them."""

from functools import cache

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config

from on_gpu.asked import PieceOptions

COMMON = dict(vocab_size=151_936, num_key_value_heads=8, head_dim=128, max_position_embeddings=40_960)
SHAPES = {  # of Qwen3, by billions of parameters
    "0.6 B": dict(
        hidden_size=1024,
        num_hidden_layers=28,
        intermediate_size=3072,
        num_attention_heads=16,
        tie_word_embeddings=True,
    ),
    "1.7 B": dict(
        hidden_size=2048,
        num_hidden_layers=28,
        intermediate_size=6144,
        num_attention_heads=16,
        tie_word_embeddings=True,
    ),
    "8 B": dict(hidden_size=4096, num_hidden_layers=36, intermediate_size=12_288, num_attention_heads=32),
    "14 B": dict(hidden_size=5120, num_hidden_layers=40, intermediate_size=17_408, num_attention_heads=40),
}
TINY = dict(vocab_size=512, hidden_size=64, intermediate_size=96, num_attention_heads=4, num_key_value_heads=2)
TINY |= dict(head_dim=16, max_position_embeddings=2048)
TINY_LAYERS = {name: layers for layers, name in enumerate(SHAPES, 1)}


def config_of(name: str, quick: bool) -> Qwen3Config:
    """The shape, or with `quick` a tiny one in its place."""
    tie = dict(tie_word_embeddings=False)
    settings = TINY | dict(num_hidden_layers=TINY_LAYERS[name]) if quick else COMMON | SHAPES[name]
    return Qwen3Config(**tie | settings, bos_token_id=None, eos_token_id=None, pad_token_id=None)


@cache
def model_of(name: str, piece_options: PieceOptions) -> PreTrainedModel:
    """The model in bfloat16, made on the device."""
    torch.manual_seed(0)
    with piece_options.device:
        model = AutoModelForCausalLM.from_config(config_of(name, piece_options.quick), dtype=torch.bfloat16)
    return model.eval()
