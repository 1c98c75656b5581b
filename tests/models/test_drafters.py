"""Drafters beyond one model: exact by enumeration through the real step, and each what it says it is."""

import doctest
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from steps import Told, config_of, law_error
from tiny import CONFIGURATIONS, tiny_model
from torch import Tensor

import multidraft as md
from multidraft.decoding.tree import NodeLaw, Tree
from multidraft.decoding.walks import WALKS
from multidraft.models.ensemble import LookupThenModel, Mixture, SideBySide
from multidraft.models.huggingface.loading import first_layers
from multidraft.models.ngram import CountingReader, Lookup, NGram
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.models.reader import Reader
from multidraft.sampling.from_logits import target_distributions
from multidraft.sampling.settings import Sampling

EXACT = 1e-12
BIASED = 1e-3  # a biased twin must be off by more
UNCUT = ("gpt2", "gptj", "opt", "falcon")  # families whose layers have other names
PROMPT = [0, 1, 0, 0, 1, 1, 0]  # long enough for counts
UNEVEN = "[[0],[1],[0,0],[1,0],[1,1]]"  # equal tokens at the root give one node of slots that draw once and twice


@pytest.fixture(autouse=True)
def doubles(monkeypatch):
    """Drafters that count give float64, so that sums are exact."""
    monkeypatch.setattr(CountingReader, "dtype", torch.float64)


def table(vocabulary: int, seed: int) -> TableModel:
    return TableModel(random_table(vocabulary, 3, seed), vocabulary)


def confident(laws: Tensor) -> Tensor:
    """Weights that depend on the prefix: more for the member that is surer of itself."""
    return laws.amax(-1).exp() / laws.amax(-1).exp().sum(-1, keepdim=True)


ONE: dict[str, Callable[[int], Reader]] = {
    "n-gram": lambda v: NGram(v),
    "n-gram with a corpus": lambda v: NGram(v, 2, corpus=[1, 1, 0, 1]),
    "look-up": lambda v: Lookup(v),
    "look-up in a corpus": lambda v: Lookup(v, corpus=[1, 1, 0, 0, 1, 0]),
    "mixture": lambda v: Mixture([table(v, 2), NGram(v)], [0.3, 0.7]),
    "mixture with look-up": lambda v: Mixture([table(v, 2), Lookup(v), table(v, 3)]),
    "copying": lambda v: LookupThenModel([Lookup(v), table(v, 2)]),
    "copying from a corpus": lambda v: LookupThenModel([Lookup(v, corpus=[1, 1, 0, 0, 1, 0]), table(v, 2)]),
    "confident mixture": lambda v: Mixture([table(v, 2), NGram(v)], confident),
}
MANY: dict[str, Callable[[int], Reader]] = {
    "two tables": lambda v: SideBySide([table(v, 6), table(v, 7)]),
    "table and n-gram": lambda v: SideBySide([table(v, 2), NGram(v)]),
    "three": lambda v: SideBySide([table(v, 2), Lookup(v), table(v, 3)]),
    "one": lambda v: SideBySide([table(v, 2)]),
    "mixture and table": lambda v: SideBySide([Mixture([table(v, 2), Lookup(v)]), table(v, 3)]),
}
SCHEMES = ["iid:lorenz", "iid:recursive_rejection", "without_replacement:recursive_rejection", "anchored:lorenz"]
DISTINCT, PLAIN = "distinct:recursive_rejection", Sampling()
CASES = [("anchored:lorenz", d, "2x1", 3) for d in ONE] + [("iid:lorenz", d, "1x1", 3) for d in ONE]
CASES += [(s, d, "2x1", 3) for s in [*SCHEMES[:3], "top:naive"] for d in ("n-gram", "copying")]
CASES += [("distinct:recursive_rejection", d, t, 2) for d in MANY for t in ("2x2", UNEVEN)]
CASES += [("distinct:recursive_rejection", "three", t, 2) for t in ("1x1x1", "3x1")]
CASES += [("distinct:naive", "three", t, 2) for t in ("2x1", "2x2")]
CASES += [("distinct:recursive_rejection", "two tables", "2x2", 3), ("distinct:recursive_rejection", "three", "3x1", 3)]
DRAFTERS = ONE | MANY


