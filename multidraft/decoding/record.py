"""What came of a step: everything that metrics, traces, learning and a server's picture want to know of it."""

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.decoding.policy import StepForecast
from multidraft.decoding.targets import Targets, stack_targets
from multidraft.decoding.tree import TokenTree, stack_distributions
from multidraft.decoding.walks import Verdict, WalkResult
from multidraft.sampling.gate import RowFault
from multidraft.transfer import download, upload
from multidraft.verification.laws import optimum
from multidraft.verification.scheme import Scheme

STEP_PARTS = ("draft", "target", "rule", "cache", "measure")


class Clock:
    """Seconds by the parts of a step."""

    def __init__(self, synchronise: bool):
        self.seconds, self.synchronise = dict.fromkeys(STEP_PARTS, 0.0), synchronise

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Book a block's time, after pending work on the GPU where asked."""
        start = time.perf_counter()
        yield
        if self.synchronise:
            torch.cuda.synchronize()
        self.seconds[name] += time.perf_counter() - start


class Logprob(NamedTuple):
    """A token's log-probability under the distribution that it was sampled from, and the most likely tokens there."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Emitted:
    """One row's new tokens and how each came to be: "accepted", "recovered" or "bonus"."""

    tokens: list[int]
    kinds: list[str]
    logprobs: list[Logprob] = field(default_factory=list)  # if asked for

    def first(self, count: int) -> "Emitted":
        """The first tokens."""
        return Emitted(self.tokens[:count], self.kinds[:count], self.logprobs[:count])


class Measured(NamedTuple):
    """The acceptance rate at a row's root, beside the largest that any rule can reach for its drafting law."""

    expected: float  # over all tuples where `exact`, else of the tuple that was drawn
    optimal: float
    exact: bool


class Visit(NamedTuple):
    """A node that a walk came to: with its target scaled to a weight, the rule said this."""

    node: int
    weight: float
    verdict: Verdict


class CoinFlip(NamedTuple):
    """A coin that a walk threw: it shows yes where the number is below the probability."""

    probability: float
    number: float
    yes: bool


class Decision(NamedTuple):
    """How a step ends, row by row."""

    walk_results: list[WalkResult]
    last: list[int]  # the one more token
    numbers: list[float]  # which it was drawn with
    events: list[list[Visit | CoinFlip]]


@dataclass
class StepRecord:
    """One step, row by row in the order of the state's rows."""

    targets: Targets  # logits and distributions at the nodes of the trees
    events: list[list[Visit | CoinFlip]]  # of the rows' walks, in order
    walk_results: list[WalkResult]  # the accepted nodes below the root, and what the one more token was drawn from
    emitted: list[Emitted]  # the accepted tokens and one more; nothing where there was a fault
    numbers: list[float]  # which the one more token was drawn with
    scored: list[bool]  # whether the target has read the row's tree, or had said all with the row's prompt
    draft_passes: int
    seconds: dict[str, float]  # of every part: draft, target, rule, cache, measure
    measured: dict[int, Measured] = field(default_factory=dict)  # by row, in the steps that measure
    forecast: StepForecast | None = None  # by the policy, if it predicts anything
    is_first_of_size: bool = False  # whether something was made for passes of its size, which took time

    @property
    def trees(self) -> list[TokenTree]:
        """The rows' trees."""
        return self.targets.trees

    @property
    def is_catching_up(self) -> bool:
        """Whether the draft model has read, in some row, what it had missed, in place of drafting."""
        return any(tree.backlog > 0 and not tree.read for tree in self.trees)

    @property
    def faults(self) -> dict[int, RowFault]:
        """Rows that cannot go on, for their models or processors have no distribution for them: drop them."""
        return self.targets.faults


def acceptance_of(events: list[Visit | CoinFlip]) -> float:
    """What the rule accepts of the tuple at a walk's root, which it comes to first; 0 where nothing was drawn."""
    return next((event.verdict.acceptance for event in events if isinstance(event, Visit)), 0.0)


def measured_acceptance(scheme: Scheme, targets: Targets, decision: Decision) -> dict[int, Measured]:
    """What is to be expected of every row at whose root the scheme drew; of none if the law's optimum is not known."""
    if scheme.law.optimal is None:
        return {}
    rates_by_row, groups = dict[int, Measured](), defaultdict[int, list[int]](list)
    for row, tree in enumerate(targets.trees):
        if tree.has_drafts(0) and row not in targets.faults:
            groups[tree.counts[0]].append(row)
    for count, rows in groups.items():
        scheme_of_count, node_laws = scheme.with_drafts(count), [targets.trees[row].laws[0] for row in rows]
        target = stack_targets(targets.at([(row, 0) for row in rows]))
        draft = stack_distributions(node_laws, count, padding=1)
        best, expected = optimum(target, draft, scheme_of_count.law), scheme_of_count.expected_acceptance(target, draft)
        drawn_rates = torch.tensor([acceptance_of(decision.events[row]) for row in rows], dtype=best.dtype)
        rates = drawn_rates if expected is None else expected.minimum(best)  # above the optimum only by rounding
        for row, rate, optimal in zip(rows, rates.tolist(), best.tolist(), strict=True):
            rates_by_row[row] = Measured(rate, optimal, expected is not None)
    return rates_by_row


def lookup_logprobs(targets: Targets, paths: dict[int, list[int]], tokens: list[list[int]]) -> dict[int, list[Logprob]]:
    """For the tokens of rows that ask for it, each from its node of the row's path; all of them in one copy."""
    groups = defaultdict[int, list[int]](list)
    for row in paths:
        if (top := targets.rows[row].num_logprobs) is not None:
            groups[top].append(row)
    parts = list[Tensor]()
    for top, rows in groups.items():
        logs = targets.log_lines([(row, node) for row in rows for node in paths[row]])
        parts += likeliest_logs(logs, [token for row in rows for token in tokens[row]], top)
    copies, answers = iter(download(*parts)), dict[int, list[Logprob]]()
    for rows in groups.values():
        logprobs = iter(logprobs_of(next(copies), next(copies), next(copies)))
        answers |= {row: list(islice(logprobs, len(tokens[row]))) for row in rows}
    return answers


def top_logprobs(logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int) -> list[Logprob]:
    """Every token's logarithm in its line, and the largest of the line."""
    return logprobs_of(*download(*likeliest_logs(logs, tokens, top)))


def likeliest_logs(
    logs: Float[Tensor, "tokens vocabulary"], tokens: list[int], top: int
) -> tuple[Float[Tensor, " tokens"], Int[Tensor, "tokens top"], Float[Tensor, "tokens top"]]:
    """Every token's logarithm in its line, and the ids and values of the largest, where the lines are."""
    best = logs.topk(min(top, logs.shape[-1]), -1)
    return logs.gather(-1, upload(tokens, logs.device)[:, None])[:, 0], best.indices, best.values


def logprobs_of(
    chosen: Float[Tensor, " tokens"], ids: Int[Tensor, "tokens top"], values: Float[Tensor, "tokens top"]
) -> list[Logprob]:
    """The numbers as users get them."""
    pairs = [tuple(zip(*pair, strict=True)) for pair in zip(ids.tolist(), values.tolist(), strict=True)]
    return [Logprob(*pair) for pair in zip(chosen.tolist(), pairs, strict=True)]
