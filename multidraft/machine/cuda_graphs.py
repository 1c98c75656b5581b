"""All that a call launches on a GPU as one graph: a replay costs the host one launch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Call = Callable[[], list[Tensor]]


def captured(call: Call, pool: Any) -> Call:
    """A call's replay over the same memory; it runs twice before, which settles what is chosen when it first runs."""
    here, aside, graph = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.CUDAGraph()
    aside.wait_stream(here)
    with torch.cuda.stream(aside):
        for _ in range(2):
            call()
    here.wait_stream(aside)
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):  # other threads may go on
        results = call()

    def replay() -> list[Tensor]:
        graph.replay()
        return [result.clone() for result in results]  # which the next replay of any graph of the pool may overwrite

    return replay
