"""Laws, rules and whole generations on a GPU: the numbers of the CPU."""

import pytest
import torch
from device_checks import FAST_SCHEMES, check_draws_and_rules

import multidraft as md
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
