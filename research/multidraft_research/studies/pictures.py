"""One style for all pictures, drawn without a screen."""

from io import BytesIO
from pathlib import Path
from typing import Any

from multidraft.errors import optional
from multidraft.io import files
from multidraft.io.files import check_picture as check

COLOURS = ("#1b6ca8", "#d1495b", "#2a9d5c", "#edae49", "#6c4f9c", "#4a4e57", "#00a0a0", "#b5651d")


def figure(columns: int = 1, rows: int = 1, width: float = 4.5, height: float = 3.2) -> tuple[Any, Any]:
    """A figure and its axes, an array of shape (rows, columns)."""
    optional("matplotlib", "matplotlib", "plot")
    from cycler import cycler
    from matplotlib.figure import Figure

    drawn = Figure(figsize=(columns * width, rows * height), layout="constrained", dpi=110)
    axes = drawn.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.set_prop_cycle(cycler(color=COLOURS))
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return drawn, axes


def legend(drawn: Any, handles: dict[str, Any], noise: str, columns: int) -> None:
    """One legend below all panels, by name, under a line that says what the noise of the picture is."""
    place = dict(loc="outside lower center", ncols=columns, frameon=False)
    drawn.legend(handles.values(), handles, title=noise, fontsize="small", title_fontsize="small", **place)


def save(drawn: Any, path: Path) -> None:
    """Write a figure; the ending of `path` says how."""
    check(path)
    content = BytesIO()
    drawn.savefig(content, format=path.suffix[1:])
    files.write(path, content.getvalue())
