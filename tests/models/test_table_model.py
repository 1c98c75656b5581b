"""The toy model: prefixes are put together from kept and visible tokens; its conditionals are what was asked for."""

import pytest
import torch
from tiny import tiny_model

from multidraft.models.base import LanguageModel
from multidraft.models.huggingface import CausalLM
from multidraft.models.table import TableModel, random_table

VOCABULARY = 5


def spelled(prefix: tuple[int, ...]) -> torch.Tensor:
    """Probabilities that spell out the prefix: its number in base 5 over 5 ** 6, and the rest."""
    number = sum(token * VOCABULARY**i for i, token in enumerate(prefix)) / VOCABULARY**6
    return torch.tensor([number, 1 - number, 0, 0, 0], dtype=torch.float64)


def test_prefixes_are_kept_tokens_and_those_on_the_path():
    model = TableModel(spelled, VOCABULARY)
    assert model.forward([[3, 1, 2], [4]], [[-1, 0, 1], [-1]], "none").shape == (2, 0, VOCABULARY)
    model.keep([[0, 1, 2], [0]])
    parents = [-1, -1, 1]  # nodes 0 and 1 at the root, node 2 below node 1
    logits = model.forward([[1, 2, 3], [2, 3]], [parents, parents[:2]])
    prefixes = [[(3, 1, 2, 1), (3, 1, 2, 2), (3, 1, 2, 2, 3)], [(4, 2), (4, 3)]]
    for row, own in enumerate(prefixes):
        assert torch.equal(logits[row, : len(own)], torch.stack([spelled(prefix).log() for prefix in own]))
    model.keep([[1, 2], [0]])
    model.select([1, 0])
    assert model.kept == [(4, 2), (3, 1, 2, 2, 3)]


def test_level_by_level_equals_at_once():
    conditional = random_table(VOCABULARY, depth=3, seed=1)
    tokens, parents = [1, 2, 3, 4], [-1, 0, 0, 1]
    at_once = TableModel(conditional, VOCABULARY).forward([tokens], [parents])
    model = TableModel(conditional, VOCABULARY)
    parts = [model.forward([tokens[s]], [parents[s]]) for s in (slice(0, 1), slice(1, 3), slice(3, 4))]
    assert torch.equal(torch.cat(parts, 1), at_once)
    assert torch.equal(model.forward([[]], [[]], "last"), at_once[:, :0])


def test_the_last_of_each_row_is_scored_alone():
    model = TableModel(spelled, VOCABULARY)
    logits = model.forward([[1, 2, 3], [4]], [[-1, 0, 1], [-1]], "last")
    assert torch.equal(logits, torch.stack([spelled((1, 2, 3)).log(), spelled((4,)).log()])[:, None])


@pytest.mark.parametrize("concentration", [0.01, 1.0, 30.0])
def test_random_table_is_a_distribution_that_depends_on_the_last_tokens(concentration):
    table, again = (random_table(VOCABULARY, depth=2, seed=3, concentration=concentration) for _ in range(2))
    prefixes = [(), (0,), (0, 0), (1, 0), (0, 1)]
    rows = torch.stack([table(prefix) for prefix in prefixes])
    assert torch.equal(rows, torch.stack([again(prefix) for prefix in reversed(prefixes)]).flip(0))
    assert torch.allclose(rows.sum(-1), torch.ones(5, dtype=torch.float64), rtol=0, atol=1e-12)
    assert len(set(map(tuple, rows.tolist()))) == 5
    assert table((4, 4, 1, 0)) is table((1, 0))
    assert not torch.equal(table(()), random_table(VOCABULARY, 2, seed=4)(()))


def test_depth_zero_ignores_the_prefix():
    table = random_table(VOCABULARY, depth=0, seed=0)
    assert torch.equal(table((1, 2)), table(()))


def test_the_models_offer_what_the_loop_needs():
    assert isinstance(TableModel(spelled, VOCABULARY), LanguageModel)
    assert isinstance(CausalLM(tiny_model("gpt2")), LanguageModel)
