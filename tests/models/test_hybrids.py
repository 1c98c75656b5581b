"""Trees over models with a recurrent state."""

import pytest
import torch
from hybrids import HYBRIDS, hybrid
from reading import PROMPTS, TOLERANCE, Session, drawn, life

from multidraft.models.huggingface import reader


def session(name, prompts=PROMPTS):
    generator = torch.Generator().manual_seed(sum(prompts))
    plain = hybrid(name)
    made = Session(plain, reader(plain, 48), [drawn(n, generator) for n in prompts], generator)
    assert made.prefill() < TOLERANCE
    return made


@pytest.mark.parametrize("name", HYBRIDS)
def test_life(name):
    assert life(lambda prompts: session(name, prompts)) < TOLERANCE
