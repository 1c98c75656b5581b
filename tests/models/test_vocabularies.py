"""A draft's vocabulary beside the target's, padded to another size or a part of it: the target's law, all the same."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from marks import slow_but
from multidraft_research.captures.capturing import Manner, capture, capture_prompt
from reading import TOLERANCE, chain, drawn, error
from steps import config_of, law_error
from tiny import VOCABULARY, tiny_model
from torch import Tensor

import multidraft as md
from multidraft.decoding.walks import WALKS
from multidraft.errors import AdviceError
from multidraft.models.ensemble import LookupThenModel, Mixture, SideBySide, spread
from multidraft.models.huggingface.compat import vocabulary_of
from multidraft.models.huggingface.loading import load_model
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.ngram import Lookup
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader
from multidraft.models.vocabularies import Vocabulary, check_sizes, other_tokens

SCHEMES = ["anchored:lorenz", "iid:lorenz", "without_replacement:recursive_rejection", "top:naive"]
PROMPTS = [[0, 1], [2, 3, 1, 0], [4]]
EXACT, BIASED = 1e-12, 1e-3
IDS = [3, 5, 8, 20, 44, 57]
OWN = {token: place for place, token in enumerate(IDS)}


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

    def new(self, capacity: int) -> "Reduced":
        return Reduced(self.conditional, self.vocabulary)


class Undrafting(TableModel):
    """A draft model whose token 1 is another than the target's."""

    undrafted = torch.tensor([1])

    def new(self, capacity: int) -> "Undrafting":
        return Undrafting(self.conditional, self.vocabulary)


class Cut(TableModel):
    """Wrong: a target cut to what the draft model has as well."""

    def next_token(self, row: int, prefix: tuple[int, ...]) -> Tensor:
        return super().next_token(row, prefix)[:2]

    def new(self, capacity: int) -> "Cut":
        return Cut(self.conditional, 2)


def error_after_two_steps(name: str, walk: str, target: TableModel, draft: TableModel, prompt: int) -> float:
    truth = random_table(3 if type(target) is Cut else target.vocabulary, 2, 1)
    return law_error(target, draft, [prompt], config_of(name, "2", walk), lambda tokens: truth((prompt, *tokens)), 2)


SMALL, UNDRAFTING = Reduced(random_table(2, 2, 2), 2), Undrafting(random_table(3, 2, 2), 3)
CASES = [(3, table(2, 2), 2), (2, table(3, 2), 1), (3, SMALL, 1), (3, UNDRAFTING, 1)]


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("size", "draft", "prompt"), CASES)
def test_two_steps_have_the_target_law(name, walk, size, draft, prompt):
    """After a prompt, and in the second step after a first one, that only the target can read."""
    assert error_after_two_steps(name, walk, table(size, 1), draft, prompt) <= EXACT


def test_enumeration_catches_a_target_cut_to_what_both_have():
    cut = Cut(table(3, 1).conditional, 2)
    assert error_after_two_steps("iid:lorenz", "deferred", cut, table(2, 2), 0) > BIASED


@pytest.mark.parametrize("padding", [-1, 1])
def test_models_of_two_sizes_decode_greedily(padding):
    target, draft = tiny_model("llama"), tiny_model("qwen2", vocab_size=VOCABULARY + padding)
    prompts, settings = [*PROMPTS, [VOCABULARY - 1] * 3], dict(temperature=0, max_new_tokens=12)
    plain, _ = md.generate(target, None, prompts, **settings)
    rows, _ = md.generate(target, draft, prompts, **settings)
    assert [row.tolist() for row in rows] == [row.tolist() for row in plain]
    recording = next(iter(capture(target, draft, [[1, 2]], Manner(new_tokens=3))))
    assert recording.target.shape == recording.draft.shape == (3, VOCABULARY)


@pytest.fixture(params=["Hugging Face", "GGUF"])
def reader(request, tmp_path: Path) -> tuple[Reader, float]:
    """A tiny Llama of seven tokens, six of them the target's, and how far its logits may be away."""
    model = deepcopy(tiny_model("llama", vocab_size=len(IDS) + 1))
    model.config.target_ids = IDS
    model.save_pretrained(tmp_path)
    if request.param == "Hugging Face":
        return CausalLM(load_model(str(tmp_path))), TOLERANCE
    from ggufs import ALLOWED, CACHE_TYPE, to_gguf  # skips where no library for GGUF files is installed

    from multidraft.models.gguf.model import GGUF

    to_gguf.write(load_model(str(tmp_path)), tmp_path / "draft.gguf")
    return GGUF(tmp_path / "draft.gguf", cache_type=CACHE_TYPE).new(20), ALLOWED


def test_columns_are_the_tokens_that_it_has_and_all_others_are_read_as_one(reader: tuple[Reader, float]):
    model, allowed = reader
    text = [*drawn(6, torch.Generator().manual_seed(1), end=61), *IDS[:2], 4]
    plain = tiny_model("llama", vocab_size=len(IDS) + 1)
    expected = plain(torch.tensor([[OWN.get(token, len(IDS)) for token in text]])).logits[..., : len(IDS)]
    for scored, first in (("all", 0), ("last", len(text) - 1), ("none", len(text))):
        got = model.new(20).forward([text], [chain(len(text))], scored).logits
        assert got.shape == (1, len(text) - first, len(IDS))
        assert scored == "none" or error(got, expected[:, first:]) < allowed
    assert model.ids.tolist() == IDS
    assert model.vocabulary == 58


