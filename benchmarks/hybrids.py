"""A target's pass over 1 to 16 nodes of a Qwen3.5-shaped model: trees in one pass beside trees as their paths.

    OMP_NUM_THREADS=1 python benchmarks/hybrids.py [--nodes 1 2 4 8 16] [--context 64] [--rounds 5]

Some 100 million random parameters, three gated delta nets to each layer with attention. Chains and trees of two
branches a node are read behind the same context by turns, and dropped again. Medians of the process's own time.
"""

import argparse
import json
import time
from statistics import median

import torch
from transformers import PreTrainedModel, Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import Qwen3_5ForCausalLM

from multidraft.machine import commit, hardware
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.huggingface.paths import Paths
from multidraft.models.reader import Reader, chain_parents

SHAPE = dict(vocab_size=32_000, hidden_size=640, intermediate_size=1920, num_hidden_layers=12, head_dim=128)
DIMS = dict(linear_key_head_dim=128, linear_value_head_dim=128)
HEADS = dict(num_attention_heads=5, num_key_value_heads=1, linear_num_key_heads=8, linear_num_value_heads=8)
KINDS = {"chain": lambda node: node - 1, "tree": lambda node: (node - 1) // 2 if node else -1}


def make_model() -> PreTrainedModel:
    """The model, always the same."""
    torch.manual_seed(0)
    kinds = (["linear_attention"] * 3 + ["full_attention"]) * 3
    config = Qwen3_5TextConfig(**SHAPE, **DIMS, **HEADS, layer_types=kinds, tie_word_embeddings=True)
    return Qwen3_5ForCausalLM(config).eval()


def seconds(model: Reader, parents: list[int]) -> float:
    """Of a pass over such a tree, which is then dropped."""
    before = time.process_time()
    model.forward([[7 + node for node in range(len(parents))]], [parents])
    after = time.process_time()
    model.commit([[]])
    return after - before


def main() -> None:
    """Print a table, or with --json a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    model = make_model()
    readers = {"one pass": CausalLM(model, options.context + 64), "paths": Paths(model)}
    for reader in readers.values():
        reader.forward([list(range(options.context))], [chain_parents(options.context)], "none")
        reader.commit([list(range(options.context))])
        seconds(reader, [-1])
    results = {}
    for kind, above in KINDS.items():
        for nodes in options.nodes:
            parents = [above(node) for node in range(nodes)]
            runs = [{way: seconds(reader, parents) for way, reader in readers.items()} for _ in range(options.rounds)]
            results[f"{kind} of {nodes}"] = {way: median(run[way] for run in runs) * 1e3 for way in readers}
    size = sum(weight.numel() for weight in model.parameters())
    where = {"hardware": hardware(), "threads": torch.get_num_threads(), "commit": commit()}
    if options.json:
        print(json.dumps({"parameters": size, "ms": results, "context": options.context} | where))
        return
    print(f"{size / 1e6:.0f} million parameters, {options.context} tokens before; {where}")
    print("| nodes | one pass, ms | paths, ms |\n|---|---|---|")
    for name, ms in results.items():
        print(f"| {name} | {ms['one pass']:.0f} | {ms['paths']:.0f} |")


if __name__ == "__main__":
    main()
