"""A part of a row: a model that has read its first tokens, and goes on as one that has read nothing else."""

import pytest
import torch
from tiny import VOCABULARY, tiny_model

from multidraft.decoding.prefill import read
from multidraft.errors import AdviceError
from multidraft.models.ensemble import Mixture, Several
from multidraft.models.huggingface import CausalLM
from multidraft.models.ngram import Lookup, NGram
from multidraft.models.resized import Resized
from multidraft.models.table import TableModel, random_table

TEXT = torch.tensor([[0, 3, 1, 4, 2, 2, 0, 1, 3, 3], [3, 3, 1, 3, 3, 0, 3, 3, 1, 4]])
READERS = {
    "model": lambda: CausalLM(tiny_model("llama")),
    "of another size": lambda: Resized(CausalLM(tiny_model("gpt2")), VOCABULARY + 1),
    "table": lambda: TableModel(random_table(5, 3, 1), 5),
    "counts": lambda: NGram(5, 3),
    "look-up": lambda: Lookup(5),
    "several": lambda: Several([tiny_model("llama"), NGram(VOCABULARY, 3)]),
    "mixture": lambda: Mixture([tiny_model("llama"), NGram(VOCABULARY, 3)]),
}


@pytest.mark.parametrize("make", READERS.values(), ids=READERS)
def test_it_reads_on_as_one_that_has_read_no_more(make):
    model = make()
    whole, short = model.fresh(20), model.fresh(20)
    read(whole, TEXT, 0)
    part = whole.part(1, 6, 20)
    read(short, TEXT[1:, :6], 0)
    assert torch.allclose(*(read(each, TEXT[1:, 6:], 6, logits=True) for each in (part, short)), atol=1e-5)
    again = whole.part(1, 6, 20)  # of a row that has stayed as it was
    assert torch.allclose(*(read(each, TEXT[1:, 6:8], 6, logits=True) for each in (again, whole.part(1, 6, 20))))


def test_more_than_has_been_read_cannot_be_taken():
    model = CausalLM(tiny_model("llama"))
    read(model, TEXT, 0)
    for length in (0, 11):
        with pytest.raises(AdviceError, match="cannot take"):
            model.part(0, length, 20)
