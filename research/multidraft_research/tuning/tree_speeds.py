"""The speeds of trees that `multidraft tune` measured, as times of plain decoding, and which tree pays."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from multidraft.cli.run_report import BUSY, Runs

if TYPE_CHECKING:
    from multidraft_research.tuning.measuring import TreeLine

PLAIN, AUTO = "none", "auto"  # the names of two lines: without drafts, and with trees that the plan chooses


@dataclass(frozen=True)
class TreeSpeed:
    """A measured tree at a temperature beside the line without drafts."""

    line: "TreeLine"
    times_plain: float
    predicted_times_plain: float
    interval: tuple[float, float] | None  # 95 %, over texts, of `times_plain`; None after one text

    @property
    def times(self) -> str:
        """The times of plain decoding, with the interval."""
        if self.interval is None:
            return f"{self.times_plain:.2f}"
        return f"{self.times_plain:.2f} ({self.interval[0]:.2f} to {self.interval[1]:.2f})"

    def cells(self, is_busy: bool) -> list[str]:
        """A row of the table; on a busy machine without the ratio."""
        line = self.line
        tokens = [f"{line.tokens:.2f}", f"{line.predicted_tokens:.2f}"]
        return [
            f"{line.temperature:g}",
            line.tree,
            *tokens,
            f"{line.speed:.1f}",
            f"{line.predicted_speed:.1f}",
            BUSY if is_busy else self.times,
        ]

    def as_dict(self, is_busy: bool) -> dict[str, object]:
        """The measured line for scripts."""
        times, interval = (None, None) if is_busy else (self.times_plain, self.interval)
        fields = asdict(self.line) | {"times_plain": times, "times_plain_interval": interval}
        del fields["turns"]
        return fields


def tree_speeds(lines: "Sequence[TreeLine]") -> dict[float | int, list[TreeSpeed]]:
    """The measured lines of every temperature beside that without drafts."""
    return {
        temperature: beside_plain([line for line in lines if line.temperature == temperature])
        for temperature in dict.fromkeys(line.temperature for line in lines)
    }


def beside_plain(lines: "Sequence[TreeLine]") -> list[TreeSpeed]:
    """The lines of a temperature, of which one has no drafts, beside that one."""
    plain = next(line for line in lines if line.tree == PLAIN)
    return [
        TreeSpeed(
            line,
            line.speed / plain.speed,
            line.predicted_speed / plain.predicted_speed,
            None if line is plain else Runs(line.turns).interval(Runs(plain.turns)),
        )
        for line in lines
    ]


def what_pays(speeds: Sequence[TreeSpeed]) -> str:
    """A sentence that names the tree that pays most at a temperature, or says that none does, or that it is unsure."""
    auto = next(speed for speed in speeds if speed.line.tree == AUTO)
    best = max((speed for speed in speeds if speed.line.tree not in (PLAIN, AUTO)), key=lambda speed: speed.times_plain)
    numbers = f"{best.line.tree}, {best.times} times plain decoding; auto: {auto.times}"
    if best.interval is None or auto.interval is None:
        return f"one text is too little to tell which tree pays; the fastest was {numbers}"
    if best.interval[0] > 1:
        return f"the tree that pays most is {numbers}"
    if auto.interval[0] > 1:
        return f"only auto pays; the fastest other tree is {numbers}"
    is_slower = max(best.interval[1], auto.interval[1]) < 1
    return f"{'no tree pays' if is_slower else 'it is not sure that a tree pays'}; the fastest is {numbers}"
