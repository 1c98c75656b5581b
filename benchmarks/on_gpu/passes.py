"""What a pass over so many new tokens costs by published shape: launched kernel by kernel, recorded, and compiled."""

from collections.abc import Callable

from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.reader import chain_parents
from on_gpu.asked import Line, PieceOptions
from on_gpu.published import model_of

WIDTHS, CONTEXT = (1, 2, 4, 8, 16, 32, 64), 512
WAYS: dict[str, dict[str, bool]] = {
    "launched": dict(fixed_shapes=False),
    "recorded": dict(fixed_shapes=True),
    "compiled": dict(compiled=True),
}


def measure(piece_options: PieceOptions, name: str) -> list[Line]:
    """A line a way and width."""
    widths, context = ((1,), 16) if piece_options.quick else (WIDTHS, CONTEXT)
    model, lines = model_of(name, piece_options), []
    for way, settings in list(WAYS.items())[: None if piece_options.compiles else -1]:
        reader = beginning(CausalLM(model, context + 2 * max(widths), **settings), context)
        for num_new in widths:
            took = piece_options.milliseconds(a_pass(reader, num_new))
            lines.append(dict(model=name, way=way, tokens=num_new, milliseconds=round(took, 3)))
    return lines


def beginning(reader: CausalLM, context: int) -> CausalLM:
    """The reader with so many tokens kept."""
    read(reader, context)
    reader.commit([list(range(context))])
    return reader


def a_pass(reader: CausalLM, num_new: int) -> Callable[[], None]:
    """A pass over new tokens, of which none is kept."""

    def run() -> None:
        read(reader, num_new)
        reader.commit([[]])

    return run


def read(reader: CausalLM, num_new: int) -> None:
    """So many tokens, each of which follows the one before it."""
    reader.forward([[token % reader.vocabulary for token in range(num_new)]], [chain_parents(num_new)])
