"""A server of GGUF files: llama.cpp tells 256 paths apart, of all rows, their trees, and what is kept of others."""

import logging
from collections.abc import Callable

import pytest
from ggufs import pair_files
from heard import Heard
from marks import slow_but
from plans import costs, profile, rates

import multidraft as md
from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.plans import Profile
from multidraft.decoding.policy import StaticTree, TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import Tree
from multidraft.server import Limits
from multidraft.server.engine import Engine

pytest.importorskip("ik_llama_cpp")
PATHS, NEW = 24, 6
PAYING = profile(by_rows={1: costs(level=0.1)}, true_rates=rates(0.9))
POLICIES: dict[str, tuple[Callable[[], TreePolicy], int]] = {  # and the rows that fit
    "a fixed tree": (lambda: StaticTree(Tree.parse("3x3")), PATHS // 9),
    "a chain": (lambda: StaticTree(Tree.parse("1x1")), 8),
    "auto of a new pair": (lambda: Auto(Profile({}), 1.0, budget=1e9, paths=PATHS), PATHS // 6),
    "auto where drafts pay": (
        lambda: Auto(PAYING, 1.0, paths=PATHS),
        4,
    ),
}


@pytest.mark.parametrize("name", slow_but(["a chain", "auto where drafts pay"], POLICIES))
def test_rows_their_trees_and_kept_prefixes_fit_into_the_paths(name, monkeypatch, caplog):
    """More rows than fit, of prompts that end in no other's way, twice; those that leave last, one by one, are kept."""
    target, draft = (md.GGUF(file) for file in pair_files())
    for model in target, draft:
        model.sequences = PATHS
        monkeypatch.setattr(model.memory.library, "most_sequences", PATHS)
    policy, fitting = POLICIES[name]
    way = DecodeConfig(md.scheme("anchored:lorenz")), policy()
    with caplog.at_level(logging.WARNING):
        engine = Engine(target, draft, *way, Limits(rows=8, tokens_in_cache=4000))
        engine.start()
        for turn in range(2):
            rows = [Heard([20 + row, 40 + turn, 50], NEW + 2 * (row % 4), row) for row in range(12)]
            engine.submit([row.request for row in rows])
            for row in rows:
                assert row.over.wait(60)
            assert [len(row.tokens) for row in rows] == [NEW + 2 * (row % 4) for row in range(12)]
    engine.close()
    assert (engine.faults, engine.batch.max_num_seqs) == (0, fitting)
    assert 0 < len(engine.batch.prefixes.rows) <= PATHS
    assert ("side by side" in caplog.text) == (fitting < 8)
    assert not [record for record in caplog.records if record.exc_info]
