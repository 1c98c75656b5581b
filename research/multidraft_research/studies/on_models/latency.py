"""SpecTr, Tables 2 and 3: what a pass over more tokens, or over more rows, costs beside the smallest one."""

from collections.abc import Iterator
from itertools import product
from time import perf_counter

import torch
from transformers import DynamicCache, PreTrainedModel

from multidraft.models.huggingface.compat import home, memory_name
from multidraft_research.studies.running.cells import Cell
from multidraft_research.studies.running.study import Decoding, Panel, Study

LENGTHS, BATCHES = (1, 4, 8, 16), (1, 2, 4, 8)
ROLES, SMALLEST = ("target", "draft"), ("target", 4, 1)
REPEATS = 3  # the shortest counts


def measure(decoding: Decoding) -> Iterator[Cell]:
    """Passes of both models after the prompt, over those of the target with 4 tokens and one row, as in the paper."""
    took = {
        (role, length, batch): seconds(getattr(decoding.pair, role), decoding.passage.tokens, length, batch)
        for role, length, batch in product(ROLES, LENGTHS, BATCHES)
    }
    for (role, length, batch), seconds_of_case in took.items():
        yield Cell(role, f"length = {length}", float(batch), seconds_of_case, took[SMALLEST])


@torch.inference_mode()
def seconds(model: PreTrainedModel, prompt: list[int], length: int, batch: int) -> float:
    """The shortest time of a pass over so many tokens in so many rows, which all have read the prompt."""
    ids = torch.tensor([prompt], device=home(model)).expand(batch, -1)
    new_ids = ids[:, :1].expand(-1, length)
    return min(one_pass(model, ids, new_ids) for _ in range(REPEATS))


def one_pass(model: PreTrainedModel, read: torch.Tensor, new_ids: torch.Tensor) -> float:
    """Seconds of a pass over `new`, after one over `read` that is not counted."""
    memory = {memory_name(model): DynamicCache()}
    model(read, use_cache=True, **memory)
    wait(model)
    start = perf_counter()
    model(new_ids, use_cache=True, **memory)
    wait(model)
    return perf_counter() - start


def wait(model: PreTrainedModel) -> None:
    """Until the device has done what it was asked."""
    if home(model).type == "cuda":
        torch.cuda.synchronize()


STUDY = Study(
    paper="SpecTr, Tables 2 and 3",
    panels={
        role: Panel(f"a pass of the {role} over one of the target with 4 tokens and one row", "batch") for role in ROLES
    },
    on_models=measure,
    printed=("spectr_table_2", "spectr_table_3"),
)
