"""Write a GGUF file of a Llama of some size with random weights, to see what its passes cost on a machine.

    python examples/random_gguf.py 8b random-8b-q4_0.gguf --type q4_0
    multidraft tune --target random-8b-q4_0.gguf --what-if 0.5 --what-if 0.65 --what-if 0.8

All layers have the same weights, which changes nothing about the time of a pass, because each lies in memory by itself.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
from transformers import LlamaConfig

sys.path.insert(0, str(Path(__file__).parent))
from to_gguf import add, add_settings, gguf

SHAPES = {  # arguments of `config_of`: SmolLM2's three, and Llama 3.1's smallest
    "135m": (30, 576, 1536, 9, 3, 49152),
    "360m": (32, 960, 2560, 15, 5, 49152),
    "1.7b": (24, 2048, 8192, 32, 32, 49152),
    "8b": (32, 4096, 14336, 32, 8, 128256),
}
TIED = ("135m", "360m", "1.7b")  # the output is the embedding
CONTEXT, SCALE = 4096, 0.02  # tokens; the weights' standard deviation


def write(shape: str, path: Path, kind: str) -> None:
    """Write a model of this shape, with matrices of this type and vectors of ones."""
    config = config_of(*SHAPES[shape])
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    add_settings(writer, config)
    writer.add_tokenizer_model("no_vocab")
    layer = {name: quantised(size, kind) for name, size in layer_sizes(config).items()}
    table = quantised((config.vocab_size, config.hidden_size), kind)
    for name in ("token_embd", *(() if shape in TIED else ("output",))):
        add_quantised(writer, f"{name}.weight", table, kind)
    add(writer, "output_norm.weight", np.ones(config.hidden_size), "f32")
    for index in range(config.num_hidden_layers):
        for name, weight in layer.items():
            add_quantised(writer, f"blk.{index}.{name}.weight", weight, kind)
        for name in ("attn_norm", "ffn_norm"):
            add(writer, f"blk.{index}.{name}.weight", np.ones(config.hidden_size), "f32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file(progress=True)
    writer.close()


def config_of(layers: int, width: int, inner: int, heads: int, groups: int, vocabulary: int) -> LlamaConfig:
    """The configuration of a shape; several heads share a group's keys and values."""
    return LlamaConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        intermediate_size=inner,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        vocab_size=vocabulary,
        max_position_embeddings=CONTEXT,
    )


def layer_sizes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """The matrices of a layer, by their names in a GGUF file."""
    width, inner = config.hidden_size, config.intermediate_size
    keys = width // config.num_attention_heads * config.num_key_value_heads
    attention = {"attn_q": (width, width), "attn_k": (keys, width), "attn_v": (keys, width)}
    return attention | {
        "attn_output": (width, width),
        "ffn_gate": (inner, width),
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }


def quantised(size: tuple[int, int], kind: str) -> np.ndarray:
    """Random weights of a matrix in this type."""
    values = np.random.default_rng(0).normal(0, SCALE, size).astype(np.float32)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind.upper()])


def add_quantised(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, kind: str) -> None:
    """Add a matrix that is quantised already."""
    writer.add_tensor(name, weight, raw_dtype=gguf.GGMLQuantizationType[kind.upper()])


def main() -> None:
    """Write what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=[*SHAPES])
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default="q4_0", choices=("q4_0", "q8_0", "bf16", "f16"))
    options = parser.parse_args()
    write(options.shape, options.out, options.type)


if __name__ == "__main__":
    main()
