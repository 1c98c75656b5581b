"""Laws, rules and whole generations on a GPU: the numbers of the CPU."""

import pytest
import torch
from multidraft_research.studies.acceptance import random_pairs

import multidraft as md
from multidraft.models.compiled import captured
from multidraft.verification.registry import entries
from multidraft.zoo import load_pair

pytestmark = pytest.mark.gpu
FAST = [
    name for name, entry in entries().items() if not entry.small and not md.scheme(name).law.per_draft_distributions
]


@pytest.mark.parametrize("vocabulary", [7, 5000])
@pytest.mark.parametrize("name", FAST)
def test_draws_and_rules(name: str, vocabulary: int) -> None:
    pairs, scheme = random_pairs(3, vocabulary, 0), md.scheme(name)
    target, draft = pairs.target.double().softmax(-1), pairs.draft.double().softmax(-1)
    uniform = torch.rand(3, scheme.law.num_uniforms, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    drafted, there = scheme.law.draw(draft, uniform), scheme.law.draw(draft.cuda(), uniform.cuda())
    assert there.tolist() == drafted.tolist()
    ours, theirs = scheme.verify(target, draft, drafted), scheme.verify(target.cuda(), draft.cuda(), there)
    assert torch.allclose(theirs.accept.cpu(), ours.accept, rtol=0, atol=1e-12)
    assert torch.allclose(theirs.residual.cpu(), ours.residual, rtol=0, atol=1e-12)
    assert torch.allclose(theirs.residual_mass.cpu(), ours.residual_mass, rtol=0, atol=1e-12)


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
    replay = captured(lambda: [values.cumsum(0) + 1], None)
    results = []
    for number in range(3):
        values.fill_(number)
        results += replay()
    assert torch.stack(results).tolist() == [[1, 1, 1], [2, 3, 4], [3, 5, 7]]