def error(
    scheme: str,
    drafter: str,
    tree: str,
    walk: str,
    sampling: Sampling = PLAIN,
    vocabulary: int = 3,
    steps: int = 1,
    told: Callable[[NodeLaw], NodeLaw] | None = None,
) -> float:
    """How far the law of the first tokens is from the target's; the rule may be `told` other laws of the drafts."""
    target, draft = table(vocabulary, 1), DRAFTERS[drafter](vocabulary)

    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return target_distributions(target.conditional((*PROMPT, *tokens)).log()[None], sampling)[0][0]

    config, policy = config_of(scheme, tree, walk)
    if told is not None:
        policy = Told(Tree.parse(tree), lambda laws: {node: told(law) for node, law in laws.items()})
    return law_error(target, draft, PROMPT, (config, policy), conditional, steps, sampling)


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize(("scheme", "drafter", "tree", "vocabulary"), CASES)
def test_one_step_has_the_target_law(scheme, drafter, tree, vocabulary, walk):
    assert error(scheme, drafter, tree, walk, Sampling(temperature=0.8), vocabulary) <= EXACT


@pytest.mark.parametrize("sampling", [Sampling(top_k=2), Sampling(temperature=0)])
@pytest.mark.parametrize(("scheme", "drafter"), [("iid:lorenz", d) for d in ONE] + [(DISTINCT, d) for d in MANY])
def test_truncated_distributions_have_the_target_law(scheme, drafter, sampling):
    assert error(scheme, drafter, "2x1", "deferred", sampling) <= EXACT


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize(("scheme", "drafter"), [("iid:lorenz", d) for d in ONE] + [(DISTINCT, d) for d in MANY])
def test_several_steps_have_the_target_law(scheme, drafter, walk):
    """Counts go on from step to step, and rows have read different tokens."""
    assert error(scheme, drafter, "2", walk, vocabulary=2, steps=2) <= EXACT


TWINS = {
    "believes in the first member of the mixture": ("iid:recursive_rejection", "mixture"),
    "believes that every token is as likely": ("iid:recursive_rejection", "n-gram"),
    "takes the look-up for a guess at random": ("iid:recursive_rejection", "look-up"),
    "takes one drafter for the other": ("distinct:recursive_rejection", "two tables"),
    "takes three drafters for each other": ("distinct:recursive_rejection", "three"),
}


def wrongly(twin: str, law: NodeLaw) -> NodeLaw:
    """What a twin is told of the law at a node."""
    if "first member" in twin:
        first = table(3, 2).conditional((*PROMPT,)).numpy()
        return replace(law, probabilities=first[law.ids])
    if TWINS[twin][0].startswith("iid"):
        ids = np.append(law.ids, np.setdiff1d(np.arange(3), law.ids))
        return replace(law, ids=ids, probabilities=np.full(3, 1 / 3))
    return replace(law, probabilities=np.roll(law.probabilities, 1, 0))


@pytest.mark.parametrize("walk", WALKS)
@pytest.mark.parametrize("tree", ["1x1", "2x1"])
@pytest.mark.parametrize("twin", TWINS)
def test_enumeration_catches_the_biased_twin(twin, tree, walk):
    """Each is told a law that the drafts were not drawn from."""
    assert error(*TWINS[twin], tree, walk, told=partial(wrongly, twin)) > BIASED


