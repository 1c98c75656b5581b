"""Several drafters as one: side by side, each with drafts of its own, or mixed into one distribution."""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError, is_number, shown
from multidraft.models.base import (
    MAX_CHUNK_TOKENS,
    LanguageModel,
    Lists,
    Scored,
    Scores,
    are_close,
    by_drafter,
    hidden_layers_of,
)
from multidraft.models.huggingface import reader
from multidraft.models.ngram import Lookup
from multidraft.verification.distributions import described

Weigh = Callable[[Float[Tensor, "rows new drafters vocabulary"]], Float[Tensor, "rows new drafters"]]
MAX_MEMBER_TOKENS = 256  # that a member brings into a mixture, its most likely ones
RENAMED_CLASSES = {"Copying": "LookupThenModel", "Several": "SideBySide", "Together": "DrafterGroup"}
SURE = 0.5  # certainty of a match from which on the other drafter is not asked


def __getattr__(name: str) -> Any:
    """The names of version 0.2, which go away after the next one."""
    if name not in RENAMED_CLASSES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} is now called {RENAMED_CLASSES[name]}", DeprecationWarning, stacklevel=2)
    return globals()[RENAMED_CLASSES[name]]


class DrafterGroup:
    """Drafters that read the same tree. Raises AdviceError where there are none, or they differ in vocabulary."""

    def __init__(self, drafters: Sequence[PreTrainedModel | LanguageModel]):
        self.drafters = [reader(model, 256) if isinstance(model, PreTrainedModel) else model for model in drafters]
        sizes = [drafter.vocabulary for drafter in self.drafters if getattr(drafter, "ids", None) is None]
        if not self.drafters or (sizes and not are_close(min(sizes), max(sizes))):
            raise AdviceError(f"drafters of vocabularies {sizes} do not fit; pass at least one, all of one tokenizer")
        self.vocabulary, self.device = max(drafter.vocabulary for drafter in self.drafters), self.drafters[-1].device
        self.context: int | None = min((d.context for d in self.drafters if d.context is not None), default=None)
        self.hidden_layers = tuple(sorted({layer for drafter in self.drafters for layer in hidden_layers_of(drafter)}))

    def _of(self, drafters: list[LanguageModel]) -> Any:
        """These drafters, going on from other readers of theirs."""
        return type(self)(drafters)

    def new(self, capacity: int) -> Any:
        return self._of([drafter.new(capacity) for drafter in self.drafters])

    def fork(self, row: int, length: int, capacity: int) -> Any:
        return self._of([drafter.fork(row, length, capacity) for drafter in self.drafters])

    def observe(self, states: list[Float[Tensor, "_ layers width"]]) -> None:
        for drafter in self.drafters:
            if layers := hidden_layers_of(drafter):
                places = [self.hidden_layers.index(layer) for layer in layers]
                cast(Any, drafter).observe([row[:, places] for row in states])

    def commit(self, chosen: Lists) -> None:
        for drafter in self.drafters:
            drafter.commit(chosen)

    def gather(self, rows: list[int]) -> None:
        for drafter in self.drafters:
            drafter.gather(rows)

    def extend(self, other: Any) -> None:
        for drafter, joining in zip(self.drafters, other.drafters, strict=True):
            drafter.extend(joining)

    def member_scores(self, tokens: Lists, parents: Lists, scored: Scored) -> list[Scores]:
        """The scores of all, on one device in one type."""
        answers = [drafter.forward(tokens, parents, scored) for drafter in self.drafters]
        scores = [member for pair in zip(self.drafters, answers, strict=True) for member in by_drafter(*pair)]
        dtype = reduce(torch.promote_types, [logits.dtype for logits, _ in scores], torch.float32)
        return [Scores(logits.to(self.device, dtype), ids.to(self.device)) for logits, ids in scores]


class SideBySide(DrafterGroup):
    """Drafters side by side: an answer of each, and the drafting law `distinct` draws by turns."""

    kind_in_plans = "Several"  # its name when the first plans were written

    def forward(self, tokens: Lists, parents: Lists, scored: Scored = "all") -> tuple[Tensor | Scores, ...]:
        return tuple(drafter.forward(tokens, parents, scored) for drafter in self.drafters)


class Mixture(DrafterGroup):
    """One drafter whose distribution is the weighted sum of its members', for every drafting law but `distinct`.

        q = sum_i w_i q_i,   q_i = softmax of member i's logits, cut to its 256 most likely tokens

    `weights` are fixed and sum to one (equal ones if left out), or a function of the members' log-probabilities
    (rows, new, drafters, vocabulary): known before anything is drawn, so that every choice is exact. The mixing comes
    first; temperature, top-k and top-p then apply to the mixture. Raises AdviceError on weights that make none.
    """

    def __init__(
        self,
        drafters: Sequence[PreTrainedModel | LanguageModel],
        weights: Sequence[float] | Weigh | None = None,
    ):
        super().__init__(drafters)
        self.weights = [1 / len(self.drafters)] * len(self.drafters) if weights is None else weights
        if not callable(self.weights):
            check_weights(self.weights, len(self.drafters))

    def _of(self, drafters: list[LanguageModel]) -> "Mixture":
        return Mixture(drafters, self.weights)

    def forward(self, tokens: Lists, parents: Lists, scored: Scored = "all") -> Scores:
        members = self.member_scores(tokens, parents, scored)
        if callable(self.weights):
            laws = torch.stack([spread(member, self.vocabulary) for member in members], 2)
            weights = checked(self.weights(laws), laws).unbind(-1)
        else:
            weights = tuple(members[0].logits.new_tensor(self.weights))
        return merged([scaled(*pair) for pair in zip(members, weights, strict=True)])


