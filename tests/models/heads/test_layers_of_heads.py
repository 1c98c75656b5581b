"""Which layers a head hears: one layer off, and a trained head's acceptance falls. Random weights cannot tell."""

import json
from pathlib import Path

import pytest
import torch
from transformers import DynamicCache, LlamaForCausalLM
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from multidraft.models.gguf.to_hugging_face import read
from multidraft.models.heads.drafters import head
from multidraft.zoo import smollm2

ANSWERS = Path(__file__).parent / "reference" / "answers.json"  # tokens that SmolLM2-135M-Instruct wrote at T = 0.7


@pytest.mark.skipif(not smollm2.is_installed(), reason=f"the target is not installed: {smollm2.INSTALL}")
@torch.no_grad()
def test_a_layer_off_is_seen_in_acceptance() -> None:
    """Acceptance of one draft at T = 1, exact at all places: 0.371, and 0.356 or 0.350 one layer off."""
    config, weights = read(smollm2.file("target"), torch.bfloat16)
    with torch.device("meta"):  # random weights would take seconds
        target = LlamaForCausalLM(config).eval()
    target.load_state_dict(weights, strict=False, assign=True)  # but for the output, which is the embedding
    target.tie_weights()
    target.model.rotary_emb = LlamaRotaryEmbedding(config)
    draft = head("eagle3:smollm2", target)
    rates: dict[int, list[torch.Tensor]] = {0: [], -1: [], 1: []}
    for tokens in map(torch.tensor, json.loads(ANSWERS.read_text())):
        said = target(input_ids=tokens[None], output_hidden_states=True)
        laws = said.logits[:, 1:].float().softmax(-1)[..., draft.ids]
        for off, found in rates.items():
            states = [said.hidden_states[layer + off][:, :-1] for layer in draft.hears]
            found.append(acceptance(draft.module, tokens[None, 1:], torch.cat(states, -1), laws))
    right, lower, higher = (float(torch.cat(found).mean()) for found in rates.values())
    assert 0.36 < right < 0.381
    assert right > max(lower, higher) + 0.005, (right, lower, higher)


def acceptance(module, tokens: torch.Tensor, features: torch.Tensor, laws: torch.Tensor) -> torch.Tensor:
    """The sum of min(p, q) at each place, where the head is given these states."""
    places = torch.arange(tokens.shape[1])
    mask = (places[:, None] >= places)[None, None]
    logits = module.logits(module(tokens, module.fuse(features), places[None], mask, DynamicCache()))
    return torch.minimum(laws, logits.float().softmax(-1)).sum(-1).flatten()
