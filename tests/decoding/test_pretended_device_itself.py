"""The pretended device: it refuses what a GPU refuses, counts what makes the host wait, and gives mutants away."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from pretended import Pretended, counted_waits, device, moved
from tiny import tiny_model
from transformers import PreTrainedModel

import multidraft as md
from multidraft.models.huggingface.kv_cache import TreeCache
from multidraft.models.huggingface.masks import CausalLM
from multidraft.sampling.row_faults import RowFault
from multidraft.verification.loops import softmax_lines

ON_CPU = torch.tensor([1, 2, 0])
REFUSED: dict[str, Callable[[Any], object]] = {
    "two devices": lambda there: there + torch.ones(3),
    "two devices in a list": lambda there: torch.stack([there, torch.ones(3)]),
    "into a tensor of the CPU": lambda there: torch.ones(3).add_(there),
    "an index of the device for a tensor of the CPU": lambda there: ON_CPU[there.long()],
    "a value of the CPU in a place of the device": lambda there: there.index_put_((ON_CPU,), torch.ones(3)),
    "a NumPy view": lambda there: there.numpy(),
    "an array of it": lambda there: np.asarray(there),
    "a compiled loop": lambda there: softmax_lines(there[None], 1.0),
    "pinned memory": lambda there: torch.ones(3, pin_memory=True, device=device()),
}
WAITS: dict[str, tuple[int, Callable[[Any], object]]] = {
    "arithmetic": (0, lambda there: (there + 1).cumsum(0).sort().values.sum()),
    "a copy to it that does not block": (0, lambda there: ON_CPU.to(device(), non_blocking=True)),
    "a copy to it": (1, lambda there: ON_CPU.to(device())),
    "a copy from it": (1, lambda there: there.cpu()),
    "Python's numbers": (1, lambda there: torch.tensor([1.0, 2.0], device=device())),
    "two lists as indices": (2, lambda there: there.view(1, 3)[[0, 0], [1, 2]]),
    "an index of the CPU": (1, lambda there: there[ON_CPU]),
    "an index of its own": (0, lambda there: there[ON_CPU.to(device(), non_blocking=True)]),
    "a mask": (1, lambda there: there[there > 1]),
    "a number where a mask is": (0, lambda there: there.masked_fill(there > 1, 0.0)),
    "a value": (1, lambda there: float(there.sum())),
    "a list": (1, lambda there: there.tolist()),
    "a question": (1, lambda there: bool((there > 1).any())),
    "a comparison": (1, lambda there: there.equal(there)),
    "different values": (1, lambda there: there.unique()),
}


def numbers() -> torch.Tensor:
    """Some numbers on the device."""
    return torch.tensor([1.0, 2.0, 3.0]).to(device())


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", REFUSED)
def test_it_refuses_what_a_gpu_refuses(name: str, inference: bool) -> None:
    with torch.inference_mode(inference), pytest.raises((RuntimeError, TypeError), match=r"device|pinned"):
        REFUSED[name](numbers())


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", WAITS)
def test_it_counts_waits(name: str, inference: bool) -> None:
    expected, operation = WAITS[name]
    there = numbers()
    with torch.inference_mode(inference), counted_waits() as waits:
        operation(there)
    assert waits.total() == expected


def test_a_copy_that_does_not_block_holds_nonsense_until_the_host_waits() -> None:
    copy = numbers().to("cpu", non_blocking=True)
    assert copy.isnan().all()
    assert numbers()[0].item() == 1
    assert copy.tolist() == [1, 2, 3]


def test_pytorch_knows_of_no_accelerator() -> None:
    assert numbers().device == device()
    assert not torch.accelerator.is_available()


def generate(kind: type[CausalLM] = CausalLM) -> list[list[int]]:
    settings = dict(max_new_tokens=5, eos_token_id=[], generator=torch.Generator().manual_seed(0), tree="2x1")
    rows, _ = md.generate(kind(moved(tiny_model("llama"))), moved(tiny_model("qwen2")), [[1, 2, 3], [4]], **settings)
    return [row.tolist() for row in rows]


class MasksOnCpu(TreeCache):
    """Wrong: its masks stay on the CPU."""

    def masks(self, windows: dict, dtype: torch.dtype, _: torch.device) -> dict[str, torch.Tensor]:
        return super().masks(windows, dtype, torch.device("cpu"))


class LeftOnCpu(CausalLM):
    """A reader with such a cache."""

    def __init__(self, model: PreTrainedModel, capacity: int = 256):
        super().__init__(model, capacity)
        self.cache = MasksOnCpu(model.config.num_hidden_layers, capacity)

    def new(self, capacity: int) -> "LeftOnCpu":
        return LeftOnCpu(self.model, capacity)


def test_a_mutant_that_leaves_a_tensor_on_the_cpu_is_caught() -> None:
    with pytest.raises(RuntimeError, match="on one device"):
        generate(LeftOnCpu)


def test_a_mutant_that_reads_a_copy_before_it_has_arrived_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """By an error, or by other tokens: what has not arrived is nonsense."""
    right = generate()
    monkeypatch.setattr(Pretended, "cpu", lambda tensor: tensor.to("cpu", non_blocking=True))
    try:
        assert generate() != right
    except (RowFault, IndexError):
        pass
