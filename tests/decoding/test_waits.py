"""How often a step makes the CPU wait for a device: once a level that a model drafts, and once for the verdict.

docs/step.md has the table of these counts.
"""

from copy import deepcopy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from decoded import roots, start
from device_checks import counted_gpu_waits
from marks import slow_but
from pretended import counted_waits, device
from test_pretended_device import DRAFTERS, Place, on_device
from tiny import tiny_model
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

import multidraft as md
from multidraft.decoding.device_targets import DeviceTargets
from multidraft.decoding.logprobs import add_logprobs
from multidraft.decoding.metrics import measured_acceptance
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig, Randomness, RunningRow
from multidraft.decoding.step import step
from multidraft.decoding.tree import NodeLaw, TokenTree, Tree
from multidraft.sampling.from_logits import (
    TOP_P_HEAD,
    nucleus,
    nucleus_of_head,
    pending_distributions,
    target_distributions,
)
from multidraft.sampling.from_processors import sampling_from
from multidraft.sampling.processors import Processors
from multidraft.sampling.settings import Sampling
from multidraft.transfer import download, take, upload

NUM_STEPS = 10
PROMPTS = [[1, 2, 3, 1, 2, 3, 1], [4, 5, 6]]


def waits_of_steps(
    drafter: str,
    tree: str,
    settings: dict[str, Any],
    place: Place = on_device,
    count: Any = counted_waits,
    **options: Any,
) -> list[int]:
    """The number of waits in each of some steps of two rows."""
    sampling = settings.pop("sampling", None) or Sampling(**settings)
    num_logprobs = options.pop("num_logprobs", None)
    scheme = md.scheme(options.pop("scheme", "anchored:lorenz"))
    way = DecodeConfig(scheme, **{"measure": 0} | options), StaticTree(Tree.parse(tree))
    target, draft, counts = place(tiny_model("llama")), DRAFTERS[drafter](place), list[int]()
    generator = torch.Generator().manual_seed(1)
    with torch.inference_mode():
        state = start(PROMPTS, target, draft, way, [sampling] * 2, 60, generator, num_logprobs=num_logprobs)
        for _ in range(1 + NUM_STEPS):
            with count() as waits:
                state, record = step(state, *way)
                add_logprobs(record)
                record.measured = measured_acceptance(scheme, record) if way[0].measure else {}
            counts.append(waits.total())
    return counts[1:]  # the first one reads what the prompts have left


CASES: dict[str, tuple[int, int, str, str, dict[str, Any], dict[str, Any]]] = {  # least and most waits of a step
    "no drafts": (1, 1, "none", "1", {}, {}),
    "one level": (2, 2, "model", "3", {}, {}),
    "two levels": (3, 3, "model", "2x1", {}, {}),
    "three levels": (4, 4, "model", "1x1x1", {}, {}),
    "committed": (3, 3, "model", "2x1", {}, {"walk": "commit"}),
    "measured": (3, 3, "model", "2x1", {}, {"measure": 1}),
    "greedy": (3, 3, "model", "2x1", {"temperature": 0}, {}),
    "top-p": (3, 4, "model", "2x1", {"top_p": 0.8}, {}),
    "top-k": (3, 4, "model", "2x1", {"top_k": 8}, {}),
    "without replacement": (3, 3, "model", "3x2", {}, {"scheme": "without_replacement:recursive_rejection"}),
    "a head": (3, 3, "head eagle3", "2x1", {}, {}),
    "a head of a part of the vocabulary": (3, 4, "head eagle3 reduced, two layers", "2x1", {}, {}),
    "a head that drafts all at once": (3, 3, "head dflash", "2x1", {}, {}),
    "another head": (3, 3, "head medusa", "2x1", {}, {}),
    "n-gram": (1, 2, "n-gram", "2x1", {}, {}),
    "look-up, then model": (1, 4, "look-up, then model", "2x1", {}, {}),
    "log-probabilities": (4, 4, "model", "2x1", {}, {"num_logprobs": 2}),
    "log-probabilities at temperature 0": (5, 5, "model", "2x1", {"temperature": 0}, {"num_logprobs": 2}),
}


@pytest.mark.parametrize("name", slow_but(["no drafts", "three levels", "greedy", "top-p", "a head"], CASES))
def test_the_waits_of_a_step(name: str) -> None:
    least, most, drafter, tree, settings, options = CASES[name]
    counts = waits_of_steps(drafter, tree, dict(settings), **options)
    assert min(counts) >= least
    assert max(counts) <= most


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_the_waits_of_a_step_on_a_gpu(name: str) -> None:
    _, most, drafter, tree, settings, options = CASES[name]
    to_gpu = cache(lambda module: deepcopy(module).cuda())
    counts = waits_of_steps(drafter, tree, dict(settings), to_gpu, counted_gpu_waits, **options)
    assert 0 < max(counts) <= most


