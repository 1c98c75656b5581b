"""The picture of `multidraft tune`: costs of steps, acceptance, and the speeds of trees."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft_research.tuning.tree_speeds import PLAIN, TreeSpeed

if TYPE_CHECKING:
    from multidraft.autotune.plans import Profile

MAX_NODES, MAX_DRAFTS = 32, 8  # that are shown: of a tree, and at a node
SPREAD = 0.22  # between the markers of two temperatures; trees are 1 apart
INTERVALS = "filled: measured; bars: 95 % over texts; hollow: predicted"

Speeds = dict[float | int, list[TreeSpeed]]  # by temperature


def draw(profile: "Profile", speeds: Speeds, path: Path) -> None:
    """Draw the costs of steps, acceptance by drafts, and measured and predicted speeds of trees if there are any."""
    from matplotlib.figure import Figure

    panels = 3 if speeds else 2
    figure = Figure(figsize=(4.6 * panels, 3.6), layout="constrained", dpi=110)
    costs, rates, *trees = axes = figure.subplots(1, panels)
    draw_costs(costs, profile)
    draw_acceptance(rates, profile, sorted(speeds or profile.acceptance))
    for axis in trees:
        draw_speeds(axis, speeds)
    for axis in axes:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)


def label_ends(axis: Any, curves: Mapping[str, tuple[float | int, float]]) -> None:
    """Write the names of curves beside their ends, given as points, in the curves' colours; close ones move apart."""
    low, high = axis.get_ylim()
    last = low - (high - low)
    for (name, (x, y)), line in sorted(zip(curves.items(), axis.lines, strict=True), key=lambda item: item[0][1][1]):
        last = max(y, last + 0.07 * (high - low))
        axis.annotate(name, (x, last), (6, 0), textcoords="offset points", va="center", color=line.get_color())


def draw_costs(axis: Any, profile: "Profile") -> None:
    """Draw the seconds of a step by drafted nodes, a curve for each number of rows."""
    from multidraft.autotune.estimates import Work

    ends, sizes = {}, range(MAX_NODES + 1)
    for rows in profile.timed_rows:
        milliseconds = [1e3 * profile.costs(rows).seconds(Work(0, 0, size)) for size in sizes]
        axis.plot(sizes, milliseconds)
        ends[f"{rows} row{'s' * (rows > 1)}"] = (MAX_NODES, milliseconds[-1])
    axis.set(xlabel="drafted nodes a row", ylabel="ms of a step, beside drafting", ylim=(0, None))
    label_ends(axis, ends)


def draw_acceptance(axis: Any, profile: "Profile", temperatures: list[float | int]) -> None:
    """Draw the acceptance by the number of drafts at a node, a curve for each temperature."""
    ends, counts = {}, range(1, MAX_DRAFTS + 1)
    for temperature in temperatures:
        acceptance = [profile.rates(temperature).average[count] for count in counts]
        axis.plot(counts, acceptance, marker="o", ms=4)
        ends[f"T = {temperature:g}"] = (MAX_DRAFTS, acceptance[-1])
    axis.set(xlabel="drafts at a node", ylabel="acceptance", ylim=(None, 1))
    label_ends(axis, ends)


def draw_speeds(axis: Any, speeds: Speeds) -> None:
    """Draw measured and predicted times of plain decoding: a line with its name for each tree."""
    names = [speed.line.tree for speed in next(iter(speeds.values()))]
    for index, (temperature, group) in enumerate(speeds.items()):
        shift = SPREAD * (index - (len(speeds) - 1) / 2)
        for place, speed in enumerate(group):
            y, colour, x = place + shift, f"C{index}", speed.times_plain
            low, high = speed.interval or (x, x)
            axis.plot([low, high], [y, y], color=colour, lw=1.5)
            axis.plot(x, y, "o", ms=5, color=colour, label=f"T = {temperature:g}" if place == 0 else None)
            axis.plot(speed.predicted_times_plain, y, "o", ms=5, mfc="none", mec=colour)
    axis.axvline(1, ls="--", color="#888888", lw=1)
    axis.set_yticks(range(len(names)), ["no drafts" if name == PLAIN else name for name in names])
    axis.set(xlabel=f"times plain decoding\n({INTERVALS})", xlim=(0, None))
    axis.invert_yaxis()
    axis.legend(frameon=False, fontsize="small", loc="upper left", bbox_to_anchor=(1, 1))
