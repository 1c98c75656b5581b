"""The picture of the solve-time table: time and acceptance of every method, problem by problem."""

from pathlib import Path
from typing import Any

from multidraft_research.studies import pictures
from multidraft_research.studies.solve_time_table import MethodLine

MARKERS = "osD^v<>PXph"
NOISE = "bars: middle 95 % of tokens; acceptance is a ratio of sums over the same tokens"
SHIFT = 0.03  # between methods, so that their bars stand beside each other
LOWEST = 0.85  # of the acceptance that is shown: naive is below it


def draw(table: list[MethodLine], path: Path) -> None:
    """A column for each source: times above, acceptance over the optimum below; hollow where some tokens failed."""
    sources = list(dict.fromkeys(line.source for line in table))
    figure, axes = pictures.figure(columns=len(sources), rows=2, width=5.4, height=3.0)
    for column, source in enumerate(sources):
        lines = [line for line in table if line.source == source]
        panel(axes[0, column], lines, "milliseconds")
        axes[0, column].set(yscale="log", ylabel="ms for a token", title=f"{source} pair")
        panel(axes[1, column], lines, "share")
        axes[1, column].set(ylabel="acceptance / optimum", xlabel="top k, n drafts", ylim=(LOWEST, None))
    handles, labels = axes[0, 0].get_legend_handles_labels()
    pictures.legend(figure, dict(zip(labels, handles, strict=True)), NOISE, columns=4)
    pictures.save(figure, path)


def panel(axis: Any, table: list[MethodLine], value: str) -> None:
    """One number of every method over the problems, from small to large."""
    sizes = sorted({(line.k, line.n) for line in table})
    axis.set_xticks(range(len(sizes)), [f"{k:,}, {n}" for k, n in sizes], rotation=35, fontsize="small")
    for index, method in enumerate(dict.fromkeys(line.method for line in table)):
        points = [line for line in table if line.method == method and getattr(line, value) is not None]
        points.sort(key=lambda line: (line.k, line.n))
        places = [sizes.index((p.k, p.n)) + SHIFT * index for p in points]
        heights = [getattr(p, value) for p in points]
        marker, colour = MARKERS[index % len(MARKERS)], pictures.COLOURS[index % len(pictures.COLOURS)]
        if value == "milliseconds":
            ranges = [
                point.milliseconds_range or (height, height) for point, height in zip(points, heights, strict=True)
            ]
            axis.vlines(places, [low for low, _ in ranges], [high for _, high in ranges], color=colour, lw=0.8)
        style = "--" if index >= len(pictures.COLOURS) else "-"
        axis.plot(places, heights, style, color=colour, lw=1.2, marker=marker, ms=5, mfc="none", label=method)
        full = [(x, y) for x, y, p in zip(places, heights, points, strict=True) if p.solved == p.tried]
        axis.plot([x for x, _ in full], [y for _, y in full], marker, color=colour, ms=5)
