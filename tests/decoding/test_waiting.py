"""How often the host waits for a device in a step, counted on a device that is not there; and the same tokens come."""

import pytest
import torch
from distant import THERE, Device, Distant, near
from steps_there import steps

from multidraft.decoding import scored_tree
from multidraft.verification.distributions import most_likely

pytestmark = pytest.mark.usefixtures("unchecked")
STEPS = 4
ONCE = 1  # what every node claims, with the last token at each


FORESEEN = [
    ("2x1x1", "anchored:lorenz", "deferred"),
    ("2x1x1", "anchored:binned_lorenz", "commit"),
    ("1x1x1", "iid:lorenz", "deferred"),
    ("2x2", "without_replacement:recursive_rejection", "deferred"),
    ("3x1", "greedy:maximal_coupling", "commit"),
    ("2x1", "anchored:lorenz,draft_probability=0.6", "deferred"),
    ("3x2x1", "anchored:lorenz", "deferred"),
    ("3/2,1,0", "anchored:lorenz", "deferred"),
    ("3/2,1,2", "anchored:lorenz", "deferred"),
    ("4x2", "anchored:binned_lorenz", "commit"),
]


def test_slots_that_coincide_are_asked_for() -> None:
    """The same tokens come; how often the host waits is not settled there."""
    with Device() as device:
        there = steps(STEPS, "2x1x1", "iid:lorenz", "deferred", device)
    assert there == steps(STEPS, "2x1x1", "iid:lorenz", "deferred")
    assert sum(device.waits.values()) > STEPS * ONCE


@pytest.mark.parametrize(("tree", "scheme", "walk"), [*FORESEEN, ("2x1x1", "iid:lorenz", "deferred")])
def test_targets_at_all_nodes_at_once_are_those_one_by_one(tree: str, scheme: str, walk: str, monkeypatch) -> None:
    together = steps(STEPS, tree, scheme, walk)
    monkeypatch.setattr(scored_tree, "FEW", 0)
    monkeypatch.setattr(scored_tree.ScoredTree, "everywhere", property(lambda tree: pytest.fail("at once")))
    assert together == steps(STEPS, tree, scheme, walk)


def test_the_count_sees_what_waits() -> None:
    """So that the counts above can fail."""
    values, mask = torch.arange(4), torch.tensor([True, False, True, False])
    with Device() as device:
        distant, chosen = Distant(values), Distant(mask)
        for asks in (
            lambda: int(distant[2]),
            distant.tolist,
            distant.cpu,
            lambda: bool((distant > 1).any()),
            lambda: distant[[0, 1]],
            lambda: distant[chosen],
            lambda: chosen.nonzero(),
            lambda: values.to(THERE),
            lambda: torch.tensor([1, 2], device=THERE),
        ):
            before = sum(device.waits.values())
            asks()
            assert sum(device.waits.values()) == before + 1
        device.waits.clear()
        assert near(distant[1:].cumsum(0) + values.to(THERE, non_blocking=True)[1:]).tolist() == [2, 5, 9]
        assert not device.waits
        with pytest.raises(RuntimeError, match="two devices"):
            distant + values


def test_the_first_of_equals_without_a_look() -> None:
    draft = torch.tensor([[0.2, 0.3, 0.3, 0.1, 0.1], [0.0, 1.0, 0.0, 0.0, 0.0], [0.2] * 5])
    for count in range(8):
        with Device():
            found = near(most_likely(Distant(draft), count))
        assert found.equal(most_likely(draft, count))
