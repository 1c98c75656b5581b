"""Laws, rules and whole generations on a GPU: the numbers of the CPU."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
from device_checks import FAST_SCHEMES, check_draws_and_rules
from tiny import tiny_model
from transformers import PreTrainedModel

import multidraft as md
from multidraft.models.huggingface import fixed_steps
from multidraft.models.huggingface.fixed_steps import capture_graph
from multidraft.zoo import load_pair

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("vocabulary", [7, 5000])
@pytest.mark.parametrize("name", FAST_SCHEMES)
def test_draws_and_rules(name: str, vocabulary: int) -> None:
    check_draws_and_rules(name, vocabulary, torch.device("cuda"))


@pytest.mark.parametrize("tree", ["1x1x1", "2x1x1x1", "4x2x2x1"])
def test_greedy_output_is_that_of_the_target_alone(tree: str) -> None:
    target, draft, _ = load_pair()
    target, draft = target.float().cuda(), draft.cuda()
    settings = dict(temperature=0, max_new_tokens=24, eos_token_id=[])
    ours, _ = md.generate(target, draft, [[1, 2, 3], [4, 5]], tree=tree, **settings)
    plain, _ = md.generate(target, None, [[1, 2, 3], [4, 5]], **settings)
    assert [row.tolist() for row in ours] == [row.tolist() for row in plain]


def test_a_replay_is_the_call_with_new_inputs() -> None:
    values = torch.zeros(3, device="cuda")
    replay = capture_graph(lambda: [values.cumsum(0) + 1], None)
    results = list[torch.Tensor]()
    for number in range(3):
        values.fill_(number)
        results += replay()
    assert torch.stack(results).tolist() == [[1, 1, 1], [2, 3, 4], [3, 5, 7]]


def scale_in_place(model: PreTrainedModel) -> None:
    with torch.no_grad():
        model.lm_head.weight[::2].mul_(-1)


def replace_weight(model: PreTrainedModel) -> None:
    model.lm_head.weight = torch.nn.Parameter(-model.lm_head.weight.detach())


def add_hook(model: PreTrainedModel) -> None:
    model.model.norm.register_forward_hook(lambda module, inputs, output: output.flip(-1))


@pytest.mark.parametrize("change", [scale_in_place, replace_weight, add_hook])
def test_what_was_recorded_follows_the_model(change: Callable[[PreTrainedModel], None]) -> None:
    model = deepcopy(tiny_model("llama")).cuda()
    settings = dict(temperature=0, max_new_tokens=12, eos_token_id=[])
    before, _ = md.generate(model, None, [[1, 2, 3]], **settings)
    assert fixed_steps.steps_of(model, compiles=False).pools
    change(model)
    after, _ = md.generate(model, None, [[1, 2, 3]], **settings)
    expected, _ = md.generate(model.cpu(), None, [[1, 2, 3]], **settings)
    assert after[0].tolist() == expected[0].tolist() != before[0].tolist()
