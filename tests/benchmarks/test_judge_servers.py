"""The benchmark that judges servers: verdicts are kept, failures are lines, and vLLM's kernels are mended rightly."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import judge_servers
import pytest
import servers
import torch
import vllm_mended
from serving import served, toy

from multidraft.errors import AdviceError

STARTS = list[str]()
SUBJECTS = [
    judge_servers.Subject(servers.Contestant(name, [], {}), "toy", ["--logprobs", "6"]) for name in ("fine", "broken")
]


@contextmanager
def running(contestant: servers.Contestant, log: Path, threads: int) -> Iterator[servers.Server]:
    """A pair of tables, or nothing."""
    STARTS.append(contestant.name)
    if contestant.name == "broken":
        raise AdviceError("the server 'broken' did not begin")
    with served(toy()) as client:
        yield servers.Server(str(client.base_url), os.getpid())


@pytest.mark.slow
def test_verdicts_and_failures_are_kept(monkeypatch, unchecked, tmp_path, capsys):
    """False alarm with odds of 1e-6 at most."""
    monkeypatch.setattr(judge_servers, "running", running)
    monkeypatch.setattr(judge_servers, "ours", lambda: SUBJECTS)
    words = ["judge_servers.py", str(tmp_path), "--temperature", "1", "--budget-tokens", "1500"]
    monkeypatch.setattr("sys.argv", words)
    tables = []
    for _ in range(2):
        judge_servers.main()
        tables.append(capsys.readouterr().out)
    assert STARTS == ["fine", "broken"]
    assert tables[0] == tables[1]
    *_, fine, broken = tables[0].splitlines()
    assert fine.startswith("| fine | 1 |")
    assert fine.endswith(": nothing found |  |  |")
    assert broken == "| broken | 1 |  | the server 'broken' did not begin |  |  |"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
def test_the_mended_kernel_repeats_values_in_place(dtype):
    """vLLM's own writes into a copy unless the type is int64."""
    output, values = torch.full((6,), 9, dtype=dtype), torch.tensor([2, 0, 5], dtype=dtype)
    vllm_mended.expand(output, values, torch.tensor([2, 3, 6], dtype=torch.int32), 0, 1, 32)
    assert output.tolist() == [2, 2, 1, 5, 5, 5]


def test_synthetic_acceptance_goes_by_its_rates():
    """Rows: one draft rejected, all accepted, no drafts, left out."""
    output = torch.full((4, 3), -1, dtype=torch.int32)
    drafts, instead = torch.tensor([1, 2, 3, 4, 5]), torch.tensor([11, 12, 13, 14, 15])
    uniform, rates = torch.tensor([0.1, 0.6, 0.1, 0.4, 0.1]), torch.tensor([0.9, 0.5])
    bonus, ends = torch.tensor([[21], [22], [23], [24]]), torch.tensor([2, 4, 4, 5])
    vllm_mended.accept_at_rates(output, ends, drafts, instead, bonus, uniform, rates, [0, 1, 2])
    assert output.tolist() == [[1, 12, -1], [3, 4, 22], [23, -1, -1], [-1, -1, -1]]
