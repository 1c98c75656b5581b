"""Steps of the real loop, near or on the device that is not there."""

import torch
from distant import Device, There

import multidraft as md
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.state import Plan
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.table import TableModel, random_table

VOCABULARY, ROWS = 12, 2


def steps(count: int, tree: str, scheme: str, walk: str, device: Device | None = None) -> list[list[int]]:
    """What some steps emit, near, or on the device."""
    models = [TableModel(random_table(VOCABULARY, 2, seed), VOCABULARY) for seed in (0, 1)]
    if device is not None:
        models = [There(model, device) for model in models]
    plan = Plan(md.scheme(scheme), Tree.parse(tree), walk=walk, measure=False)
    random = [torch.Generator().manual_seed(row) for row in range(ROWS)]
    state = start([[1, 2, 3]] * ROWS, *models, plan, 100, random, Info())
    if device is not None:
        device.waits.clear()
    emitted: list[list[int]] = [[] for _ in range(ROWS)]
    for _ in range(count):
        state, new = step(state, plan, Info())
        for row, own in zip(emitted, new, strict=True):
            row += own.tokens
    return emitted
