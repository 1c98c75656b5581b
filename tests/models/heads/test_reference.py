"""What heads say is what `speculators` and `dflash` say with the same weights; `reference/make.py` asked them.

And of the right layers: one layer off, and a trained head's acceptance falls, which random weights cannot tell.
"""

import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.models.heads.drafters import Head, head
from multidraft.models.huggingface.from_gguf import read as read_gguf
from multidraft.zoo import smollm2

FOLDER = Path(__file__).parent / "reference"
EAGLES, BLOCKS, ROOT = ["eagle3", "eagle3_1", "eagle3_reduced"], ["dflash", "dflash_reduced", "dflash_original"], 9
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@cache
def target() -> LlamaForCausalLM:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=4, **shape)).eval()


def begun(name: str) -> tuple[Head, dict[str, Tensor]]:
    """A head from its files, and what went into the reference and came out; the target has the weights that it took."""
    reference, model = load_file(FOLDER / f"{name}.safetensors"), target()
    with torch.no_grad():
        for weight, name_of_weight in ((model.get_input_embeddings(), "embed_tokens"), (model.lm_head, "lm_head")):
            weight.weight.copy_(reference.get(name_of_weight, weight.weight))
    drafter = head(f"{name.split('_')[0]}:{FOLDER / name}", model).new(32)
    assert drafter.hidden_layers == (1, 2, 4)
    return drafter, reference


def read(drafter: Head, tokens: list[int], parents: list[int]) -> Tensor:
    return drafter.forward([tokens], [parents]).logits[0]


@torch.no_grad()
@pytest.mark.parametrize("name", EAGLES)
def test_an_eagle_head_says_what_the_reference_says(name):
    """At every token of a text, at every path of one and two more tokens, and at a tree of two texts."""
    drafter, reference = begun(name)
    texts = reference["texts"].tolist()
    drafter.observe([reference["states"]])
    for place, root in enumerate(texts[0][1:-3]):
        if place == 0:
            read(drafter, texts[0][:1], [-1])
            drafter.commit([[0]])
        torch.testing.assert_close(read(drafter, [root], [-1])[0], reference["root"][0, place], **CLOSE)
        levels = [list(dict.fromkeys(text[place + 2] for text in texts))]
        one = read(drafter, levels[0], [0] * len(levels[0]))
        torch.testing.assert_close(one, reference["one"][: len(one), place], **CLOSE)
        last = [text[place + 3] for text in texts][: len(one) if len(one) > 1 else 1]
        two = read(drafter, last, [1 + row % len(one) for row in range(len(last))])
        torch.testing.assert_close(two, reference["two"][: len(two), place], **CLOSE)
        drafter.commit([[0]])
    assert len(one) == 2


@torch.no_grad()
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_says_what_the_reference_says(name):
    """Of the places that are drafted; each node of a level has the same law."""
    drafter, reference = begun(name)
    text = reference["texts"][0].tolist()
    drafter.observe([reference["states"][:ROOT]])
    drafter.forward([text[:ROOT]], [list(range(-1, ROOT - 1))], "none")
    drafter.commit([list(range(ROOT))])
    first = name != "dflash_reduced"  # from the known token's place, too
    expected = reference["block"][first:]
    for level, law in enumerate(expected):
        new_tokens, parents = ([text[ROOT]], [-1]) if level == 0 else ([3, 5], [2 * level - 2] * 2)
        for node in read(drafter, new_tokens, parents):
            torch.testing.assert_close(node, law, **CLOSE)


@torch.no_grad()
def test_other_states_are_seen():
    """The fixtures tell what is read beside which token: one token off, and the laws differ."""
    drafter, reference = begun("eagle3")
    drafter.observe([reference["states"].roll(1, 0)])
    text = reference["texts"][0].tolist()
    law = read(drafter, text[:4], [-1, 0, 1, 2])[-1]
    assert float((law - reference["root"][0, 2]).abs().max()) > 0.1


@pytest.mark.slow
@pytest.mark.skipif(not smollm2.is_installed(), reason=f"the target is not installed: {smollm2.INSTALL}")
@torch.no_grad()
def test_a_layer_off_is_seen_in_acceptance() -> None:
    """Acceptance of one draft at T = 1 of what SmolLM2 wrote at T = 0.7: 0.395, and 0.378 or 0.370 one layer off."""
    config, weights = read_gguf(smollm2.file("target"), torch.bfloat16)
    with torch.device("meta"):  # random weights would take seconds
        target = LlamaForCausalLM(config).eval()
    target.load_state_dict(weights, strict=False, assign=True)  # but for the output, which is the embedding
    target.tie_weights()
    target.model.rotary_emb = LlamaRotaryEmbedding(config)
    draft = head("eagle3:smollm2", target)
    rates: dict[int, list[torch.Tensor]] = {0: [], -1: [], 1: []}
    for tokens in map(torch.tensor, json.loads((FOLDER / "answers.json").read_text())):
        target_output = target(input_ids=tokens[None], output_hidden_states=True)
        laws = target_output.logits[:, 1:].float().softmax(-1)[..., draft.ids]
        for off, rate in rates.items():
            states = [target_output.hidden_states[layer + off][:, :-1] for layer in draft.hidden_layers]
            rate.append(acceptance(draft.module, tokens[None, 1:], torch.cat(states, -1), laws))
    right, lower, higher = (float(torch.cat(rate).mean()) for rate in rates.values())
    assert 0.385 < right < 0.405
    assert right > max(lower, higher) + 0.005, (right, lower, higher)


def acceptance(module, tokens: torch.Tensor, features: torch.Tensor, laws: torch.Tensor) -> torch.Tensor:
    """The sum of min(p, q) at each place, where the head is given these states."""
    places = torch.arange(tokens.shape[1])
    mask = (places[:, None] >= places)[None, None]
    logits = module.logits(module(tokens, module.fuse(features), places[None], mask, DynamicCache()))
    return torch.minimum(laws, logits.float().softmax(-1)).sum(-1).flatten()
