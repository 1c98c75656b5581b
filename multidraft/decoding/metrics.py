"""What a generation reports: tokens per target pass, acceptance beside the optimum, and where the time went."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import accumulate, zip_longest

import numpy as np
import torch

from multidraft.decoding.record import STEP_PARTS, Logprob, Measured, StepRecord, acceptance_of
from multidraft.decoding.targets import NodeTarget, stack_targets
from multidraft.decoding.tree import NodeLaw, stack_distributions
from multidraft.sampling.row_faults import RowFault
from multidraft.verification.optimum import optimum
from multidraft.verification.scheme import Scheme

CHEAP_SHARE = 0.01  # of the time
NO_TREE = "none"  # the name of a tree without drafts
TIMED_PARTS = (*STEP_PARTS, "rest")


@dataclass
class Info:
    """What happened in a generation, summed over its steps and rows (docs/metrics.md)."""

    target_passes: int = 0  # forward passes of the target, each over the whole batch
    row_passes: int = 0  # the same, counted once for every row in it
    draft_steps: int = 0  # row passes in which anything was drafted
    tokens: int = 0  # emitted, after cutting at the end of text and at max_new_tokens
    accepted: int = 0  # drafted tokens on accepted paths
    bonus: int = 0
    recovered: int = 0
    nodes: int = 0  # drafted nodes that the target scored
    lengths: list[int] = field(default_factory=list)  # row passes with drafts, by the length of their accepted path
    ranks: list[int] = field(default_factory=list)  # accepted tokens, by which draft of their node drew them first
    drawing_passes: int = 0  # row passes at whose root the scheme drew, if only that nothing is drafted
    acceptance: float = 0.0  # summed over them: what the rule accepts of the tuple drawn at the root
    measured: int = 0  # of them, those of which the optimum is known
    expected_acceptance: float = 0.0  # summed: over all tuples where there is a formula, else of the one drawn
    expected_squares: float = 0.0
    optimal_acceptance: float = 0.0  # summed over them
    gaps: int = 0  # of them without a formula
    gap: float = 0.0  # the sum of their differences from what was drawn to the optimum, and of squares
    gap_squares: float = 0.0
    draft_passes: int = 0  # forward passes of the draft model, each over the whole batch
    shapes: Counter[str] = field(default_factory=Counter)  # trees by how many row passes had them
    predicted_tokens: float = 0.0  # by the plan, over all row passes that it has predicted
    predicted_seconds: float = 0.0
    logprobs: list[list[Logprob]] = field(default_factory=list)  # of every row's tokens, if asked for
    finish_reasons: list[str | None] = field(default_factory=list)  # by row, as servers say them: "stop", "length"
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(TIMED_PARTS, 0.0))  # wall-clock, by part
    faults: dict[int, RowFault] = field(default_factory=dict)  # by row, of those that could not go on

    def add(self, record: StepRecord) -> None:
        """One more step."""
        self.target_passes += any(record.scored)
        self.draft_passes += record.draft_passes
        self.add_seconds(record.seconds)
        if record.forecast is not None:
            self.predicted_tokens += record.forecast.tokens
            self.predicted_seconds += record.forecast.seconds
        for row, scored in enumerate(record.scored):
            if scored and row not in record.faults:
                self.add_row(record, row)
        for acceptance in record.measured.values():
            self.measured += 1
            self.expected_acceptance += acceptance.expected
            self.expected_squares += acceptance.expected**2
            self.optimal_acceptance += acceptance.optimal
            if not acceptance.exact:
                gap = acceptance.optimal - acceptance.expected
                self.gaps, self.gap, self.gap_squares = self.gaps + 1, self.gap + gap, self.gap_squares + gap**2

    def add_seconds(self, seconds: dict[str, float]) -> None:
        """Time that was spent, by part."""
        for part, spent in seconds.items():
            self.seconds[part] += spent

    def add_row(self, record: StepRecord, row: int) -> None:
        """One row's tree, and the accepted path in it."""
        tree, path = record.trees[row], record.walk_results[row].path
        self.row_passes += 1
        self.shapes[tree.name if len(tree) > 1 else ""] += 1
        self.accepted += len(path)
        self.nodes += len(tree) - 1
        self.bonus += record.emitted[row].kinds[-1] == "bonus"
        self.recovered += record.emitted[row].kinds[-1] == "recovered"
        self.drawing_passes += tree.has_drafts(0)
        self.acceptance += acceptance_of(record.events[row])
        if len(tree) > 1:
            self.draft_steps += 1
            tally(self.lengths, len(path), tree.depths[-1])
            for node in path:
                tally(self.ranks, tree.ranks[node], tree.counts[0] - 1)

    def __add__(self, other: "Info") -> "Info":
        """Two generations taken together."""
        names = {f.name for f in fields(self)} - {"lengths", "ranks", "seconds", "faults"}
        total = Info(**{name: getattr(self, name) + getattr(other, name) for name in names})
        total.lengths = [x + y for x, y in zip_longest(self.lengths, other.lengths, fillvalue=0)]
        total.ranks = [x + y for x, y in zip_longest(self.ranks, other.ranks, fillvalue=0)]
        total.seconds = {part: self.seconds[part] + other.seconds[part] for part in self.seconds}
        total.faults = self.faults | other.faults
        return total

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Book as "rest" what is left of a block's time after all parts of its steps."""
        start, before = time.perf_counter(), self.total_seconds
        try:
            yield
        finally:
            self.seconds["rest"] += time.perf_counter() - start - (self.total_seconds - before)

    @property
    def block_efficiency(self) -> float:
        """Tokens emitted per target pass and row (the last step counts whole, before it is cut)."""
        return 1 + self.accepted / max(self.row_passes, 1)

    @property
    def mean_acceptance_length(self) -> float:
        """The same over the passes with drafts alone, which are all but where randomised drafting draws nothing."""
        return 1 + self.accepted / max(self.draft_steps, 1)

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted tokens over drafted nodes, low for a tree of many branches; not a number if nothing was drafted."""
        return self.accepted / self.nodes if self.nodes else math.nan

    @property
    def accepted_at_depth(self) -> list[int]:
        """Row passes whose accepted path reaches depth 1, 2, .."""
        return list(accumulate(reversed(self.lengths[1:])))[::-1]

    @property
    def depth_rates(self) -> list[float]:
        """The same as fractions of the passes with drafts."""
        return [count / max(self.draft_steps, 1) for count in self.accepted_at_depth]

    @property
    def rank_rates(self) -> list[float]:
        """Of the nodes at which a walk had to choose, the fraction in which it took the first draft, the second, .."""
        return [count / max(self.accepted + self.recovered, 1) for count in self.ranks]

    @property
    def acceptance_rate(self) -> float:
        """Probability that the first token of a step that drafts is a drafted one; not a number if none did.

        Over all tuples that could have been drawn where the scheme has a formula and the optimum is measured, too; else
        what the rule says of the tuples that were drawn.
        """
        if self.measured:
            return self.expected_acceptance / self.measured
        return self.acceptance / self.drawing_passes if self.drawing_passes else math.nan

    @property
    def optimal_acceptance_rate(self) -> float:
        """The same under the best rule that there is for these drafts' law; not a number if it was not measured."""
        return self.optimal_acceptance / self.measured if self.measured else math.nan

    @property
    def acceptance_error(self) -> float:
        """Standard error of the acceptance rate, over the measured steps; not a number if fewer than two were."""
        return error_of_sum(self.expected_acceptance, self.expected_squares, self.measured) / max(self.measured, 1)

    @property
    def gap_error(self) -> float:
        """Standard error of the difference between the two: 0 where there is a formula, no number if it is unknown."""
        if self.measured > 1 and not self.gaps:
            return 0.0
        return error_of_sum(self.gap, self.gap_squares, self.gaps) / max(self.measured, 1)

    @property
    def total_seconds(self) -> float:
        """Wall-clock time, all of it."""
        return sum(self.seconds.values())

    @property
    def decoding_seconds(self) -> float:
        """Wall-clock time without what comparing acceptance with the optimum took."""
        return self.total_seconds - self.seconds["measure"]

    @property
    def is_measured_cheaply(self) -> bool:
        """Whether comparing acceptance with the optimum takes next to no time, as for drafts that are looked up."""
        return self.seconds["measure"] <= CHEAP_SHARE * self.total_seconds

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the time that decoding took."""
        return self.tokens / max(self.decoding_seconds, 1e-9)

    def as_dict(self) -> dict[str, object]:
        """Plain names and numbers, for `--json`; None for what was not measured."""
        values = dict(
            tokens=self.tokens,
            target_passes=self.target_passes,
            block_efficiency=self.block_efficiency,
            acceptance_rate=self.acceptance_rate,
            optimal_acceptance_rate=self.optimal_acceptance_rate,
            acceptance_error=self.acceptance_error,
            gap_error=self.gap_error,
            measured_steps=self.measured,
            tokens_per_second=self.tokens_per_second,
            accepted_tokens=self.accepted,
            bonus_tokens=self.bonus,
            recovered_tokens=self.recovered,
            drafted_nodes=self.nodes,
            draft_passes=self.draft_passes,
            trees={name or NO_TREE: count for name, count in self.shapes.most_common()},
            predicted_tokens=self.predicted_tokens or None,
            predicted_seconds=self.predicted_seconds or None,
            accepted_at_rank=self.ranks,
            rank_acceptance_rates=self.rank_rates,
            seconds=self.seconds | {"total": self.total_seconds},
        )
        numbers = {name: None if value != value else value for name, value in values.items()}
        return numbers | self.as_vllm()

    def __str__(self) -> str:
        """A table of the names of docs/metrics.md, for `print(info)`; without what was not measured."""
        values = {name: value for name, value in self.as_dict().items() if value is not None}
        width = max(map(len, values))
        return "\n".join(f"{name:<{width}}  {shown_value(value)}" for name, value in values.items())

    def as_vllm(self) -> dict[str, object]:
        """What vLLM reports too, in its names."""
        return dict(
            mean_acceptance_length=self.mean_acceptance_length,
            draft_acceptance_rate=self.draft_acceptance_rate if self.nodes else None,
            acceptance_histogram=self.lengths,
            num_drafts=self.draft_steps,
            num_draft_tokens=self.nodes,
            num_accepted_tokens=self.accepted,
            num_accepted_tokens_per_pos=self.accepted_at_depth,
            per_position_acceptance_rate=self.depth_rates,
        )


def measured_acceptance(scheme: Scheme, record: StepRecord) -> dict[int, Measured]:
    """What is to be expected of every row at whose root the scheme drew; of none if the law's optimum is not known."""
    if scheme.law.optimal is None:
        return {}
    rates_by_row, groups = dict[int, Measured](), defaultdict[int, list[int]](list)
    for row, tree in enumerate(record.trees):
        if tree.has_drafts(0) and row not in record.faults:
            groups[tree.counts[0]].append(row)
    for count, rows in groups.items():
        scheme_of_count, node_laws = scheme.with_drafts(count), [record.trees[row].laws[0] for row in rows]
        targets = record.targets.at([(row, 0) for row in rows])
        if scheme_of_count.is_coupling:
            coupled = [coupling_rate(*pair) for pair in zip(targets, node_laws, strict=True)]
            rates_by_row |= {row: Measured(rate, rate, exact=True) for row, rate in zip(rows, coupled, strict=True)}
            continue
        target = stack_targets(targets)
        draft = stack_distributions(node_laws, count, padding=1)
        best, expected = optimum(target, draft, scheme_of_count.law), scheme_of_count.expected_acceptance(target, draft)
        drawn_rates = torch.tensor([acceptance_of(record.events[row]) for row in rows], dtype=best.dtype)
        rates = drawn_rates if expected is None else expected.minimum(best)  # above the optimum only by rounding
        for row, rate, optimal in zip(rows, rates.tolist(), best.tolist(), strict=True):
            rates_by_row[row] = Measured(rate, optimal, expected is not None)
    return rates_by_row


