"""Load heads of the shapes that others have published, with random weights, and decode with them.

    python benchmarks/published_heads.py

The configurations are those of public repositories, given below. The target has the width and the number of layers of
the real one; its layers are narrow inside, and the vocabulary has fewer rows, so that all fits into 8 GB. Greedy text
in float32 must be that of plain decoding. Random heads draft nothing of use: what is tried is reading and running.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft.models.heads.configuration import settings_of
from multidraft.models.heads.networks import MODULES

VOCABULARY, DRAFTED = 4096, 1024  # rows in place of the real ones
SMALL = {"intermediate_size": 64, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 16}  # of the target
LLAMA = {"model_type": "llama", "hidden_act": "silu", "num_hidden_layers": 1, "draft_vocab_size": DRAFTED}
LLAMA |= {"architectures": ["LlamaForCausalLMEagle3"], "num_key_value_heads": 8, "rms_norm_eps": 1e-5}
QWEN = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "max_position_embeddings": 40960}
BLOCKS = {"model_type": "qwen3", "architectures": ["DFlashDraftModel"], "head_dim": 128, "num_attention_heads": 32}
BLOCKS |= {"num_key_value_heads": 8, "num_hidden_layers": 5, "layer_types": ["full_attention"] * 5}
HEADS: dict[str, tuple[int, dict[str, Any]]] = {  # the target's layers, and the head's configuration
    "eagle3 for Llama-3.1-8B-Instruct": (  # SafeAILab/EAGLE, eagle/traineagle3/config.json, 9666a81
        32,
        LLAMA
        | {"architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "intermediate_size": 14336}
        | {"num_attention_heads": 32},
    ),
    "eagle3 for Llama-3.3-70B-Instruct": (  # sgl-project/SpecForge, configs/llama3-70B-ealge3.json, 82b62f6
        80,
        LLAMA
        | {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "head_dim": 128}
        | {"rope_theta": 5e5, "max_position_embeddings": 4096}
        | {
            "rope_scaling": dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
            | {"original_max_position_embeddings": 4096}
        },
    ),
    "eagle3 for Qwen3-4B": (  # sgl-project/SpecForge, configs/qwen3-4b-eagle3.json, 7c83c0a
        36,
        LLAMA | QWEN | {"hidden_size": 2560, "intermediate_size": 9728, "num_attention_heads": 32, "head_dim": 80},
    ),
    "eagle3 for Qwen3-32B": (  # sgl-project/SpecForge, configs/qwen3-32b-eagle3.json, b185edc
        64,
        LLAMA | QWEN | {"hidden_size": 5120, "intermediate_size": 25600, "num_attention_heads": 64, "head_dim": 80},
    ),
    "eagle3.1 for Qwen3-30B-A3B": (  # sgl-project/SpecForge, configs/qwen3-30B-A3B-eagle3.1.json, 581664a
        48,
        LLAMA
        | QWEN
        | {"hidden_size": 2048, "intermediate_size": 12288, "num_attention_heads": 32, "num_key_value_heads": 4}
        | {"head_dim": 128, "fc_norm": True, "norm_output": True},
    ),
    "eagle3 for gpt-oss-20b": (  # sgl-project/SpecForge, configs/gpt-oss-20B-eagle3-dense.json, 4e7a1d9
        24,
        LLAMA
        | {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 17280, "num_attention_heads": 64}
        | {"head_dim": 64, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 11, 21]}},
    ),
    "dflash for Qwen3-4B": (  # sgl-project/SpecForge, configs/qwen3-4b-dflash.json, 9d63ee8; its mask token is 151669
        36,
        BLOCKS
        | QWEN
        | {"hidden_size": 2560, "intermediate_size": 9728, "block_size": 16}
        | {"dflash_config": {"mask_token_id": VOCABULARY - 1, "target_layer_ids": [1, 9, 17, 25, 33]}},
    ),
}


def target_of(width: int, layers: int) -> LlamaForCausalLM:
    """A random target of this width and depth, narrow inside."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "vocab_size": VOCABULARY}
    return LlamaForCausalLM(LlamaConfig(**sizes | SMALL, eos_token_id=None)).eval()


def write_head(folder: Path, target: LlamaForCausalLM, config: dict[str, Any]) -> float:
    """Write random weights under the published names; returns millions of parameters."""
    settings = settings_of(config, target.config, "the configuration")
    with torch.device("meta"):
        places = MODULES[settings.kind](settings).state_dict()
    kept = {name: place for name, place in places.items() if place.is_floating_point() and "embed_tokens" not in name}
    if settings.kind == "dflash":  # which has the target's output
        kept.pop("lm_head.weight", None)
    published = lambda name: name.replace("layers.0.", "midlayer.") if settings.kind == "eagle3" else name  # noqa: E731
    weights = {published(name): 0.02 * torch.randn(place.shape, dtype=torch.bfloat16) for name, place in kept.items()}
    if settings.is_reduced:
        weights["d2t"] = 2 * torch.arange(settings.drafted)
        weights["t2d"] = torch.zeros(VOCABULARY, dtype=torch.bool)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return sum(weight.numel() for weight in weights.values()) / 1e6


def try_head(layers: int, config: dict[str, Any]) -> str:
    """Load a head and decode with it; returns what came of it."""
    config = config | {"vocab_size": VOCABULARY}
    target = target_of(config["hidden_size"], layers)
    with tempfile.TemporaryDirectory() as name:
        size = write_head(Path(name), target, config)
        head = md.head(f"{'dflash' if 'block_size' in config else 'eagle3'}:{name}", target)
    settings = dict(max_new_tokens=6, temperature=0.0)
    drafted, info = md.generate(target, head, [[5, 6, 7]], tree="2x2x1", **settings)
    plain, _ = md.generate(target, None, [[5, 6, 7]], **settings)
    if not (info.draft_steps and drafted[0].tolist() == plain[0].tolist()):
        return "WRONG: the text is not that of plain decoding"
    return f"loaded ({size:.0f} million weights), {info.nodes} drafts in {info.draft_steps} steps, text as without"


def main() -> None:
    """Try every head."""
    torch.manual_seed(0)
    for name, (layers, config) in HEADS.items():
        print(f"{name}: {try_head(layers, config)}", flush=True)


if __name__ == "__main__":
    main()
