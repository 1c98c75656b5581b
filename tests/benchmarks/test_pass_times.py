"""The benchmark of passes: both ways over the same texts, only one of them through our view. No timing is checked."""

import passes as benchmark
import pytest
from tiny import tiny_model

from multidraft.models.huggingface.masks import CausalLM


def test_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, plainly = list[tuple[bool, list[int]]](), benchmark.milliseconds

    def timed(reader: CausalLM, new: int) -> float:
        plainly(reader, new)
        is_ours = reader.view is not reader.model
        seen.append((is_ours, reader.cache.lengths))
        return 2.0 if is_ours else 8.0

    monkeypatch.setattr(benchmark, "milliseconds", timed)
    model = tiny_model("llama", hidden_size=128, intermediate_size=160)
    line = benchmark.compared(model, rows=2, new=3, context=12)
    assert line == dict(rows=2, new=3, context=12, ours=2.0, transformers=8.0, ratio=0.25)
    assert seen == (1 + benchmark.ROUNDS) * [(True, [12, 9]), (False, [12, 9])]
