"""Lossless with a head: every way that two steps can go sums to the target's law, in float64 to rounding."""

import copy
from dataclasses import replace
from functools import cache

import pytest
import torch
from heads import CASES, filled
from mutants import rule_of
from steps import Told, config_of, law_error
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import multidraft as md
from multidraft.decoding.tree import Tree
from multidraft.models.heads import networks
from multidraft.models.heads.drafters import Head, drafter
from multidraft.models.heads.head_files import fault_of_tokens
from multidraft.models.heads.networks import MODULES
from multidraft.models.huggingface.masks import CausalLM
from multidraft.verification.scheme import Scheme

EXACT, BIASED = 1e-12, 1e-3
SIZE, PROMPT = 3, [0, 2, 1]
TWICE = ["eagle3 reduced, two layers", "dflash reduced, from anchor"]
SHAPE = {"vocab_size": SIZE, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4}
SHAPE |= {"num_key_value_heads": 2, "head_dim": 8}


@cache
def target() -> LlamaForCausalLM:
    config = LlamaConfig(**SHAPE, num_hidden_layers=2, bos_token_id=None, eos_token_id=None)
    torch.manual_seed(3)
    model = LlamaForCausalLM(config).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def small(name: str) -> Head:
    """The head of a case with three tokens, or two where its vocabulary is reduced."""
    case = CASES[name]
    layer = copy.deepcopy(case.layer)
    layer.vocab_size = SIZE
    settings = replace(case, layer=layer, drafted=2 if case.is_reduced else SIZE, mask_token=1)
    module = MODULES[settings.kind](settings).double()
    filled(module)
    if module.d2t is not None:
        module.d2t.copy_(torch.tensor([0, 1]))  # tokens 0 and 2
    return drafter(module)


def error(
    scheme: str | Scheme, head: str | Head, tree: str, steps: int, walk: str = "deferred", policy: Told | None = None
) -> float:
    """How far the law of the first tokens of some steps is from the target's, by plain passes."""
    config, usual = config_of(scheme, tree, walk)

    def conditional(tokens: tuple[int, ...]) -> Tensor:
        return target()(input_ids=torch.tensor([[*PROMPT, *tokens]])).logits[0, -1].softmax(-1)

    draft = small(head) if isinstance(head, str) else head
    return law_error(CausalLM(target()), draft, PROMPT, (config, policy or usual), conditional, steps)


@torch.no_grad()
@pytest.mark.parametrize("name", CASES)
def test_steps_have_the_target_law(name):
    """One step of a tree, or two of a chain, in the second of which kept tokens are read again."""
    tree, steps = ("1x1", 2) if name in TWICE else ("2x1", 1)
    assert error("anchored:lorenz", name, tree, steps) <= EXACT


@torch.no_grad()
@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa"])
def test_a_rule_that_is_told_another_law_than_the_head_s_is_caught(name):
    right = md.scheme("iid:recursive_rejection")
    wrong = replace(right, entry=replace(right.entry, rule=rule_of("verifies at another temperature")))
    assert error(right, name, "2x1", 1, "commit") <= EXACT
    assert error(wrong, name, "2x1", 1, "commit") > BIASED


@torch.no_grad()
def test_columns_that_lead_to_one_token_change_the_law_and_are_seen():
    """Why files of such heads are refused: the rule is told a part of the probability with which the token is drawn."""
    name, twice = "eagle3 reduced, two layers", torch.tensor([1, 0])  # both columns are token 1
    module = small(name).module
    module.d2t.copy_(twice)
    assert fault_of_tokens(torch.arange(2) + twice, SIZE) == "leads to token 1 more than once"
    assert error("iid:recursive_rejection", drafter(module), "2", 1) > BIASED
    assert error("iid:recursive_rejection", name, "2", 1) <= EXACT


@torch.no_grad()
def test_a_head_that_changes_its_mind_after_drawing_is_caught():
    """The rule is told the law of another level than the one that drew: no longer the target's law."""
    swapped = Told(Tree.parse("1x1"), lambda laws: laws | {0: laws[1], 1: laws[0]})
    assert error("iid:lorenz", "medusa", "1x1", 1, policy=swapped) > BIASED


@pytest.mark.parametrize("most", [2, 256])
def test_attention_made_of_products_is_pytorchs(most: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(networks, "MAX_QUERIES", most)
    torch.manual_seed(0)
    queries, keys, values = (torch.randn(2, heads, new, 8) for heads, new in ((6, 5), (2, 9), (2, 9)))
    mask = torch.zeros(2, 1, 5, 9).masked_fill_(torch.rand(2, 1, 5, 9) < 0.3, torch.finfo(torch.float32).min)
    expected = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
    assert torch.allclose(networks.attend_by_products(queries, keys, values, mask), expected, atol=1e-6)
    other = networks.attend_by_products(queries, keys, values, torch.zeros_like(mask))
    assert not torch.allclose(other, expected, atol=1e-2)
