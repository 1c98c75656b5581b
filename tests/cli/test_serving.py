"""What `multidraft serve` makes of its settings."""

import threading
from collections.abc import Iterator

import pytest
import torch
from serving import letters

from multidraft.cli import replicas
from multidraft.cli.models import Models
from multidraft.cli.replicas import Serving
from multidraft.models.table import TableModel, random_table
from multidraft.server.process import apart
from multidraft.server.rows import Ended, Job

SIZE = 6


@pytest.fixture
def service(monkeypatch) -> Iterator:
    """Makes services over a pair of tables; torch's threads are afterwards what they were."""
    before, made = torch.get_num_threads(), []
    pair = (TableModel(random_table(SIZE, 2, seed), SIZE) for seed in (1, 2))
    monkeypatch.setattr(replicas, "load", lambda *_: Models(*pair, letters(SIZE)))

    def make(**settings):
        made.append(apart(Serving(**settings).service).result())
        made[-1].engine.start()
        return made[-1]

    yield make
    for each in made:
        each.engine.close()
    torch.set_num_threads(before)


def threads_of(made) -> set[int]:
    """How many the engine's own thread computes with: torch keeps a number for every thread of Python."""
    seen, over = list[int](), threading.Event()

    def hear(event) -> None:
        seen.append(torch.get_num_threads())
        if isinstance(event, Ended):
            over.set()

    made.engine.submit([Job([1, 2], 5, hear)])
    assert over.wait(60)
    return set(seen)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_engine_computes_with_the_threads_that_are_asked_for(service, count):
    assert threads_of(service(tree="2x1", threads=count)) == {count}