def test_enumeration_catches_drafters_that_do_not_take_turns_at_a_node_drawn_twice():
    """The second tuple of such a node begins again with the first drafter; a twin goes on with the last one."""
    told = lambda law: replace(law, probabilities=law.probabilities[[0, 1, 1, 1]])  # noqa: E731
    assert error(DISTINCT, "two tables", "2x2", "commit", told=told) > BIASED


def test_the_documented_drafter_works():
    page = Path(__file__).parents[2] / "docs" / "drafters.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert (failed, tried) == (0, 8)


def test_a_drafter_starts_afresh_in_every_generation():
    model = tiny_model("llama")
    drafter = Mixture([tiny_model("qwen2"), NGram(61)])
    settings = dict(tree="2x1", max_new_tokens=12)
    runs = [
        md.generate(model, drafter, [PROMPT] * rows, generator=torch.Generator().manual_seed(1), **settings)[0][0]
        for rows in (1, 3, 1)
    ]
    assert torch.equal(runs[0], runs[2])


def test_look_up_drafts_what_repeats_itself():
    """A target that always goes on counting modulo five: from the first repetition on, every draft is accepted."""
    target = TableModel(lambda prefix: torch.eye(5).double()[(prefix[-1] + 1) % 5], 5)
    _, info = md.generate(target, Lookup(5), [[0, 1, 2, 3, 4, 0]], scheme="top:naive", tree="1x1x1", max_new_tokens=24)
    assert (info.target_passes, info.block_efficiency) == (6, 4)


def test_look_up_drafts_what_a_corpus_holds():
    """The same target modulo forty, whose text repeats nothing."""
    target, settings = TableModel(lambda prefix: torch.eye(40).double()[(prefix[-1] + 1) % 40], 40), dict(tree="1x1x1")
    settings |= dict(scheme="top:naive", max_new_tokens=24)
    for corpus, passes in (((), 24), ([*range(40)], 6)):
        _, info = md.generate(target, Lookup(40, corpus=corpus), [[0, 1]], **settings)
        assert info.target_passes == passes


def test_one_of_several_needs_its_own_law_and_several_another():
    with pytest.raises(md.AdviceError, match="pass a list of them"):
        md.generate(table(5, 1), NGram(5), [[1]], scheme="distinct:naive")


# The target's own first layers


@pytest.mark.parametrize("name", [name for name in CONFIGURATIONS if name.split()[0] not in UNCUT])
def test_first_layers_equal_a_model_built_of_them(name):
    model = tiny_model(name, "eager")
    config, before, ids = deepcopy(model.config), deepcopy(model.state_dict()), torch.arange(9)[None]
    shallow, whole = first_layers(model, 1), model(ids).logits
    config.num_hidden_layers = 1
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:1]
    built = type(model)(config).eval()
    built.load_state_dict({key: value for key, value in before.items() if "layers.1." not in key})
    assert torch.equal(shallow(ids).logits, built(ids).logits)
    assert not torch.allclose(shallow(ids).logits, whole)
    assert torch.equal(model(ids).logits, whole)
    assert model.config.num_hidden_layers == 2
    pointers = {parameter.data_ptr() for parameter in model.parameters()}
    assert {parameter.data_ptr() for parameter in shallow.parameters()} < pointers


def spread(name: str):
    """A model as accelerate leaves it: its forward pass is bound to this very module."""
    model = deepcopy(tiny_model(name))
    model.base_model.forward = model.base_model.forward
    return model


@pytest.mark.parametrize(
    ("model", "count", "advice"),
    [
        (tiny_model("gpt2"), 1, "the layers of gpt2 cannot be cut"),
        (tiny_model("llama"), 2, "2 of 2 layers make no drafter; use 1 to 1"),
        (tiny_model("llama"), 0, "0 of 2 layers"),
        (spread("llama"), 1, "load it on one"),
        (NGram(5), 1, "the layers of a NGram cannot be cut"),
    ],
)
def test_first_layers_advise(model, count, advice):
    with pytest.raises(md.AdviceError, match=advice):
        first_layers(model, count)
