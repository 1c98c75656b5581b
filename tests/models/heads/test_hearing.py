"""Hidden states on their way from the target to a drafter: of every kept token, once, in order, of the right layers."""

import pytest
import torch
from tiny import tiny_model
from torch import Tensor

import multidraft as md
from multidraft.models.ensemble import Mixture
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.ngram import NGram

LAYERS = (0, 1, 2)
PROMPTS = [[3, 1, 4, 1, 5], [9, 2], list(range(1, 20)), [7]]


class Ear(NGram):
    """An n-gram model that notes the states it observes, for all readers of a run, by the tokens that it has kept."""

    hidden_layers: tuple[int, ...] = LAYERS

    def __init__(self, vocabulary: int, hidden_layers: tuple[int, ...] = LAYERS):
        super().__init__(vocabulary)
        self.hidden_layers, self.heard, self.all = hidden_layers, list[Tensor](), list["Ear"]()

    def new(self, capacity: int) -> "Ear":
        ear = Ear(self.vocabulary, self.hidden_layers)
        ear.all = self.all
        self.all.append(ear)
        return ear

    def observe(self, states: list[Tensor]) -> None:
        self.heard = [torch.cat(pair) for pair in zip(self.heard, states, strict=True)] if self.heard else states

    def _gather(self, rows: list[int]) -> None:
        super()._gather(rows)
        self.heard = [self.heard[row] for row in rows]

    def _extend(self, other: "Ear") -> None:
        super()._extend(other)
        self.heard += other.heard


def differences(target, ear: Ear) -> list[float]:
    """How far what each row of a reader has heard is from the states of a pass over all that it has kept."""
    all_differences = []
    for kept, heard in zip((row.kept for row in ear.rows), ear.heard, strict=True):
        states = target(input_ids=torch.tensor([kept]), output_hidden_states=True).hidden_states
        expected = torch.stack([states[layer][0] for layer in ear.hidden_layers], 1)
        assert 0 <= len(expected) - len(heard) <= 1
        all_differences.append(float((expected[: len(heard)] - heard).abs().max()))
    return all_differences


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_what_is_heard_is_what_a_pass_over_the_kept_tokens_gives(family):
    """Rows of different lengths, of which some leave; the drafter's last kept token is the root's parent."""
    target = tiny_model(family, "eager")
    ear = Ear(61)
    md.generate(target, ear, PROMPTS, tree="2x2x1", max_new_tokens=12, generator=torch.Generator().manual_seed(1))
    (reader,) = [
        ear_reader
        for ear_reader in ear.all
        if ear_reader.heard and ear_reader.rows and len(ear_reader.rows[0].kept) > 5
    ][:1]
    assert max(differences(target, reader)) < 1e-4
    reader.hidden_layers = (1, 2, 0)
    assert max(differences(target, reader)) > 0.01


@torch.no_grad()
def test_a_tree_s_states_follow_its_path_and_rows_that_go_on():
    target = tiny_model("llama")
    reader = CausalLM(target, hidden_layers=(1,))
    reader.forward([[5, 6], [7]], [[-1, 0], [-1]], "none")
    assert [len(row_states) for row_states in reader.commit([[0, 1], [0]])] == [2, 1]
    reader.forward([[1, 2, 3], [4]], [[-1, 0, 0], [-1]])
    reader.forward([[8], [9]], [[2], [0]])
    reader.gather([1, 0])
    states = reader.commit([[0, 1], [0, 2, 3]])
    for row_states, text, count in zip(states, ([7, 4, 9], [5, 6, 1, 3, 8]), (2, 3), strict=True):
        expected = target(input_ids=torch.tensor([text]), output_hidden_states=True).hidden_states[1][0, -count:]
        torch.testing.assert_close(row_states[:, 0], expected, atol=1e-4, rtol=0)
    part = reader.fork(1, 4, 64)
    part.forward([[2]], [[-1]])
    [states] = part.commit([[0]])
    expected = target(input_ids=torch.tensor([[5, 6, 1, 3, 2]]), output_hidden_states=True).hidden_states[1][0, -1:]
    torch.testing.assert_close(states[:, 0], expected, atol=1e-4, rtol=0)


def test_members_of_a_mixture_hear_their_own_layers():
    pair = Mixture([Ear(61, (2,)), Ear(61, (0, 1))])
    pair.observe([torch.arange(3.0)[None, :, None].expand(4, 3, 5)])
    heard = [member.heard[0][0, :, 0].tolist() for member in pair.drafters]
    assert pair.hidden_layers == (0, 1, 2)
    assert heard == [[2.0], [0.0, 1.0]]


def test_a_target_that_cannot_tell_is_refused():
    with pytest.raises(md.AdviceError, match="does not give"):
        md.generate(NGram(61), Ear(61), [[1, 2]], max_new_tokens=2)


@torch.no_grad()
def test_a_gguf_file_gives_its_layers_outputs():
    """A prompt of several calls, trees, a row that leaves, and a memory that grows meanwhile; caught if off by one."""
    from ggufs import ALLOWED, CACHE_TYPE, tiny_file  # skips where no library for GGUF files is installed

    plain, file = tiny_model("llama", num_hidden_layers=4), tiny_file("llama", num_hidden_layers=4)
    ear, prompts = Ear(61, (3, 1)), [list(range(1, 46)), [9, 2], [7]]
    md.generate(
        md.GGUF(file, CACHE_TYPE),
        ear,
        prompts,
        tree="2x2x1",
        max_new_tokens=12,
        generator=torch.Generator().manual_seed(1),
    )
    heard = max(ear.all, key=lambda reader: sum(map(len, reader.heard)))
    assert max(differences(plain, heard)) < ALLOWED
    heard.hidden_layers = (2, 1)
    assert max(differences(plain, heard)) > 10 * ALLOWED


@pytest.mark.parametrize("layers", [(0, 1), (1, 4)])
def test_a_gguf_file_gives_neither_embeddings_nor_what_its_last_norm_does(layers: tuple[int, int]):
    from ggufs import tiny_file

    model = md.GGUF(tiny_file("llama", num_hidden_layers=4))
    with pytest.raises(md.AdviceError, match=r"gives the hidden states 1 to 3 of this model, not all of \[\d, \d\]"):
        md.generate(model, Ear(61, layers), [[3]], tree="1", max_new_tokens=2)


def test_states_that_did_not_come_are_missed():
    from ggufs import CACHE_TYPE, tiny_file

    model = md.GGUF(tiny_file("llama", num_hidden_layers=4), CACHE_TYPE).with_hidden_states((1, 3))
    model.memory.outputs.layers[1, 0] = 7  # a layer that the model has not
    with pytest.raises(RuntimeError, match=r"of the hidden states, \[384, 0\] of \[384, 384\] bytes have come"):
        model.new(8).forward([[1, 2, 3]], [[-1, 0, 1]])
