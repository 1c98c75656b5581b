"""A compiled drafter says what the model says, and generation goes on where compiling fails."""

import shutil

import jaxtyping
import pytest
import torch
from tiny import VOCABULARY, tiny_model

import multidraft as md
from multidraft.models import compiled
from multidraft.models.table import TableModel, random_table

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")


def tokens(family: str, compile_draft: bool, prompts: list[list[int]] | None = None) -> list[list[int]]:
    """A run with a tiny pair."""
    models, prompts = (tiny_model(family), tiny_model(family, num_hidden_layers=1)), prompts or [[1, 2, 3]]
    settings = dict(tree="2x1", generator=torch.Generator().manual_seed(3), max_new_tokens=30)
    rows, _ = md.generate(*models, prompts, compile_draft=compile_draft, **settings)
    return [row.tolist() for row in rows]


@needs_compiler
@pytest.mark.parametrize("family", ["llama", pytest.param("qwen2", marks=pytest.mark.slow)])
def test_compiled_steps_draft_the_same_tokens(family: str, monkeypatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as for users: shapes in a trace are no shapes
    calls = []
    monkeypatch.setattr(compiled.CompiledCausalLM, "widened", counted(compiled.CompiledCausalLM.widened, calls))
    expected = tokens(family, False)
    assert not calls
    assert tokens(family, True) == expected
    assert len(calls) > 10


def counted(function, calls: list):
    """The same function, leaving a mark at every call."""

    def counting(*arguments):
        calls.append(1)
        return function(*arguments)

    return counting


def test_a_batch_runs_as_ever() -> None:
    prompts = [[1, 2, 3], [4, 5]]
    assert tokens("llama", True, prompts) == tokens("llama", False, prompts)


def test_generation_goes_on_where_compiling_fails(monkeypatch) -> None:
    def broken(*arguments):
        raise RuntimeError("no compiler here")

    monkeypatch.setattr(compiled, "step_of", lambda model: broken)
    with pytest.warns(UserWarning, match="does not compile, so it runs without: no compiler here"):
        assert tokens("llama", True) == tokens("llama", False)


def test_only_models_compile() -> None:
    table = TableModel(random_table(VOCABULARY, 1, 0), VOCABULARY)
    with pytest.raises(md.AdviceError, match="compiles a Hugging Face draft model"):
        md.generate(table, table, [[1]], compile_draft=True)
