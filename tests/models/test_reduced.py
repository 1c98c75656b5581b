"""Draft models with a part of the target's tokens, or with more or fewer that only fill it up."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from reading import chain, drawn, error
from tiny import tiny_model

from multidraft.errors import AdviceError
from multidraft.models.base import LanguageModel, Vocabulary, check_sizes
from multidraft.models.ensemble import Copying, Several, spread
from multidraft.models.huggingface import CausalLM
from multidraft.models.loading import load_model
from multidraft.models.ngram import Lookup

IDS = [3, 5, 8, 20, 44, 57]
OWN = {token: place for place, token in enumerate(IDS)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama of seven tokens, six of them the target's."""
    model = deepcopy(tiny_model("llama", vocab_size=len(IDS) + 1))
    model.config.target_ids = IDS
    model.save_pretrained(tmp_path / "draft")
    return tmp_path / "draft"


@pytest.fixture(params=["Hugging Face", "GGUF"])
def reader(request, folder: Path) -> LanguageModel:
    if request.param == "Hugging Face":
        return CausalLM(load_model(str(folder)))
    from ggufs import to_gguf  # skips where there is no llama.cpp

    from multidraft.models.gguf.model import GGUF

    to_gguf.write(load_model(str(folder)), folder / "draft.gguf")
    return GGUF(folder / "draft.gguf", cache_type="f32").fresh(20)


@pytest.mark.parametrize("scored", ["all", "last", "none"])
def test_columns_are_the_tokens_that_it_has_and_all_others_are_read_as_one(reader: LanguageModel, scored: str):
    text = [*drawn(6, torch.Generator().manual_seed(1), end=61), *IDS[:2], 4]
    plain = tiny_model("llama", vocab_size=len(IDS) + 1)
    expected = plain(torch.tensor([[OWN.get(token, len(IDS)) for token in text]])).logits[..., : len(IDS)]
    got = reader.forward([text], [chain(len(text))], scored)
    first = {"all": 0, "last": len(text) - 1, "none": len(text)}[scored]
    assert got.shape == (1, len(text) - first, len(IDS))
    assert reader.ids.tolist() == IDS
    assert reader.vocabulary == 58
    if scored != "none":
        assert error(got, expected[:, first:]) < 1e-4


def test_it_goes_along_with_others(reader: LanguageModel):
    mixed, several = Copying([Lookup(61), reader]), Several([reader.fresh(9), Lookup(61)])
    law = spread(mixed.forward([[3, 1]], [[-1, 0]]), mixed.vocabulary).exp()
    assert law.sum(-1)[0].tolist() == pytest.approx([1, 1], abs=1e-6)
    assert law[0, 1].nonzero().flatten().tolist() == sorted({*IDS, 1})
    own, looked_up = several.forward([[3]], [[-1]])
    assert (own.shape, looked_up.ids.tolist()) == ((1, 1, 6), [[[3]]])


@pytest.mark.parametrize("ids", [[], [1, 2], [1, 1, 2], [1, 2, -3], [1, 2, "x"], "abc", [1, 2, 3.5], 7])
def test_lists_that_do_not_fit_are_refused(ids: object):
    with pytest.raises(AdviceError, match="target_ids of a draft model with 4 tokens must be 3 distinct tokens"):
        Vocabulary(4, ids)


@pytest.mark.parametrize("sizes", [(152064, 151936), (151936, 152064), (50304, 50688), (100, 100)])
def test_paddings_are_let_through(sizes: tuple[int, int]):
    check_sizes(*sizes)


@pytest.mark.parametrize("sizes", [(32000, 32800), (262144, 256000), (128256, 151936), (5, 6)])
def test_other_tokenizers_are_refused(sizes: tuple[int, int]):
    with pytest.raises(AdviceError, match=f"target has {sizes[0]} tokens and the draft {sizes[1]}; .*choose"):
        check_sizes(*sizes)


def test_a_reduced_vocabulary_may_be_any_part_of_the_target_s():
    check_sizes(49152, 30000, is_reduced=True)
    with pytest.raises(AdviceError, match="the target has 100 tokens and the draft 101"):
        check_sizes(100, 101, is_reduced=True)
