"""Which layers a head hears: one layer off, and a trained head's acceptance falls. Random weights cannot tell."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft.models.heads.drafters import drafter
from multidraft.models.heads.eagle3 import Eagle3
from multidraft.models.heads.formats import EAGLE3, Settings
from multidraft.models.heads.layers import Grown
from multidraft.models.heads.loading import save_head

LAYERS, SIZE = (1, 2, 3), 32
SHAPE = {"vocab_size": SIZE, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "head_dim": 8, "bos_token_id": None, "eos_token_id": None}
PROMPTS = [[3, 1], [5, 9], [8, 8], [30, 2]]


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, num_hidden_layers=4)).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.25)
    torch.nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


@pytest.fixture(scope="module")
def folder(target, tmp_path_factory) -> str:
    """A head that has seen 1,500 tokens which the target wrote, a hundred times."""
    first = [[row % SIZE, 7 * row % SIZE] for row in range(48)]
    written, _ = md.generate(target, None, first, max_new_tokens=30, generator=torch.Generator().manual_seed(1))
    texts = torch.stack([torch.cat([torch.tensor(a), b]) for a, b in zip(first, written, strict=True)])
    with torch.no_grad():
        said = target(input_ids=texts, output_hidden_states=True)
    laws = said.logits[:, 1:].softmax(-1)
    features = torch.cat([said.hidden_states[layer][:, :-1] for layer in LAYERS], -1)
    head = Eagle3(Settings(EAGLE3, LlamaConfig(**SHAPE, num_hidden_layers=1), LAYERS, SIZE, 32))
    head.embed_tokens.weight.data.copy_(target.model.embed_tokens.weight)
    head.lm_head.weight.data.copy_(target.lm_head.weight)
    places = torch.arange(texts.shape[1] - 1)
    mask, optimizer = (places[:, None] >= places)[None, None], torch.optim.AdamW(head.parameters(), lr=3e-3)
    for _ in range(100):
        logits = head.logits(head(texts[:, 1:], head.fuse(features), places.expand(len(texts), -1), mask, Grown()))
        loss = -(laws * logits.log_softmax(-1)).sum(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    out = tmp_path_factory.mktemp("head")
    save_head(head.eval(), out, "tiny")
    return str(out)


def tokens_a_pass(target, folder: str, layers: tuple[int, ...]) -> float:
    head = md.head(f"eagle3:{folder}", target)
    assert head.hears == LAYERS
    own = type(head.module.settings)(**vars(head.module.settings) | {"layers": layers})
    head.module.settings = own
    _, info = md.generate(
        target,
        drafter(head.module),
        PROMPTS,
        max_new_tokens=40,
        tree="1",
        scheme="iid:lorenz",
        generator=torch.Generator().manual_seed(5),
    )
    return info.block_efficiency


@pytest.mark.parametrize("off", [(2, 3, 4), (0, 1, 2)])
def test_a_layer_off_is_seen_in_acceptance(target, folder, off):
    """A fixed seed; the right layers give about MEASURED tokens a pass, those beside them less."""
    right, wrong = tokens_a_pass(target, folder, LAYERS), tokens_a_pass(target, folder, off)
    assert right > wrong + 0.08, (right, wrong)
