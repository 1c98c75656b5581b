"""Where the time of a step goes, by part: a pair of published shapes, recorded and compiled, beside plain decoding."""

from typing import Any

import torch

import multidraft as md
from multidraft.decoding.metrics import Info
from multidraft.generation import DEFAULT_SCHEME
from on_gpu.asked import Line, PieceOptions
from on_gpu.published import model_of

TREES, DRAFT = ("1x1x1", "2x1x1x1", "4x2x2x1"), "0.6 B"


def measure(piece_options: PieceOptions, name: str) -> list[Line]:
    """A line a tree and way; the weights are random, so that hardly any draft is accepted: steps are what counts."""
    return [line_of(piece_options, name, tree, way) for tree, way in cases(piece_options)]


def cases(piece_options: PieceOptions) -> list[tuple[str | None, bool]]:
    """Trees, of which None drafts nothing, each recorded and compiled."""
    trees = TREES[:1] if piece_options.quick else TREES
    return [(tree, way) for tree in (None, *trees) for way in (False, True)[: 1 + piece_options.compiles]]


def line_of(piece_options: PieceOptions, name: str, tree: str | None, way: bool) -> Line:
    """Milliseconds of a step, and of its parts where all wait for each other at their ends; a first run warms up."""
    steps, waits = 4 if piece_options.quick else 48, piece_options.device.type == "cuda"
    run(piece_options, name, tree, way, 2 * steps)
    line = dict(model=name, tree=tree or "plain", way="compiled" if way else "recorded")
    line |= {part: round(took, 3) for part, took in parts(run(piece_options, name, tree, way, steps, waits)).items()}
    return line | dict(step=round(sum(parts(run(piece_options, name, tree, way, steps)).values()), 3))


def parts(info: Info) -> dict[str, float]:
    """Milliseconds of a step by part."""
    return {part: 1e3 * info.seconds[part] / info.target_passes for part in ("draft", "target", "rule", "cache")}


def run(
    piece_options: PieceOptions, name: str, tree: str | None, way: bool, new_tokens: int, synchronise: bool = False
) -> Info:
    """So many new tokens."""
    settings: dict[str, Any] = dict(scheme=DEFAULT_SCHEME, tree=tree) if tree else {}
    _, info = md.generate(
        model_of(name, piece_options),
        model_of(DRAFT, piece_options) if tree else None,
        [list(range(64))],
        max_new_tokens=new_tokens,
        eos_token_id=[],
        generator=torch.Generator().manual_seed(0),
        measure=False,
        synchronise=synchronise,
        compile=way,
        **settings,
    )
    return info
