"""What a reader says: its values at some nodes."""

import pytest
import torch

from multidraft.models.scores import values_at


@pytest.mark.parametrize(
    "places", [[(0, 0), (0, 1), (1, 0), (1, 1)], [(1, 0), (1, 1), (0, 0), (0, 1)], [(1, 1), (0, 0)]]
)
def test_values_are_those_of_the_places_in_the_order_asked_for(places):
    values = torch.arange(12.0).reshape(2, 2, 3)
    rows, columns = map(list, zip(*places, strict=True))
    assert values_at(values, rows, columns).tolist() == [values[place].tolist() for place in places]
