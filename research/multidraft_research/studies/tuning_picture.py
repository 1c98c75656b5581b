"""The picture of a plan: what passes cost, what drafts give, and predicted beside measured speeds."""

from pathlib import Path

from multidraft.autotune.pair_plan import PairPlan
from multidraft_research.studies import pictures
from multidraft_research.studies.tuning import Line

MOST = 45  # tokens of a pass that is shown


def draw(plan: PairPlan, lines: list[Line], path: Path) -> None:
    """Three panels."""
    figure, axes = pictures.figure(columns=3)
    costs, acceptance, speeds = axes[0]
    for rows in plan.costs.rows:
        curve = plan.costs.at(rows).target
        costs.plot(range(1, MOST + 1), [1e3 * curve(size) for size in range(1, MOST + 1)], label=f"{rows} rows")
    costs.set(xlabel="new tokens a row", ylabel="ms of a target pass", ylim=(0, None))
    for own in plan.acceptance:
        rates = [row[0] for row in own.rates.acceptance[1:]]
        acceptance.plot(range(1, len(rates) + 1), rates, marker="o", ms=4, label=f"T = {own.temperature:g}")
    acceptance.set(xlabel="drafts at a node", ylabel="acceptance", ylim=(None, 1))
    for temperature in dict.fromkeys(line.temperature for line in lines):
        these = [line for line in lines if line.temperature == temperature]
        speeds.plot(
            [x.predicted_speed for x in these], [x.speed for x in these], "o", ms=5, label=f"T = {temperature:g}"
        )
    most = 1.05 * max(max(line.speed, line.predicted_speed) for line in lines)
    speeds.plot([0, most], [0, most], "--", color="#888888", lw=1)
    speeds.set(xlabel="predicted tokens a second", ylabel="measured", xlim=(0, most), ylim=(0, most))
    for axis in axes[0]:
        axis.legend(frameon=False, fontsize="small")
    pictures.save(figure, path)