def coupling_rate(target: NodeTarget, law: NodeLaw) -> float:
    """The acceptance rate of a coupled single draft, which is the optimum: the sum of min(p, q) over all tokens.

    For a look-up after every pass the formulas for any number of drafts would take a tenth of a fast step.
    """
    return min(float(np.minimum(target.values, law.probabilities).sum()), 1.0)


def shown_value(value: object) -> str:
    """Numbers of at most four digits behind the point; lists and dictionaries on one line.

    >>> shown_value({"draft": 0.123456, "total": 2.0}), shown_value([3, 1])
    ('draft 0.1235, total 2', '3, 1')
    """
    if isinstance(value, dict):
        return ", ".join(f"{name} {shown_value(part)}" for name, part in value.items())
    if isinstance(value, list):
        return ", ".join(map(shown_value, value))
    return f"{value:.4f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def error_of_sum(total: float, squares: float, count: int) -> float:
    """Standard error of a sum of so many numbers, from it and the sum of their squares; not a number below two.

    >>> error_of_sum(1.0, 1.0, 1), error_of_sum(2.0, 4.0, 2)
    (nan, 2.0)
    """
    return math.sqrt(max(squares * count - total**2, 0.0) / (count - 1)) if count > 1 else math.nan


def tally(counts: list[int], index: int, last: int) -> None:
    """Count one more at an index; the list reaches at least to `last`."""
    counts.extend([0] * (max(index, last) + 1 - len(counts)))
    counts[index] += 1
