"""What a pass over so many new tokens costs, eager and compiled, by published shape."""

from collections.abc import Callable

from multidraft.models.huggingface import CausalLM
from on_gpu.asked import Asked, Line
from on_gpu.published import model_of

WIDTHS, CONTEXT = (1, 2, 4, 8, 16, 32, 64), 512
WAYS = {"eager": False, "compiled": True}


def measure(asked: Asked, name: str) -> list[Line]:
    """A line a way and width."""
    widths, context = ((1,), 16) if asked.quick else (WIDTHS, CONTEXT)
    model, lines = model_of(name, asked), []
    for way, compiles in WAYS.items():
        reader = beginning(CausalLM(model, context + 2 * max(widths), compiles), context)
        for new in widths:
            took = asked.milliseconds(a_pass(reader, new))
            lines.append(dict(model=name, way=way, tokens=new, milliseconds=round(took, 3)))
    return lines


def beginning(reader: CausalLM, context: int) -> CausalLM:
    """The reader with so many tokens kept."""
    read(reader, context)
    reader.commit([list(range(context))])
    return reader


def a_pass(reader: CausalLM, new: int) -> Callable[[], None]:
    """A pass over new tokens, of which none is kept."""

    def run() -> None:
        read(reader, new)
        reader.commit([[]])

    return run


def read(reader: CausalLM, new: int) -> None:
    """So many tokens, each of which follows the one before it."""
    reader.forward([[token % reader.vocabulary for token in range(new)]], [list(range(-1, new - 1))])
