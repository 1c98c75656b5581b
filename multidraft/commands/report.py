"""What `multidraft generate` reports: a table for people, one JSON object for scripts."""

from typing import TYPE_CHECKING

from multidraft import terminal
from multidraft.commands.machine import hardware, versions
from multidraft.commands.prompts import Prompt

if TYPE_CHECKING:
    from multidraft.metrics import Info

Decoded = tuple[list[str], "Info"]
RATES = ("tokens_per_second", "block_efficiency", "acceptance_rate", "optimal_acceptance_rate")


class Report:
    """Results batch by batch, summed up."""

    def __init__(self, settings: dict[str, object], compare: bool):
        from multidraft.metrics import Info

        self.settings, self.compare, self.interrupted = settings, compare, False
        self.records: list[dict[str, object]] = []
        self.info, self.plain = Info(), Info()

    def add(self, prompts: list[Prompt], drafted: Decoded, plain: Decoded | None) -> None:
        """One batch: its prompts, the texts with drafts, and without."""
        self.info += drafted[1]
        for row, prompt in enumerate(prompts):
            record: dict[str, object] = {"id": prompt.id, "task": prompt.task, "text": drafted[0][row]}
            self.records.append(record | ({"plain_text": plain[0][row]} if plain else {}))
        if plain:
            self.plain += plain[1]

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
    def speedup(self) -> float:
        """Tokens per second with drafts over those without."""
        return self.info.tokens_per_second / max(self.plain.tokens_per_second, 1e-9)

    def print(self, as_json: bool) -> None:
        """For people or for scripts."""
        if as_json:
            terminal.print_json(self.as_dict())
        elif self.complete:
            self.table()

    def as_dict(self) -> dict[str, object]:
        """Plain names; null for what was not measured."""
        numbers = self.info.as_dict()
        compared = self.compare and bool(self.complete)
        return (
            (numbers if self.complete else dict.fromkeys(numbers))
            | {
                "plain_tokens_per_second": self.plain.tokens_per_second if compared else None,
                "speedup": self.speedup if compared else None,
                "plain_seconds": self.plain.as_dict()["seconds"] if compared else None,
                "interrupted": self.interrupted,
                "settings": self.settings | {"prompts": self.complete},
                "versions": versions(),
                "hardware": hardware(),
            }
            | {"records": self.records}
        )

    def table(self) -> None:
        """The summary, beside plain decoding where there is one."""
        from multidraft.metrics import PARTS

        rows = [["tokens", f"{self.info.tokens}", f"{self.plain.tokens}", ""]]
        for name in RATES:
            rows.append([name.replace("_", " "), *self.cells(name)])
        for name, rates in ("depth", self.info.depth_rates), ("order of drawing", self.info.rank_rates):
            rows.append([f"accepted by {name}", " ".join(f"{rate:.2f}" for rate in rates), "", ""])
        rows += [["seconds", f"{self.info.total_seconds:.2f}", f"{self.plain.total_seconds:.2f}", ""]]
        rows += [[f"  {part}", *self.times(part), ""] for part in PARTS]
        columns = ["", "multi-draft", "plain", "ratio"]
        width = 4 if self.compare else 2
        terminal.print_table(columns[:width], [row[:width] for row in rows], numbers=True)

    def cells(self, name: str) -> list[str]:
        """One rate, with and without drafts."""
        ours, plain = getattr(self.info, name), getattr(self.plain, name)
        if name == "tokens_per_second":
            return [f"{ours:.1f}", f"{plain:.1f}", f"{self.speedup:.2f}x"]
        return [f"{ours:.3f}", f"{plain:.3f}" if name == "block_efficiency" else "", ""]

    def times(self, part: str) -> list[str]:
        """Seconds of one part and its share, with and without drafts."""
        return [
            f"{info.watch.seconds[part]:.2f} ({info.watch.seconds[part] / max(info.total_seconds, 1e-9):4.0%})"
            for info in (self.info, self.plain)
        ]
