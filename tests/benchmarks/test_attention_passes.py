"""The benchmark of attention: both ways over the same memory, and a ratio of what was timed. No timing is checked."""

import json

import attention as benchmark
import pytest
import torch


def test_a_line_a_case(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    if benchmark.team() is None:
        pytest.skip("PyTorch has other threads here")
    monkeypatch.setattr(benchmark, "LAYERS", 1)
    monkeypatch.setattr(benchmark, "PASSES", 1)
    outputs: list[torch.Tensor] = []

    def timed(ways, memory) -> list[float]:
        outputs.extend(way(*memory[0]) for way in ways)
        return [2.0, 8.0]

    monkeypatch.setattr(benchmark, "milliseconds", timed)
    arguments = ["--rows", "2", "--new", "1", "--context", "40", "--dtype", "float32", "--json"]
    monkeypatch.setattr("sys.argv", ["attention.py", *arguments])
    benchmark.main()
    (line,) = json.loads(capsys.readouterr().out)["lines"]
    assert (line["rows"], line["ours"], line["pytorch"], line["ratio"]) == (2, 2.0, 8.0, 0.25)
    ours, theirs = outputs[0], outputs[1].view(2, 3, 3, 1, 64).permute(0, 3, 1, 2, 4).reshape(2, 1, 9, 64)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
