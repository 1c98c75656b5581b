"""What `multidraft generate` reports: a table for people, one JSON object for scripts."""

from typing import TYPE_CHECKING

from multidraft.cli import compare as comparison
from multidraft.cli import terminal
from multidraft.cli.prompts import Prompt
from multidraft.machine.identity import hardware, versions

if TYPE_CHECKING:
    from multidraft.decoding.metrics import Info

Decoded = tuple[list[str], "Info"]
RIVALS = {comparison.ASSISTED: "assisted generation", comparison.LOOKUP: "prompt look-up"}
SHOWN_TREES = 3
RATES = ("tokens_per_second", "block_efficiency", "acceptance_rate", "optimal_acceptance_rate")


class Report:
    """Results batch by batch, summed up."""

    def __init__(self, settings: dict[str, object], compare: bool):
        from multidraft.decoding.metrics import Info

        self.settings, self.compare, self.interrupted = settings, compare, False
        self.records: list[dict[str, object]] = []
        self.info, self.plain = Info(), Info()
        self.runs = {side: comparison.Runs() for side in ("drafted", "plain", *RIVALS)}

    def add(
        self,
        prompts: list[Prompt],
        drafted: Decoded,
        plain: Decoded | None = None,
        rivals: dict[str, tuple[int, float]] | None = None,
    ) -> None:
        """One batch: its prompts, the texts with drafts and without, and the rivals' tokens and seconds."""
        self.info += drafted[1]
        self.runs["drafted"].add(drafted[1].tokens, drafted[1].total_seconds)
        for row, prompt in enumerate(prompts):
            record: dict[str, object] = {"id": prompt.id, "task": prompt.task, "text": drafted[0][row]}
            self.records.append(record | ({"plain_text": plain[0][row]} if plain else {}))
        if plain:
            self.plain += plain[1]
            self.runs["plain"].add(plain[1].tokens, plain[1].total_seconds)
        for name, ran in (rivals or {}).items():
            self.runs[name].add(*ran)

    def compared(self) -> dict[str, object]:
        """Plain decoding and transformers' ways to draft beside ours; None for what was not measured."""
        ours, plain = self.runs["drafted"], self.runs["plain"]
        both = bool(plain.tokens)
        found: dict[str, object] = {
            "plain_tokens_per_second": plain.rate() if both else None,
            "speedup": comparison.speedup(ours, plain) if both else None,
            "speedup_interval": comparison.interval(ours, plain) if both else None,
            "plain_seconds": self.plain.as_dict()["seconds"] if both else None,
        }
        for name in RIVALS:
            theirs = self.runs[name]
            there = bool(theirs.tokens)
            found |= {
                f"{name}_tokens_per_second": theirs.rate() if there else None,
                f"{name}_tokens_per_second_interval": comparison.interval(theirs) if there else None,
                f"{name}_speedup": comparison.speedup(theirs, plain) if there else None,
                f"{name}_speedup_interval": comparison.interval(theirs, plain) if there else None,
            }
        return found | {"hint": self.hint}

    @property
    def complete(self) -> int:
        """How many prompts came to their end."""
        return sum("interrupted" not in record for record in self.records)

    def interrupt(self, prompts: list[Prompt], texts: list[list[str]]) -> None:
        """What there is of a batch that was stopped."""
        self.interrupted = True
        for prompt, pieces in zip(prompts, texts, strict=True):
            if text := "".join(pieces):
                self.records.append({"id": prompt.id, "task": prompt.task, "text": text, "interrupted": True})

    @property
    def hint(self) -> str | None:
        """What to try instead, if the seconds say so."""
        return comparison.hint(self.info, self.plain, str(self.settings["tree"]))

    def print(self, as_json: bool) -> None:
        """For people or for scripts."""
        if as_json:
            terminal.print_json(self.as_dict())
        elif self.complete:
            self.table()

    def as_dict(self) -> dict[str, object]:
        """Plain names; null for what was not measured."""
        numbers = self.info.as_dict()
        return (
            (numbers if self.complete else dict.fromkeys(numbers))
            | self.compared()
            | {
                "interrupted": self.interrupted,
                "settings": self.settings | {"prompts": self.complete},
                "versions": versions(),
                "hardware": hardware(),
            }
            | {"records": self.records}
        )

    def table(self) -> None:
        """The summary, beside plain decoding where there is one."""
        from multidraft.decoding.metrics import PARTS

        rows = [["tokens", f"{self.info.tokens}", f"{self.plain.tokens}", ""]]
        for name in RATES:
            rows.append([name.replace("_", " "), *self.cells(name)])
        rows[2:2] = [self.rival(name) for name in RIVALS if self.runs[name].tokens]
        rows.append(["trees", self.trees, "", ""])
        for name, rates in ("depth", self.info.depth_rates), ("order of drawing", self.info.rank_rates):
            rows.append([f"accepted by {name}", " ".join(f"{rate:.2f}" for rate in rates), "", ""])
        rows += [["seconds", f"{self.info.total_seconds:.2f}", f"{self.plain.total_seconds:.2f}", ""]]
        rows += [[f"  {part}", *self.times(part), ""] for part in PARTS]
        columns = ["", "multi-draft", "plain", "ratio"]
        width = 4 if self.compare else 2
        terminal.print_table(columns[:width], [row[:width] for row in rows], numbers=True)
        if self.hint:
            terminal.note(self.hint)

    @property
    def trees(self) -> str:
        """The trees that were taken, the most frequent first, with their shares; 1 alone is no draft."""
        total = sum(self.info.shapes.values())
        most = self.info.shapes.most_common(SHOWN_TREES)
        return ", ".join(f"{name or 'none'} {count / total:.0%}" for name, count in most)

    def rival(self, name: str) -> list[str]:
        """One of transformers' ways to draft in our column."""
        theirs, plain = self.runs[name], self.runs["plain"]
        ratio = with_interval(comparison.speedup(theirs, plain), comparison.interval(theirs, plain))
        return [f"  {RIVALS[name]}", f"{theirs.rate():.1f}", f"{plain.rate():.1f}", ratio]

    def cells(self, name: str) -> list[str]:
        """One rate, with and without drafts."""
        ours, plain = getattr(self.info, name), getattr(self.plain, name)
        if name == "tokens_per_second":
            runs, base = self.runs["drafted"], self.runs["plain"]
            if not base.tokens:
                return [f"{ours:.1f}", "", ""]
            ratio = with_interval(comparison.speedup(runs, base), comparison.interval(runs, base))
            return [f"{ours:.1f}", f"{plain:.1f}", ratio]
        if name == "acceptance_rate" and self.info.acceptance_error > 0:
            return [f"{ours:.3f} ± {self.info.acceptance_error:.3f}", "", ""]
        return [f"{ours:.3f}", f"{plain:.3f}" if name == "block_efficiency" else "", ""]

    def times(self, part: str) -> list[str]:
        """Seconds of one part and its share, with and without drafts."""
        return [
            f"{info.seconds[part]:.2f} ({info.seconds[part] / max(info.total_seconds, 1e-9):4.0%})"
            for info in (self.info, self.plain)
        ]


def with_interval(ratio: float, interval: tuple[float, float] | None) -> str:
    """A ratio, with the interval that it is in."""
    return f"{ratio:.2f}x" + (f" ({interval[0]:.2f} to {interval[1]:.2f})" if interval else "")
