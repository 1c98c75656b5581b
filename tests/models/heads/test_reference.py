"""What heads say is what `speculators` and `dflash` say with the same weights; `reference/make.py` asked them."""

from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from multidraft.models.heads.drafters import Head, head

FOLDER = Path(__file__).parent / "reference"
EAGLES, BLOCKS, ROOT = ["eagle3", "eagle3_1", "eagle3_reduced"], ["dflash", "dflash_reduced", "dflash_original"], 9
CLOSE = {"atol": 1e-4, "rtol": 1e-4}


@cache
def target() -> LlamaForCausalLM:
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "num_key_value_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=4, **shape)).eval()


def begun(name: str) -> tuple[Head, dict[str, Tensor]]:
    """A head from its files, and what went into the reference and came out; the target has the weights that it took."""
    said, model = load_file(FOLDER / f"{name}.safetensors"), target()
    with torch.no_grad():
        for weight, own in ((model.get_input_embeddings(), "embed_tokens"), (model.lm_head, "lm_head")):
            weight.weight.copy_(said.get(own, weight.weight))
    drafter = head(f"{name.split('_')[0]}:{FOLDER / name}", model).fresh(32)
    assert drafter.hears == (1, 2, 4)
    return drafter, said


def read(drafter: Head, tokens: list[int], parents: list[int]) -> Tensor:
    return drafter.forward([tokens], [parents])[0]


@torch.no_grad()
@pytest.mark.parametrize("name", EAGLES)
def test_an_eagle_head_says_what_the_reference_says(name):
    """At every token of a text, at every path of one and two more tokens, and at a tree of two texts."""
    drafter, said = begun(name)
    texts = said["texts"].tolist()
    drafter.hear([said["states"]])
    for place, root in enumerate(texts[0][1:-3]):
        if place == 0:
            read(drafter, texts[0][:1], [-1])
            drafter.keep([[0]])
        torch.testing.assert_close(read(drafter, [root], [-1])[0], said["root"][0, place], **CLOSE)
        levels = [list(dict.fromkeys(text[place + 2] for text in texts))]
        one = read(drafter, levels[0], [0] * len(levels[0]))
        torch.testing.assert_close(one, said["one"][: len(one), place], **CLOSE)
        last = [text[place + 3] for text in texts][: len(one) if len(one) > 1 else 1]
        two = read(drafter, last, [1 + row % len(one) for row in range(len(last))])
        torch.testing.assert_close(two, said["two"][: len(two), place], **CLOSE)
        drafter.keep([[0]])
    assert len(one) == 2


@torch.no_grad()
@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_says_what_the_reference_says(name):
    """Of the places that are drafted; each node of a level has the same law."""
    drafter, said = begun(name)
    text = said["texts"][0].tolist()
    drafter.hear([said["states"][:ROOT]])
    drafter.forward([text[:ROOT]], [list(range(-1, ROOT - 1))], "none")
    drafter.keep([list(range(ROOT))])
    wanted = said["block"] if name == "dflash_reduced" else said["block"][1:]  # from the known token's place, too
    for level, law in enumerate(wanted):
        new, parents = ([text[ROOT]], [-1]) if level == 0 else ([3, 5], [2 * level - 2] * 2)
        for node in read(drafter, new, parents):
            torch.testing.assert_close(node, law, **CLOSE)


@torch.no_grad()
def test_other_states_are_seen():
    """The fixtures tell what is read beside which token: one token off, and the laws differ."""
    drafter, said = begun("eagle3")
    drafter.hear([said["states"].roll(1, 0)])
    text = said["texts"][0].tolist()
    law = read(drafter, text[:4], [-1, 0, 1, 2])[-1]
    assert float((law - said["root"][0, 2]).abs().max()) > 0.1
