"""What a generation reports: tokens per target pass, acceptance beside the optimum, and where the time went."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

import torch

from multidraft.transport import optimal_acceptance_rate

if TYPE_CHECKING:
    from multidraft.catalogue import Scheme
    from multidraft.decoding import Emitted
    from multidraft.logprobs import Logprob
    from multidraft.nodes import Nodes

PARTS = ("draft", "target", "rule", "cache", "rest")


@dataclass
class Stopwatch:
    """Seconds by part. `measuring` stops all clocks, for what only the report needs."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*PARTS, "measuring"), 0.0))
    synchronise: bool = False  # wait for the GPU at every boundary, so that its time is booked where it belongs

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Book as "rest" what is left of a block's time after all its parts."""
        start, before = self.now(), sum(self.seconds.values())
        try:
            yield
        finally:
            self.seconds["rest"] += self.now() - start - (sum(self.seconds.values()) - before)

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book the time of a block under `name`."""
        start = self.now()
        try:
            yield
        finally:
            self.seconds[name] += self.now() - start

    def __add__(self, other: "Stopwatch") -> "Stopwatch":
        """Seconds of both, part by part."""
        return Stopwatch({part: self.seconds[part] + other.seconds[part] for part in self.seconds}, self.synchronise)

    def move(self, seconds: float, source: str, to: str) -> None:
        """Book seconds under another part, such as the time that a caller spent on showing the text."""
        self.seconds[source] -= seconds
        self.seconds[to] += seconds

    def now(self) -> float:
        """The clock, after pending work on the GPU where asked."""
        if self.synchronise:
            torch.cuda.synchronize()
        return time.perf_counter()


@dataclass
class Info:
    """What happened in a generation, summed over its steps and rows."""

    target_passes: int = 0  # forward passes of the target, each over the whole batch
    row_passes: int = 0  # the same, counted once for every row in it
    tokens: int = 0  # emitted, after cutting at the end of text and at max_new_tokens
    accepted: int = 0  # drafted tokens on accepted paths
    bonus: int = 0
    corrected: int = 0
    nodes: int = 0  # drafted nodes that the target scored
    acceptance: float = 0.0  # summed over row passes: the rule's exact acceptance probability at the root
    optimal_acceptance: float = 0.0
    logprobs: "list[list[Logprob]]" = field(default_factory=list)  # of every row's tokens, if asked for
    watch: Stopwatch = field(default_factory=Stopwatch)

    def count(self, emitted: "list[Emitted]") -> None:
        """Add one step: what every row of the batch emitted."""
        self.target_passes += 1
        self.row_passes += len(emitted)
        kinds = [kind for new in emitted for kind in new.kinds]
        self.accepted += kinds.count("accepted")
        self.bonus += kinds.count("bonus")
        self.corrected += kinds.count("corrected")

    def measure(self, scheme: "Scheme", nodes: "Nodes") -> None:
        """Add the acceptance at the roots of a step, and the best that any rule could reach there."""
        rows = [row for row, tree in enumerate(nodes.rows) if tree.has_drafts(0)]
        self.nodes += sum(len(row.child) for row in nodes.rows)
        if not rows:
            return
        self.acceptance += nodes.acceptance
        law = scheme.at(nodes.drafts.tree.drafts[0]).law
        settings = {name: getattr(law, name) for name in law.settings}
        roots = (0,) * len(rows)
        best = optimal_acceptance_rate(
            nodes.target(rows, roots), nodes.draft(rows, roots), law=law.name, drafts=law.drafts, **settings
        )
        self.optimal_acceptance += float(best.sum())

    def __add__(self, other: "Info") -> "Info":
        """Two generations taken together."""
        numbers = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self) if f.name != "watch"}
        return Info(**numbers, watch=self.watch + other.watch)

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target pass and row (the last step counts whole, before it is cut)."""
        return 1 + self.accepted / max(self.row_passes, 1)

    @property
    def acceptance_rate(self) -> float:
        """Probability that the first token of a step is a drafted one, averaged over the exact outcomes of the rule."""
        return self.acceptance / max(self.row_passes, 1)

    @property
    def optimal_acceptance_rate(self) -> float:
        """The same under the best rule that there is for these drafts' law."""
        return self.optimal_acceptance / max(self.row_passes, 1)

    @property
    def total_seconds(self) -> float:
        """Wall-clock time, less what only the report needed."""
        return sum(self.watch.seconds[part] for part in PARTS)

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the total time."""
        return self.tokens / max(self.total_seconds, 1e-9)

    def as_dict(self) -> dict[str, object]:
        """Plain names and numbers, for `--json`."""
        return dict(
            tokens=self.tokens,
            target_passes=self.target_passes,
            block_efficiency=self.block_efficiency,
            acceptance_rate=self.acceptance_rate,
            optimal_acceptance_rate=self.optimal_acceptance_rate,
            tokens_per_second=self.tokens_per_second,
            accepted_tokens=self.accepted,
            bonus_tokens=self.bonus,
            corrected_tokens=self.corrected,
            drafted_nodes=self.nodes,
            seconds={part: self.watch.seconds[part] for part in PARTS} | {"total": self.total_seconds},
        )