def test_more_rows_and_nodes_are_no_more_waits() -> None:
    assert waits_of_steps("model", "4x3", {}) == waits_of_steps("model", "1x1", {})


def test_a_processor_is_no_more_waits() -> None:
    """It is called with each node's sequence, for all nodes beforehand."""
    processors = LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.3)])
    counts = waits_of_steps("model", "2x1", {"sampling": sampling_from(processors, greedy=False)})
    assert counts == waits_of_steps("model", "2x1", {})


class FailsBehindOne(LogitsProcessor):
    """Fails where the sequence ends with token 1."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if (input_ids[:, -1] == 1).any():
            raise ValueError("one")
        return scores


def test_a_processor_that_fails_at_a_node_is_a_fault_where_a_walk_comes_there() -> None:
    tree = TokenTree([0])
    tree.laws[0] = NodeLaw(np.array([1, 2]), np.full(2, 0.5))
    tree.add(0, 2, [0, 1], [0.1, 0.9])
    sampling = Sampling(before=Processors([FailsBehindOne()]))
    row = RunningRow(sampling, Randomness(torch.Generator()), 0, 2, prefix=torch.tensor([2, 0]))
    targets = DeviceTargets([row], [tree], LINES[None, :3])
    targets.fetch([0.5])
    assert [*targets.known] == [(0, 0)]  # the third line is no distribution
    assert targets.faults == {}
    targets.at([(0, 1)])
    assert str(targets.faults[0]).startswith("row 0, position 4: processor FailsBehindOne fails with ValueError: one")


LINES = torch.randn(5, 40, generator=torch.Generator().manual_seed(0))
LINES[1] = LINES[1].round()  # equal ones
LINES[2], LINES[3, 4] = -torch.inf, torch.nan
SETTINGS = [Sampling(), Sampling(0), Sampling(0.7, top_k=5), Sampling(top_p=0.6), Sampling(1.3, top_k=9, top_p=0.5)]


@pytest.mark.parametrize("sampling", SETTINGS)
def test_pending_distributions_are_the_targets(sampling: Sampling) -> None:
    probs, is_settled = pending_distributions(LINES, sampling)
    expected, faults = target_distributions(LINES, sampling)
    assert is_settled.tolist() == [line not in faults for line in range(len(LINES))] == [True, True, False, False, True]
    assert torch.allclose(probs[is_settled], expected[is_settled], rtol=1e-6, atol=1e-7)


def test_pending_distributions_of_rows_with_different_settings() -> None:
    here, there = roots(LINES, SETTINGS), roots(LINES, SETTINGS, DeviceTargets)
    there.fetch([0.5] * len(SETTINGS))
    assert [*there.known] == [(0, 0), (1, 0), (4, 0)]
    for place, target in there.known.items():
        assert torch.allclose(target.probabilities, here.at([place])[0].probabilities, rtol=1e-6, atol=1e-7)


def test_a_nucleus_beyond_the_head_is_not_settled() -> None:
    flat = torch.full((1, 3 * TOP_P_HEAD), 1 / (3 * TOP_P_HEAD))
    assert nucleus_of_head(flat, 0.9)[1].tolist() == [False]
    probs, is_whole = nucleus_of_head(flat, 0.3)
    assert is_whole.tolist() == [True]
    assert torch.equal(probs, nucleus(flat, 0.3))


def test_what_is_downloaded_at_once_is_what_was_there() -> None:
    tensors = [torch.arange(3), torch.rand(2, 5), torch.rand(3).double(), torch.tensor([True]), torch.rand(0)]
    away = [upload(tensor, device()) for tensor in tensors]
    with counted_waits() as waits:
        copies = download(*away[:2], tensors[0], *away[2:])
    assert waits.total() == 1
    assert copies[2] is tensors[0]
    expected = [*tensors[:2], tensors[0], *tensors[2:]]
    assert all(a.dtype == b.dtype and a.equal(b) for a, b in zip(copies, expected, strict=True))


def test_places_are_taken_without_a_wait() -> None:
    values = torch.rand(3, 4)
    with counted_waits() as waits:
        taken = take(upload(values, device()), [2, 0], [1, 3])
    assert not waits
    assert np.array_equal(taken.cpu().numpy(), values[[2, 0], [1, 3]].numpy())


def test_a_mutant_that_asks_a_node_more_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceTargets, "fetch", lambda *_: None)
    assert min(waits_of_steps("model", "2x1", {})) > 3
