"""A model that is resized is read as it is now: greedy texts are transformers' own before and after, in every way."""

from copy import deepcopy

import pytest
import torch
from decoded import start
from heads import head_of
from steps import config_of
from tiny import VOCABULARY, tiny_model
from torch import nn
from transformers import PreTrainedModel

import multidraft as md
from multidraft.autotune.plans import model_identity
from multidraft.models import vocabularies
from multidraft.models.ensemble import LookupThenModel, Mixture, SideBySide
from multidraft.models.huggingface import fixed_steps
from multidraft.models.huggingface.compat import vocabulary_of
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.ngram import Lookup, NGram
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.user_models import as_reader
from multidraft.sampling.settings import Sampling

PROMPTS = [[3, 1, 4, 1], [2, 7], [5]]
LARGER, SMALLER = VOCABULARY + 9, VOCABULARY - 12
SIZES = [LARGER, pytest.param(SMALLER, marks=pytest.mark.slow)]
NEW_TOKENS = 16


def resized(model: PreTrainedModel, size: int, seed: int = 5) -> PreTrainedModel:
    """The model itself, its embedding and head changed so that tokens that it has not had before are likely."""
    old = model.config.vocab_size
    model.resize_token_embeddings(size, mean_resizing=False)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in (model.get_input_embeddings(), model.get_output_embeddings()):
            if size > old and layer.weight.shape[0] == size:
                layer.weight[old:] = 0.6 * torch.randn(size - old, layer.weight.shape[1], generator=generator)
    return model


def plainly(model: PreTrainedModel, prompts: list[list[int]]) -> list[list[int]]:
    """What transformers' own greedy search adds to every prompt."""
    settings = dict(max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
    inputs = [torch.tensor([prompt]) for prompt in prompts]
    rows = [model.generate(ids, attention_mask=torch.ones_like(ids), **settings)[0] for ids in inputs]
    return [row[len(prompt) :].tolist() for row, prompt in zip(rows, prompts, strict=True)]


def ours(target: PreTrainedModel, draft: object, prompts: list[list[int]], **settings: object) -> list[list[int]]:
    keywords = dict(temperature=0, max_new_tokens=NEW_TOKENS, tree="2x2x1", eos_token_id=[]) | settings
    return [row.tolist() for row in md.generate(target, draft, prompts, **keywords)[0]]


@pytest.fixture
def target() -> PreTrainedModel:
    return deepcopy(tiny_model("llama"))


DRAFTS = {
    "none": lambda target: None,
    "as before": lambda target: tiny_model("qwen2"),
    "resized with it": lambda target: resized(deepcopy(tiny_model("qwen2")), target.config.vocab_size),
    "n-gram": lambda target: NGram(target.config.vocab_size),
    "EAGLE head": lambda target: head_of("eagle3"),
    "DFlash head": lambda target: head_of("dflash"),
}


@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("size", SIZES)
def test_greedy_texts_are_those_of_transformers(target: PreTrainedModel, size: int, draft: str, monkeypatch) -> None:
    monkeypatch.setattr(
        vocabularies, "MAX_PADDING_SHARE", 0.5
    )  # drafters of the old size go on drafting, as with real vocabularies
    assert ours(target, DRAFTS[draft](target), PROMPTS) == plainly(target, PROMPTS)
    resized(target, size)
    prompts = [*PROMPTS, [size - 1, 2]]
    texts = plainly(target, prompts)
    assert ours(target, DRAFTS[draft](target), prompts) == texts
    assert size == SMALLER or max(map(max, texts)) >= VOCABULARY  # a token is emitted that it has not had before


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("group", ["mixture", "side by side", "look-up first"])
def test_a_group_of_drafters_is_of_its_members_as_they_are_now(target: PreTrainedModel, size: int, group: str) -> None:
    """It is made once, before all are resized; so is a reader of the target."""
    members, lookup = [deepcopy(tiny_model(name)) for name in ("qwen2", "llama")], Lookup(VOCABULARY)
    kinds = {
        "mixture": Mixture,
        "side by side": SideBySide,
        "look-up first": lambda both: LookupThenModel([lookup, both[0]]),
    }
    draft, read_target = kinds[group](members), CausalLM(target)
    settings = {"scheme": "distinct:recursive_rejection"} if group == "side by side" else {}
    assert ours(read_target, draft, PROMPTS, **settings) == plainly(target, PROMPTS)
    for model in (target, *members):
        resized(model, size)
    prompts = [*PROMPTS, [size - 1, 2]]
    if group == "look-up first":  # which is of the old size, and padding of real vocabularies alone is so little
        lookup.vocabulary = size
    assert draft.vocabulary == size
    assert ours(read_target, draft, prompts, **settings) == plainly(target, prompts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "gemma", "qwen3", "mixtral", "phi", "opt", "falcon new"])
