"""The one list of pieces, in the order in which they run: what later ones need, and what matters most, comes first."""

from dataclasses import dataclass
from importlib import import_module

from on_gpu.asked import Line, PieceOptions


@dataclass(frozen=True)
class Piece:
    """What is measured, and where; its module is imported in a process of its own, or of some that share a model."""

    name: str
    module: str
    function: str = "measure"
    arguments: tuple[str, ...] = ()
    goes_on: bool = False  # whether it keeps what it has done when it is stopped
    again: bool = False  # whether an earlier piece has shown that it runs
    process: str = ""  # pieces of one in a row share what is made and compiled; without a name, a process of its own

    def measure(self, piece_options: PieceOptions) -> list[Line]:
        """Its lines."""
        return getattr(import_module(f"on_gpu.{self.module}"), self.function)(piece_options, *self.arguments)


def of_shape(module: str, shape: str, again: bool = False) -> Piece:
    """A piece about a published shape, beside the others about it."""
    return Piece(f"{module} of {shape}", module, arguments=(shape,), again=again, process=shape)


PIECES = [
    Piece("tests that need a GPU", "marked_tests"),
    of_shape("passes", "8 B"),
    of_shape("steps", "8 B"),
    of_shape("launches", "8 B"),
    Piece("verification without waits", "verification"),
    Piece("rules", "rules"),
    Piece("answer chats by SmolLM2", "chats"),
    Piece("decode the embedded pair", "decoding", "of_the_embedded", goes_on=True),
    Piece("train a larger pair", "trained", goes_on=True),
    Piece("decode the trained pair", "decoding", "of_the_trained", goes_on=True),
    of_shape("passes", "0.6 B", again=True),
    of_shape("passes", "1.7 B", again=True),
    of_shape("passes", "14 B", again=True),
    of_shape("steps", "14 B", again=True),
]
