"""What a pass over so many new tokens costs, eager and compiled, by published shape."""

from collections.abc import Callable

import torch

from multidraft.models.compiled import CompiledCausalLM
from multidraft.models.huggingface import CausalLM
from on_gpu.asked import Asked, Line
from on_gpu.published import model_of

WIDTHS, CONTEXT = (1, 2, 4, 8, 16, 32, 64), 512
WAYS: dict[str, type[CausalLM]] = {"eager": CausalLM, "compiled": CompiledCausalLM}


def measure(asked: Asked, name: str) -> list[Line]:
    """A line a way and width."""
    widths, context = ((1,), 16) if asked.quick else (WIDTHS, CONTEXT)
    model, lines = model_of(name, asked), []
    for way, kind in WAYS.items():
        reader = beginning(kind(model, context + 2 * max(widths)), context)
        for new in widths:
            took = asked.milliseconds(a_pass(reader, new, context))
            lines.append(dict(model=name, way=way, tokens=new, milliseconds=round(took, 3)))
    return lines


def beginning(reader: CausalLM, context: int) -> CausalLM:
    """The reader with so many tokens kept."""
    read(reader, context, 0)
    reader.keep(torch.arange(context)[None])
    return reader


def a_pass(reader: CausalLM, new: int, context: int) -> Callable[[], None]:
    """A pass over new tokens, of which none is kept."""

    def run() -> None:
        read(reader, new, context)
        reader.keep(torch.empty(1, 0, dtype=torch.int64))

    return run


def read(reader: CausalLM, new: int, start: int) -> None:
    """So many tokens, each of which sees those before it."""
    tokens = torch.arange(new, device=reader.device)[None]
    sees = torch.ones(1, new, new, dtype=torch.bool, device=reader.device).tril()
    reader.forward(tokens % reader.vocabulary, start + tokens, sees)
