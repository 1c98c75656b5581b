"""The judging of trees as a captured piece: the same tokens as without, on a device and with graphs that are not there.

The stand-in for a graph runs the same call over the same tensors, and writes what comes of it where it was.
"""

from collections.abc import Callable

import pytest
import torch
from distant import Device
from steps_there import steps
from torch import Tensor

from multidraft.decoding import foreseen, pieces
from multidraft.decoding.judging import Inputs
from multidraft.decoding.pieces import Piece, Pieces, tensors_of
from multidraft.sampling.settings import Sampling

pytestmark = pytest.mark.usefixtures("unchecked")
COUNT = 6
PLANS = [
    ("2x1x1", "anchored:lorenz", "deferred"),
    ("3/2,1,2", "anchored:lorenz", "commit"),
    ("1x1x1", "iid:lorenz", "deferred"),
    ("2x2", "without_replacement:recursive_rejection", "deferred"),
    ("4x2", "anchored:binned_lorenz", "commit"),
]


@pytest.fixture
def recorded(monkeypatch) -> list[int]:
    """How often each recording has been replayed, in a thread that has no pieces yet."""
    replays: list[int] = []

    def captured(call: Callable[[], list[Tensor]], pool: None) -> Callable[[], list[Tensor]]:
        own, results = len(replays), call()
        replays.append(0)

        def replay() -> list[Tensor]:
            replays[own] += 1
            for result, new in zip(results, call(), strict=True):
                result.copy_(new)
            return [result.clone() for result in results]

        return replay

    monkeypatch.setattr(pieces, "captured", captured)
    monkeypatch.setattr(pieces, "KINDS", {"cpu", "meta"})
    monkeypatch.setattr(foreseen, "PIECES", Pieces())
    return replays


def there(plan: tuple[str, str, str]) -> list[list[int]]:
    """What some steps emit on the device, each with one wait."""
    with Device() as device:
        emitted = steps(COUNT, *plan, device)
    assert sum(device.waits.values()) == COUNT
    return emitted


@pytest.mark.parametrize("plan", PLANS)
def test_the_same_tokens(plan: tuple[str, str, str], recorded: list[int]) -> None:
    assert there(plan) == steps(COUNT, *plan)
    assert recorded == [COUNT - pieces.OFTEN + 1]


@pytest.mark.parametrize("forgotten", range(5), ids=Inputs._fields)
def test_an_input_that_stays_as_it_was_is_seen(forgotten: int, recorded: list[int], monkeypatch) -> None:
    def fill(piece: Piece, inputs: Inputs) -> None:
        for place, (own, given) in enumerate(zip(tensors_of(piece.inputs), tensors_of(inputs), strict=True)):
            if min(place, 4) != forgotten or not hasattr(piece, "replay"):
                own.copy_(given)

    monkeypatch.setattr(Piece, "fill", fill)
    assert there(PLANS[0]) != steps(COUNT, *PLANS[0])


def test_a_piece_serves_a_key(recorded: list[int]) -> None:
    for plan in (PLANS[0], PLANS[2], PLANS[0], PLANS[2]):
        there(plan)
    assert recorded == [2 * COUNT - pieces.OFTEN + 1] * 2


class Adding:
    """Stands in for a judging."""

    sampling = Sampling()

    def __call__(self, inputs: Inputs) -> list[Tensor]:
        return [inputs.logits + inputs.levels[0]]


def run(known: Pieces, key: str, value: float) -> float:
    """What comes of a value and itself."""
    tensor = torch.full((1,), value)
    return float(known.run(key, Adding(), Inputs(tensor, tensor, tensor, tensor, [tensor]))[0])


def test_keys_of_long_ago_are_forgotten(recorded: list[int], monkeypatch) -> None:
    monkeypatch.setattr(pieces, "MOST", 2)
    known = Pieces()
    for _ in range(2 * pieces.OFTEN):
        for value, key in enumerate("abc"):  # one more than there is room for: none is recorded
            assert run(known, key, value) == 2 * value
    assert recorded == []
    for value in range(pieces.OFTEN + 1):
        assert run(known, "a", value) == 2 * value
    assert recorded == [2]
    assert len(known.known) == 2


def test_results_outlive_the_next_replay(recorded: list[int]) -> None:
    known, tensor = Pieces(), torch.ones(1)
    inputs = Inputs(tensor, tensor, tensor, tensor, [tensor])
    results = [known.run("a", Adding(), inputs)[0] for _ in range(pieces.OFTEN + 1) if tensor.add_(1).any()]
    assert torch.cat(results).tolist() == [4.0, 6.0, 8.0, 10.0]


def test_where_capturing_fails_all_goes_on(recorded: list[int], monkeypatch) -> None:
    attempts = []

    def fails(call: Callable, pool: None) -> None:
        attempts.append(call)
        raise RuntimeError("this driver\ncannot")

    monkeypatch.setattr(pieces, "captured", fails)
    with pytest.warns(UserWarning, match="not captured.*: this driver$"):
        assert there(PLANS[0]) == steps(COUNT, *PLANS[0])
    assert there(PLANS[2]) == steps(COUNT, *PLANS[2])
    assert len(attempts) == 1