@dataclass
class Backlog:
    """The tokens of one row that the model of a `LookupThenModel` has not read, because its scores were not needed."""

    tokens: list[int] = field(default_factory=list)  # those kept that it has not read as kept, then the pending ones
    parents: list[int] = field(default_factory=list)  # among these
    kept: int = 0  # how many of them are
    read: int = 0  # how many of them it has read, which are pending there

    def take(self, end: int) -> tuple[list[int], list[int]]:
        """The tokens up to this one that it has not read, with those that they follow."""
        new = slice(self.read, end)
        self.read = max(self.read, end)
        return self.tokens[new], self.parents[new]

    def commit(self, path: list[int]) -> list[int]:
        """Those of its own that a path of pending ones keeps; what it has not read of the path waits."""
        whole = [*range(self.kept), *(self.kept + node for node in path)]
        committed = [place for place in whole if place < self.read] if path else []
        self.tokens = [self.tokens[place] for place in whole[len(committed) :]]
        self.kept, self.read = len(self.tokens), 0
        self.parents = [*range(-1, self.kept - 1)]
        return committed


class LookupThenModel(DrafterGroup):
    """A mixture of look-up and another drafter, weighed by how likely the match is right.

        q = w d + (1 - w) q',   w = the certainty of the match, d = all on its token, q' = the other's law, cut as well

    The certainty is estimated from how often matches of the same length were right in the row's text so far, apart for
    texts whose latest token was guessed right: known before anything is drawn. Where it is a half at least, q = d: the
    other is not asked; nor is it anywhere while `lookup_only`, which a policy sets that expects too little of it. It
    reads what it has missed when it is asked again.
    """

    kind_in_plans = "Copying"  # its name when the first plans were written

    def __init__(self, drafters: Sequence[PreTrainedModel | LanguageModel]):
        super().__init__(drafters)
        if len(self.drafters) != 2 or not isinstance(self.drafters[0], Lookup):
            raise AdviceError("LookupThenModel mixes two drafters; pass [Lookup(vocabulary), draft]")
        self.copied: Lookup = self.drafters[0]
        self.other = self.drafters[1]
        self.rows: list[Backlog] = []
        self.lookup_only = False

    def forward(self, tokens: Lists, parents: Lists, scored: Scored = "all") -> Scores:
        if not self.rows:
            self.rows = [Backlog() for _ in tokens]
            self.other.forward([[] for _ in tokens], [[] for _ in tokens], "none")
        copied: Any = self.copied.forward(tokens, parents, scored)
        asked = list[tuple[int, int, int]]()  # scored tokens that are not sure: row, place, and which pending one
        for row, (backlog, new, sure) in enumerate(zip(self.rows, tokens, copied.logits.exp().sum(-1), strict=True)):
            backlog.tokens = backlog.tokens + new
            backlog.parents = backlog.parents + [backlog.kept + parent for parent in parents[row]]
            pending = len(backlog.tokens) - backlog.kept
            nodes = range(pending - min(len(new), len(sure)), pending)
            asked += [(row, place, node) for place, node in enumerate(nodes) if sure[place] < SURE]
        return self.mixed(copied, asked) if asked and not self.lookup_only else copied

    def mixed(self, copied: Scores, asked: list[tuple[int, int, int]]) -> Scores:
        """The laws at scored tokens, of which some are asked of the other drafter."""
        rows, places, _ = zip(*asked, strict=True)
        self.catch_up({row: self.rows[row].kept - MAX_CHUNK_TOKENS for row in rows})
        ends = [self.rows[row].kept + node + 1 for row, _, node in asked]
        last = dict(zip(rows, ends, strict=True))
        new = [backlog.take(last.get(row, 0)) for row, backlog in enumerate(self.rows)]
        at_end = len(last) == len(asked)
        answer = self.other.forward([row[0] for row in new], [row[1] for row in new], "last" if at_end else "all")
        [(logits, ids)] = by_drafter(self.other, answer)
        lines = [-1 if at_end else len(new[row][0]) - 1 - last[row] + end for row, end in zip(rows, ends, strict=True)]
        dtype = torch.promote_types(copied.logits.dtype, logits.dtype)
        scores = Scores(logits[rows, lines].to(self.device, dtype), ids[rows, lines].to(self.device))
        weighted = scaled(scores, 1 - copied.logits[rows, places].exp().sum(-1))
        shape = (*copied.ids.shape[:2], weighted.ids.shape[-1])
        law = Scores(weighted.logits.new_full(shape, -torch.inf), weighted.ids.new_zeros(shape))
        law.logits[rows, places], law.ids[rows, places] = weighted
        return merged([copied, law])

    def catch_up(self, missing: dict[int, int]) -> None:
        """Let the other keep so many of the tokens that it has not read, piece by piece, unless some are pending."""
        while any(count > 0 for count in missing.values()) and not any(row.read for row in self.rows):
            counts = [max(min(missing.get(row, 0), MAX_CHUNK_TOKENS), 0) for row in range(len(self.rows))]
            read = [row.take(count) for row, count in zip(self.rows, counts, strict=True)]
            self.other.forward([tokens for tokens, _ in read], [parents for _, parents in read], "none")
            self.other.commit([[*range(count)] for count in counts])
            for row, count in zip(self.rows, counts, strict=True):
                row.tokens, row.kept, row.read = row.tokens[count:], row.kept - count, 0
                row.parents = [parent - count for parent in row.parents[count:]]
            missing = {row: count - MAX_CHUNK_TOKENS for row, count in missing.items()}

    def commit(self, chosen: Lists) -> None:
        self.copied.commit(chosen)
        was_asked = any(row.read for row in self.rows)
        committed = [row.commit(path) for row, path in zip(self.rows, chosen, strict=True)]
        if was_asked:
            self.other.commit(committed)

    def gather(self, rows: list[int]) -> None:
        super().gather(rows)
        self.rows = [replace(self.rows[row]) for row in rows] if self.rows else []

    def extend(self, other: Any) -> None:
        super().extend(other)
        self.rows = self.rows + other.rows

    def fork(self, row: int, length: int, capacity: int) -> Any:
        copied = self.copied.fork(row, length, capacity)
        self.catch_up({row: length - len(self.copied.rows[row].kept) + self.rows[row].kept})
        fork = self._of([copied, self.other.fork(row, length, capacity)])
        fork.rows = [Backlog()]
        return fork


