"""The picture of a profile: what passes cost, what drafts give, and predicted beside measured speeds."""

from collections.abc import Sequence
from pathlib import Path

from multidraft.autotune.profile import Profile
from multidraft.autotune.tuning import Line
from multidraft.errors import AdviceError
from multidraft.errors.missing import optional
from multidraft.io import files

KINDS = (".svg", ".png", ".pdf")
MOST, DRAFTS = 45, 8  # tokens of a pass, and drafts at a node, that are shown


def check(path: Path, inputs: Sequence[Path | str | None] = ()) -> None:
    """Raise, before anything is computed, where no picture could be written to `path`."""
    optional("matplotlib", "matplotlib", "plot")
    if path.suffix not in KINDS:
        raise AdviceError(f"a picture cannot be written to {str(path)!r}; end its name in {', '.join(KINDS)}")
    files.check(path, "the picture", inputs)


def draw(profile: Profile, lines: list[Line], path: Path) -> None:
    """Three panels."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13.5, 3.2), layout="constrained", dpi=110)
    costs, acceptance, speeds = axes = figure.subplots(1, 3)
    sizes = range(1, MOST + 1)
    for rows in profile.known:
        costs.plot(sizes, [1e3 * profile.costs(rows).target(size) for size in sizes], label=f"{rows} rows")
    costs.set(xlabel="new tokens a row", ylabel="ms of a target pass", ylim=(0, None))
    for temperature in sorted({line.temperature for line in lines}):
        name, rates = f"T = {temperature:g}", profile.rates(temperature)
        counts = range(1, DRAFTS + 1)
        acceptance.plot(counts, [rates.accepted(count, 0) for count in counts], marker="o", ms=4, label=name)
        own = [line for line in lines if line.temperature == temperature]
        speeds.plot([line.predicted_speed for line in own], [line.speed for line in own], "o", ms=5, label=name)
    acceptance.set(xlabel="drafts at a node", ylabel="acceptance", ylim=(None, 1))
    most = 1.05 * max(max(line.speed, line.predicted_speed) for line in lines)
    speeds.plot([0, most], [0, most], "--", color="#888888", lw=1)
    speeds.set(xlabel="predicted tokens a second", ylabel="measured", xlim=(0, most), ylim=(0, most))
    for axis in axes:
        axis.legend(frameon=False, fontsize="small")
    figure.savefig(path)
