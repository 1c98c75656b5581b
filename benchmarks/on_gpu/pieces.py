"""The one list of pieces, in the order in which they run: what later ones need, and what matters most, comes first."""

from dataclasses import dataclass
from importlib import import_module

from on_gpu.asked import Line, PieceOptions


@dataclass(frozen=True)
class Piece:
    """What is measured, and where; its module is imported in its own process."""

    name: str
    module: str
    function: str = "measure"
    arguments: tuple[str, ...] = ()
    goes_on: bool = False  # whether it keeps what it has done when it is stopped
    again: bool = False  # whether an earlier piece has shown that it runs

    def measure(self, piece_options: PieceOptions) -> list[Line]:
        """Its lines."""
        return getattr(import_module(f"on_gpu.{self.module}"), self.function)(piece_options, *self.arguments)


PIECES = [
    Piece("tests that need a GPU", "marked_tests"),
    Piece("passes of 8 B", "passes", arguments=("8 B",)),
    Piece("steps of 8 B", "steps", arguments=("8 B",)),
    Piece("launches of 8 B", "launches", arguments=("8 B",)),
    Piece("verification without waits", "verification"),
    Piece("rules", "rules"),
    Piece("decode the embedded pair", "decoding", "of_the_embedded", goes_on=True),
    Piece("train a larger pair", "trained", goes_on=True),
    Piece("decode the trained pair", "decoding", "of_the_trained", goes_on=True),
    Piece("passes of 0.6 B", "passes", arguments=("0.6 B",), again=True),
    Piece("passes of 1.7 B", "passes", arguments=("1.7 B",), again=True),
    Piece("passes of 14 B", "passes", arguments=("14 B",), again=True),
    Piece("steps of 14 B", "steps", arguments=("14 B",), again=True),
]