def scaled(scores: Scores, weight: Float[Tensor, "*rows"]) -> Scores:
    """The logarithms of a law times a weight, cut to its most likely tokens."""
    logits, columns = scores.logits.topk(min(MAX_MEMBER_TOKENS, scores.logits.shape[-1]), -1)
    return Scores(logits.log_softmax(-1) + weight.log()[..., None], scores.ids.gather(-1, columns))


def merged(parts: list[Scores]) -> Scores:
    """The sum of laws, with one column for each token."""
    ids, order = torch.cat([part.ids for part in parts], -1).sort(dim=-1, stable=True)
    probabilities = torch.cat([part.logits for part in parts], -1).exp().gather(-1, order)
    places = torch.nn.functional.pad((ids.diff(dim=-1) != 0).cumsum(-1), (1, 0))
    sums = torch.zeros_like(probabilities).scatter_add(-1, places, probabilities)
    return Scores(sums.log(), torch.zeros_like(ids).scatter(-1, places, ids))


def spread(scores: Scores, vocabulary: int) -> Float[Tensor, "rows new vocabulary"]:
    """The log-probabilities of all tokens."""
    law = scores.logits.softmax(-1)
    return law.new_zeros(*law.shape[:2], vocabulary).scatter_add(-1, scores.ids, law).log()


def checked(weights: Any, laws: Float[Tensor, "rows new drafters _"]) -> Float[Tensor, "rows new drafters"]:
    """What a function has weighed the drafters with; raises AdviceError unless each node has a weight for each."""
    shape, use = tuple(laws.shape[:-1]), "a float tensor (rows, new, drafters) of weights, none below 0 and one above"
    good = isinstance(weights, Tensor) and weights.is_floating_point() and weights.shape == shape
    if not good or weights.device != laws.device:
        what = f"{described(weights)}, not of shape {shape} on {laws.device}"
        raise AdviceError(f"the weights function of a Mixture returns {what}; return {use}")
    fine = weights.isfinite().all(-1) & (weights >= 0).all(-1) & (weights > 0).any(-1)
    if not fine.all():
        row, node = (~fine).nonzero()[0].tolist()
        node_weights = weights[row, node].tolist()
        raise AdviceError(
            f"the weights function of a Mixture returns {node_weights} in row {row}, node {node}; return {use}"
        )
    return weights


def check_weights(weights: Any, drafters: int) -> None:
    """Raise unless there is a weight for each drafter, none below zero, and they sum to one."""
    listed = weights if isinstance(weights, list | tuple) and all(map(is_number, weights)) else []
    if len(listed) != drafters or not min(listed) >= 0 or not abs(sum(listed) - 1) < 1e-6:
        raise AdviceError(
            f"weights {shown(weights)} make no mixture of {drafters} drafters; pass as many, summing to 1"
        )
