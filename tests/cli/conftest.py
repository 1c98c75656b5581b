"""Two tiny models and prompts for them."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def pair(tmp_path_factory) -> Path:
    """A folder with `target`, `draft`, and `stranger`, whose tokenizer has as many pieces, but others."""
    from commands import CONTEXT, save_model, save_pair  # not before the hook that checks hints
    from multidraft_research.training import corpus

    folder = save_pair(tmp_path_factory.mktemp("pair"))
    save_model(folder / "stranger", 2, corpus.train_tokenizer("quick brown foxes jump " * 300, 320, CONTEXT))
    return folder


@pytest.fixture
def prompts(tmp_path) -> Path:
    """Three prompts in a file."""
    from commands import written

    return written(tmp_path / "prompts.jsonl", "the old house", "a storm came", "日本語 and 😀")
