"""The benchmark of verification without waits: what it counts, and that every case runs."""

from pathlib import Path

import pytest
import torch
from on_gpu.asked import PieceOptions
from on_gpu.verification import CASES, QUICK_SHAPE, Traffic, case_of, measure, traffic_of


def test_kernels_and_bytes_are_those_of_operations_and_not_of_views() -> None:
    values, index = torch.rand(4, 10), torch.zeros(4, 1, dtype=torch.int64)
    with Traffic() as traffic:
        (values[:2].view(-1) + 1).unsqueeze(0)  # 20 floats are read, and 20 written
        values.gather(1, index.expand(-1, 5))  # 20 are read, by four expanded integers, and 20 written
    assert (traffic.kernels, traffic.bytes) == (2, 160 + 160 + 32)


@pytest.mark.usefixtures("unchecked")
def test_shapes_alone_tell_what_is_launched() -> None:
    case = case_of(*CASES[0], QUICK_SHAPE, torch.device("cpu"))
    *tables, _ = case.draw()
    with Traffic() as traffic:
        case.verify(*tables)
    assert traffic.kernels == traffic_of(*CASES[0], QUICK_SHAPE)["verify_kernels"]


@pytest.mark.usefixtures("unchecked")
def test_every_case_is_a_line(tmp_path: Path) -> None:
    lines = measure(PieceOptions("cpu", True, tmp_path, None))
    assert [line["scheme"] for line in lines] == [name for name, *_ in CASES]
    assert all(line["verify_kernels"] > 100 and line["ratio"] > 0 for line in lines)
