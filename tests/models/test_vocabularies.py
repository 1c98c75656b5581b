"""Two models of one tokenizer, their vocabularies padded to different sizes: the target's law, all the same."""

from functools import cache

import pytest
import torch
from multidraft_research.captures.capturing import Manner, capture
from steps import law_of_steps
from tiny import VOCABULARY, tiny_model
from torch import Tensor

import multidraft as md
from multidraft.auditing.enumeration import first_state, first_tokens, largest_difference, target_law
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import WALKS
from multidraft.models.table import TableModel, random_table

SCHEMES = ["anchored:lorenz", "iid:lorenz", "without_replacement:recursive_rejection", "top:naive"]
PROMPTS = [[0, 1], [2, 3, 1, 0], [4]]
EXACT, BIASED = 1e-12, 1e-3


def table(vocabulary: int, seed: int) -> TableModel:
    """A model that fails when it is given a token beyond its vocabulary, as an embedding does."""
    row = random_table(vocabulary, 2, seed)

    def conditional(prefix: tuple[int, ...]) -> Tensor:
        assert max(prefix) < vocabulary
        return row(prefix)

    return TableModel(conditional, vocabulary)


class Reduced(TableModel):
    """A draft model that has two of the target's tokens: it reads all others as token 0."""

    ids = torch.tensor([2, 0])

    def fresh(self, capacity: int) -> "Reduced":
        return Reduced(self.conditional, self.vocabulary)


def error_after_two_steps(name: str, walk: str, target: TableModel, draft: TableModel, prompt: int) -> float:
    config = DecodeConfig(md.scheme(name), StaticTree(Tree.parse("2")), walk)
    law = law_of_steps(first_state(target, draft, [prompt], config), config, 2)
    truth = random_table(3 if type(target) is Cut else target.vocabulary, 2, 1)

    @cache
    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return truth((prompt, *tokens))

    return largest_difference(first_tokens(law, conditional, 4), target_law(conditional, 4))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize("sizes", [(3, 2), (2, 3)])
def test_two_steps_have_the_target_law(name, walk, sizes):
    """After a prompt, and in the second step after a first one, that only the target can read."""
    assert error_after_two_steps(name, walk, table(sizes[0], 1), table(sizes[1], 2), sizes[0] - 1) <= EXACT


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", SCHEMES)
def test_two_steps_with_a_reduced_draft_have_the_target_law(name, walk):
    draft = Reduced(random_table(2, 2, 2), 2)
    assert error_after_two_steps(name, walk, table(3, 1), draft, 1) <= EXACT


class Cut(TableModel):
    """Wrong: a target cut to what the draft model has as well."""

    def next_token(self, row: int, prefix: tuple[int, ...]) -> Tensor:
        return super().next_token(row, prefix)[:2]

    def fresh(self, capacity: int) -> "Cut":
        return Cut(self.conditional, 2)


def test_enumeration_catches_a_target_cut_to_what_both_have():
    cut = Cut(table(3, 1).conditional, 2)
    assert error_after_two_steps("iid:lorenz", "deferred", cut, table(2, 2), 0) > BIASED


@pytest.mark.parametrize("padding", [-1, 1])
def test_models_of_two_sizes_decode_greedily(padding):
    target, draft = tiny_model("llama"), tiny_model("qwen2", vocab_size=VOCABULARY + padding)
    prompts = [*PROMPTS, [VOCABULARY - 1] * 3]
    settings = dict(temperature=0, max_new_tokens=12)
    plain, _ = md.generate(target, None, prompts, **settings)
    rows, _ = md.generate(target, draft, prompts, **settings)
    assert [row.tolist() for row in rows] == [row.tolist() for row in plain]
    recording = next(iter(capture(target, draft, [[1, 2]], Manner(new_tokens=3))))
    assert recording.target.shape == recording.draft.shape == (3, VOCABULARY)
