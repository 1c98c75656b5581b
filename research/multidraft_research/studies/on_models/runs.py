"""One prompt decoded with and without drafts, and what that adds to the tables."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from multidraft.decoding.metrics import Info
from multidraft.generation.generate import generate
from multidraft.zoo import Pair
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Panel

WARM_UP = 4  # tokens: the first passes of a process are slow
ACCEPTANCE, EFFICIENCY, SPEED, FEWER = "acceptance", "block efficiency", "speed", "passes"


def panels(columns: str, base: str = "") -> dict[str, Panel]:
    """How `cells` are shown; `base` is what the passes are compared with."""
    shown = {
        ACCEPTANCE: Panel("nodes at which a draft was accepted, %", columns, 100.0, 1),
        EFFICIENCY: Panel("block efficiency, tokens a target pass", columns),
        SPEED: Panel("speed, times plain decoding", columns),
    }
    return shown | ({FEWER: Panel(f"target passes of {base} over its own", columns)} if base else {})


def decode_prompt(decoding: Decoding, temperature: float, drafts: bool = True, **how: Any) -> Info:
    """Decode the prompt to the number of tokens asked for, whatever they are."""
    warm_up(decoding.pair)
    _, info = generate(
        decoding.pair.target,
        decoding.pair.draft if drafts else None,
        [decoding.passage.tokens],
        temperature=temperature,
        max_new_tokens=decoding.new_tokens,
        eos_token_id=[],
        measure=False,
        generator=torch.Generator().manual_seed(decoding.seed),
        **how,
    )
    return info


@lru_cache(maxsize=1)
def warm_up(pair: Pair) -> None:
    """Decode a few tokens that nobody counts, once in a process; the tree is given, as to choose one takes a plan."""
    generate(pair.target, pair.draft, [[0]], tree="2x1", max_new_tokens=WARM_UP, measure=False)


def cells(row: str, column: str | float, info: Info, plain: Info, base: Info | None = None) -> Iterator[Cell]:
    """What a run adds; all runs of a prompt make as many tokens, so that seconds and passes can be compared."""
    yield Cell(ACCEPTANCE, row, column, info.accepted, info.accepted + info.recovered)
    yield Cell(EFFICIENCY, row, column, info.row_passes + info.accepted, info.row_passes)
    yield Cell(SPEED, row, column, plain.decoding_seconds, info.decoding_seconds)
    if base is not None:
        yield Cell(FEWER, row, column, base.row_passes, info.row_passes)