def test_every_family_and_many_prompts(name: str) -> None:
    """Twenty texts each, with tied weights among them, grown, grown again, and shrunk."""
    target, generator = deepcopy(tiny_model(name)), torch.Generator().manual_seed(3)
    for size in (VOCABULARY, LARGER, LARGER + 30, SMALLER):
        resized(target, size)
        prompts = torch.randint(size, (20, 5), generator=generator).tolist()
        for draft in (tiny_model("qwen2", vocab_size=size), NGram(size)):
            assert ours(target, draft, prompts) == plainly(target, prompts)


def test_compiled_steps_are_made_anew(target: PreTrainedModel) -> None:
    """Also where a new weight stands at the place of an old one, which memory that was let go makes possible."""
    buffer = torch.zeros(VOCABULARY, 32).numpy()
    target.lm_head.weight = nn.Parameter(torch.from_numpy(buffer))
    steps = fixed_steps.steps_of(target)
    assert fixed_steps.steps_of(target) is steps
    target.lm_head.weight = nn.Parameter(torch.from_numpy(buffer))
    assert fixed_steps.steps_of(target) is not steps
    resized(target, LARGER)
    with torch.compiler.set_stance("force_eager"):  # in fixed buffers, but not compiled
        assert ours(target, tiny_model("qwen2", vocab_size=LARGER), PROMPTS, compile=True) == plainly(target, PROMPTS)


def test_identities_of_plans_tell_it_apart(target: PreTrainedModel) -> None:
    before = model_identity(as_reader(target))
    assert model_identity(as_reader(resized(target, LARGER))) != before


def test_a_vocabulary_is_that_of_now(target: PreTrainedModel) -> None:
    """Also of a draft model with a part of its target's tokens, whose list changes in place."""
    target.config.target_ids = list(range(VOCABULARY - 1))
    first = vocabulary_of(target)
    assert vocabulary_of(target) is first
    target.config.target_ids[-1] = VOCABULARY + 5
    assert vocabulary_of(target).size == VOCABULARY + 6
    target.config.target_ids = None
    assert (vocabulary_of(target).ids, vocabulary_of(target).size) == (None, VOCABULARY)


WRONG = {
    "config": lambda model: setattr(model.config, "vocab_size", LARGER),
    "embedding": lambda model: setattr(model.model, "embed_tokens", nn.Embedding(SMALLER, 32)),
    "head": lambda model: setattr(model, "lm_head", nn.Linear(32, LARGER, bias=False)),
}


@pytest.mark.parametrize("what", WRONG)
def test_weights_of_another_size_than_the_config_says_are_refused(target: PreTrainedModel, what: str) -> None:
    CausalLM(target)
    WRONG[what](target)
    with pytest.raises(md.AdviceError, match=r"by its config, an embedding of .*resize_token_embeddings"):
        ours(target, None, PROMPTS)


def test_a_target_reads_no_token_as_another(target: PreTrainedModel) -> None:
    """A draft model may: any draft is exact."""
    config = config_of("iid:lorenz", "2x1", "deferred")
    for model in (target, TableModel(random_table(VOCABULARY, 1, 0), VOCABULARY)):
        start([[1, 2]], model, tiny_model("qwen2", vocab_size=2), config, [Sampling()], 8)
        with pytest.raises(md.AdviceError, match="prompt 1 has token 61, and the target's are 0 to 60"):
            start([[2], [1, VOCABULARY]], model, None, config, [Sampling()] * 2, 8)
