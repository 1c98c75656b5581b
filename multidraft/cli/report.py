"""What `multidraft generate` reports: a table for people, one JSON object for scripts."""

from typing import TYPE_CHECKING

from multidraft.cli import terminal
from multidraft.cli.compare import ASSISTED, LOOKUP, Runs, hint, interval, speedup
from multidraft.cli.decode import Decoded
from multidraft.cli.prompts import Prompt
from multidraft.machine import hardware, versions

if TYPE_CHECKING:
    from multidraft.decoding.metrics import Info

RIVALS = {ASSISTED: "assisted generation", LOOKUP: "prompt look-up"}
SHOWN_TREES = 3


class Report:
    """Results batch by batch, summed up."""

    def __init__(self, settings: dict[str, object], compare: bool):
        from multidraft.decoding.metrics import Info

        self.settings, self.compare, self.interrupted = settings, compare, False
        self.records: list[dict[str, object]] = []
        self.info, self.plain = Info(), Info()
        self.runs = {side: Runs() for side in ("drafted", "plain", *RIVALS)}

    def add(
        self, prompts: list[Prompt], drafted: Decoded, plain: Decoded | None, rivals: dict[str, tuple[int, float]]
    ) -> None:
        """One batch: its prompts, the texts with drafts and without, and the rivals' tokens and seconds."""
        for row, prompt in enumerate(prompts):
            record: dict[str, object] = {"id": prompt.id, "task": prompt.task, "text": drafted[0][row]}
            self.records.append(record | ({"plain_text": plain[0][row]} if plain else {}))
        self.info += drafted[1]
        self.runs["drafted"].add(drafted[1].tokens, drafted[1].total_seconds)
        if plain:
            self.plain += plain[1]
            self.runs["plain"].add(plain[1].tokens, plain[1].total_seconds)
        for name, ran in rivals.items():
            self.runs[name].add(*ran)

    def compared(self) -> dict[str, object]:
        """Plain decoding and transformers' ways to draft beside ours; None for what was not measured."""
        ours, plain = self.runs["drafted"], self.runs["plain"]
        both = bool(plain.tokens)
        found: dict[str, object] = {
            "plain_tokens_per_second": plain.rate() if both else None,
            "speedup": speedup(ours, plain) if both else None,
            "speedup_interval": interval(ours, plain) if both else None,
            "plain_seconds": self.plain.as_dict()["seconds"] if both else None,
        }
        for name in RIVALS:
            theirs, ran = self.runs[name], bool(self.runs[name].tokens)
            found |= {
                f"{name}_tokens_per_second": theirs.rate() if ran else None,
                f"{name}_tokens_per_second_interval": interval(theirs) if ran else None,
                f"{name}_speedup": speedup(theirs, plain) if ran else None,
                f"{name}_speedup_interval": interval(theirs, plain) if ran else None,
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
        return hint(self.info, self.plain, str(self.settings["tree"]))

    def print(self, as_json: bool) -> None:
        """For people or for scripts."""
        if as_json:
            terminal.print_json(self.as_dict())
        elif self.complete:
            width = 4 if self.compare else 2
            columns, rows = ["", "multi-draft", "plain", "ratio"][:width], [row[:width] for row in self.rows()]
            terminal.print_table(columns, rows, numbers=True)
            if self.hint:
                terminal.note(self.hint)

    def as_dict(self) -> dict[str, object]:
        """Plain names; null for what was not measured."""
        numbers = self.info.as_dict() if self.complete else dict.fromkeys(self.info.as_dict())
        settings = self.settings | {"prompts": self.complete}
        run = {"interrupted": self.interrupted, "settings": settings, "versions": versions(), "hardware": hardware()}
        return numbers | self.compared() | run | {"records": self.records}

    def rows(self) -> list[list[str]]:
        """The summary: a name, ours, plain decoding's, and the ratio of the two."""
        from multidraft.decoding.metrics import PARTS

        info, plain, compared = self.info, self.plain, bool(self.runs["plain"].tokens)
        error = f" ± {info.acceptance_error:.3f}" if info.acceptance_error > 0 else ""
        first = [
            ["tokens", f"{info.tokens}", f"{plain.tokens}", ""],
            ["tokens per second", f"{info.tokens_per_second:.1f}", *self.ratio("drafted")],
            *(self.rival(name) for name in RIVALS if self.runs[name].tokens),
            ["block efficiency", f"{info.block_efficiency:.3f}", f"{plain.block_efficiency:.3f}", ""],
            ["acceptance rate", f"{info.acceptance_rate:.3f}{error}", "", ""],
            ["optimal acceptance rate", f"{info.optimal_acceptance_rate:.3f}", "", ""],
            ["trees", self.trees, "", ""],
            ["accepted by depth", " ".join(f"{rate:.2f}" for rate in info.depth_rates), "", ""],
            ["accepted by order of drawing", " ".join(f"{rate:.2f}" for rate in info.rank_rates), "", ""],
            ["seconds", f"{info.total_seconds:.2f}", f"{plain.total_seconds:.2f}" if compared else "", ""],
        ]
        return [*first, *([f"  {part}", share(info, part), share(plain, part), ""] for part in PARTS)]

    @property
    def trees(self) -> str:
        """The trees that were taken, the most frequent first, with their shares; 1 alone is no draft."""
        total = sum(self.info.shapes.values())
        most = self.info.shapes.most_common(SHOWN_TREES)
        return ", ".join(f"{name or 'none'} {count / total:.0%}" for name, count in most)

    def rival(self, name: str) -> list[str]:
        """One of transformers' ways to draft in our column."""
        return [f"  {RIVALS[name]}", f"{self.runs[name].rate():.1f}", *self.ratio(name)]

    def ratio(self, name: str) -> list[str]:
        """Tokens a second of plain decoding, and how many times faster another way is, with the interval of that."""
        runs, plain = self.runs[name], self.runs["plain"]
        if not plain.tokens:
            return ["", ""]
        between = interval(runs, plain)
        said = f" ({between[0]:.2f} to {between[1]:.2f})" if between else ""
        return [f"{plain.rate():.1f}", f"{speedup(runs, plain):.2f}x{said}"]


def share(info: "Info", part: str) -> str:
    """Seconds of one part and its share."""
    return f"{info.seconds[part]:.2f} ({info.seconds[part] / max(info.total_seconds, 1e-9):4.0%})"