def test_captures_have_its_numbers_in_the_columns_of_the_target():
    small, target = deepcopy(tiny_model("llama", vocab_size=len(IDS) + 1)), tiny_model("qwen2")
    small.config.target_ids = IDS
    shard = capture_prompt(target, small, [3, 60, 5], 0, Manner(new_tokens=3))
    text = [OWN.get(token, len(IDS)) for token in [*shard.prompt.tolist(), *shard.tokens.tolist()]]
    expected = small(torch.tensor([text])).logits[0, 2:-1, : len(IDS)]
    torch.testing.assert_close(shard.recording.draft[:, IDS], expected)
    assert shard.recording.draft.isfinite().sum() == expected.numel()


def test_it_goes_along_with_others(reader: tuple[Reader, float]):
    model, _ = reader
    mixed, several = LookupThenModel([Lookup(61), model]), SideBySide([model.new(9), Lookup(61)])
    law = spread(mixed.forward([[3, 1]], [[-1, 0]]).by_token(), mixed.vocabulary).exp()
    assert law.sum(-1)[0].tolist() == pytest.approx([1, 1], abs=1e-6)
    assert law[0, 1].nonzero().flatten().tolist() == sorted({*IDS, 1})
    first, looked_up = several.forward_each([[3]], [[-1]])
    assert (first.logits.shape, looked_up.ids.tolist()) == ((1, 1, 6), [[[3]]])


DRAFT_NAMES = {token: str(token) for token in range(200)}


@pytest.mark.parametrize(
    ("changes", "tokens"),
    [
        ({}, []),
        ({7: "<|im_end|>"}, [7]),
        ({200: "<think>"}, [200]),
        ({3: "4", 4: "3", 201: "x"}, [3, 4, 201]),
        ({5: None}, [5]),
        (dict.fromkeys(range(5), "y"), None),
    ],
)
def test_a_few_tokens_of_other_names_are_told_and_many_refused(changes, tokens):
    """Renamed, added, swapped, missing; five of 200 are too many."""
    target = {token: name for token, name in (DRAFT_NAMES | changes).items() if name is not None}
    if tokens is None:
        with pytest.raises(AdviceError, match="token 0 is 'y' in the first and '0' in the second, and 4 others differ"):
            other_tokens(target, DRAFT_NAMES)
    else:
        assert other_tokens(target, DRAFT_NAMES) == tokens


@pytest.mark.parametrize("drafter", slow_but(["alone"], ["alone", "several", "mixture", "after look-up"]))
def test_tokens_of_other_names_are_never_drafted(drafter):
    """Not even the draft's likeliest ones; the output stays the target's."""
    target, draft = tiny_model("llama"), deepcopy(tiny_model("qwen2"))
    kinds = {
        "alone": lambda: draft,
        "several": lambda: SideBySide([draft, draft]),
        "mixture": lambda: Mixture([draft, draft]),
        "after look-up": lambda: LookupThenModel([Lookup(VOCABULARY), CausalLM(draft)]),
    }
    scheme = "distinct:recursive_rejection" if drafter == "several" else "anchored:lorenz"
    settings = dict(temperature=0, max_new_tokens=16, tree="3x2x1", scheme=scheme)

    def drafted() -> tuple[list[list[int]], set[int]]:
        trees = list[dict]()
        rows, _ = md.generate(target, kinds[drafter](), [[1, 2, 3], [5, 9]], trace=trees.append, **settings)
        steps = [record for record in trees if record["record"] == "step"]
        nodes = [node for step in steps for node in step["nodes"]]
        return [row.tolist() for row in rows], {token for node in nodes for token in node.get("drafted", ())}

    plain, _ = md.generate(target, None, [[1, 2, 3], [5, 9]], temperature=0, max_new_tokens=16)
    before, tokens = drafted()
    vocabulary_of(draft).undrafted_columns = torch.tensor(sorted(tokens)[::2])
    after, others = drafted()
    assert before == after == [row.tolist() for row in plain]
    copied = {token for row in [*after, [1, 2, 3, 5, 9]] for token in row} if drafter == "after look-up" else set()
    assert others
    assert copied.issuperset(others.intersection(sorted(tokens)[::2]))


@pytest.mark.parametrize("ids", [[], [1, 2], [1, 1, 2], [1, 2, -3], [1, 2, "x"], "abc", [1, 2, 3.5], 7])
def test_lists_that_do_not_fit_are_refused(ids: object):
    with pytest.raises(AdviceError, match="target_ids of a draft model with 4 tokens must be 3 distinct tokens"):
        Vocabulary(4, ids)


def test_paddings_and_any_part_of_the_target_s_tokens_are_let_through():
    for sizes in ((152064, 151936), (151936, 152064), (50304, 50688), (100, 100), (49152, 30000, True)):
        check_sizes(*sizes)
    assert Vocabulary(4).encode([3, 4, 9]) == [3, 0, 0]  # padding is read as the first token


@pytest.mark.parametrize("sizes", [(32000, 32800), (262144, 256000), (128256, 151936), (5, 6), (100, 101, True)])
def test_other_tokenizers_are_refused(sizes: tuple):
    with pytest.raises(AdviceError, match=f"target has {sizes[0]} tokens and the draft {sizes[1]}; .*choose"):
        check_sizes(*sizes)
