"""SpecTr's Figures 4 to 6: coins and uniform distributions, where the optimum is a formula, as one picture."""

from pathlib import Path
from typing import Any

from multidraft_research.studies import pictures
from multidraft_research.studies.toy_pairs import Curves, figure_4, figure_5, figure_6

STYLES = ("-", "--", ":")  # of rules, in the order in which they come
FIGURES = {
    "Figure 4: drafts from Ber(0.25)": figure_4,
    "Figure 5: drafts from U(120)": figure_5,
    "Figure 6: recursive rejection too": figure_6,
}


def figures() -> dict[str, Curves]:
    """The curves of every figure, by its title."""
    return {title: figure() for title, figure in FIGURES.items()}


def draw(curves: dict[str, Curves], path: Path) -> None:
    """A panel for each figure: acceptance by number of drafts, a colour for each target and a line for each rule."""
    drawn, axes = pictures.figure(columns=len(curves), width=4.6, height=3.9)
    for axis, (title, curves_of_panel) in zip(axes[0], curves.items(), strict=True):
        panel(axis, curves_of_panel)
        axis.set(title=title, xlabel="number of drafts", ylabel="acceptance rate", ylim=(0, 1.03))
    drawn.supxlabel("no bars: the values are formulas", fontsize="small")
    pictures.save(drawn, path)


def panel(axis: Any, curves: Curves) -> None:
    """The curves of one figure, which are called `rule, target` or `target`."""
    targets = list(dict.fromkeys(name.split(", ")[-1] for name in curves))
    rules = list(dict.fromkeys(name.split(", ")[0] for name in curves if ", " in name))
    for name, values in curves.items():
        rule, target = name.split(", ")[0], name.split(", ")[-1]
        style = STYLES[rules.index(rule)] if rule in rules else "-"
        axis.plot(range(1, len(values) + 1), values, style, color=pictures.COLOURS[targets.index(target)])
    colours = [axis.plot([], [], color=pictures.COLOURS[i], label=name)[0] for i, name in enumerate(targets)]
    styles = [axis.plot([], [], STYLES[i], color="black", label=name)[0] for i, name in enumerate(rules)]
    axis.legend(handles=colours + styles, loc="lower right", frameon=False)
