"""Prompts of any lengths side by side are read as each would be alone, and stay in their order."""

import pytest
import torch
from tiny import tiny_model

import multidraft as md
from multidraft.models.huggingface import CausalLM

ORDERS = [(20, 10), (10, 20), (9, 30, 8, 31), (400, 8, 9), (8, 400, 9)]


def alike(lengths: tuple[int, ...]) -> bool:
    """Whether prompts of these lengths get the tokens that each gets alone."""
    model = tiny_model("llama", max_position_embeddings=512).float()
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 20, (length,), generator=generator).tolist() for length in lengths]
    settings = dict(temperature=0, max_new_tokens=6, eos_token_id=[])
    together, _ = md.generate(model, None, prompts, **settings)
    alone = [md.generate(model, None, [prompt], **settings)[0][0] for prompt in prompts]
    return [row.tolist() for row in together] == [row.tolist() for row in alone]


@pytest.mark.parametrize("lengths", ORDERS)
def test_rows_stay_in_the_order_of_their_prompts(lengths: tuple[int, ...]) -> None:
    assert alike(lengths)


def test_rows_in_the_order_in_which_they_were_read_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CausalLM, "select", lambda self, rows: None)
    assert not alike((10, 20))
