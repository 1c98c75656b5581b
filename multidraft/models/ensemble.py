"""Several drafters as one: side by side, each with drafts of its own, or mixed into one distribution."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel

from multidraft.errors import AdviceError
from multidraft.models import LanguageModel, Scored
from multidraft.models.huggingface import readable
from multidraft.models.resized import are_close, fitted

Weigh = Callable[[Float[Tensor, "batch new drafters vocabulary"]], Float[Tensor, "batch new drafters"]]


class Together:
    """Drafters that read the same tree. Raises AdviceError where there are none, or they differ in vocabulary."""

    def __init__(self, drafters: Sequence[PreTrainedModel | LanguageModel]):
        own = [readable(drafter) for drafter in drafters]
        sizes = [drafter.vocabulary for drafter in own]
        if not sizes or not are_close(min(sizes), max(sizes)):
            raise AdviceError(f"drafters of vocabularies {sizes} do not fit; pass at least one, all of one tokenizer")
        self.vocabulary = max(sizes)
        self.drafters = [fitted(drafter, self.vocabulary) for drafter in own]
        self.context: int | None = min((d.context for d in self.drafters if d.context is not None), default=None)

    @property
    def device(self) -> torch.device:
        return self.drafters[0].device

    def scores(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored,
    ) -> Float[Tensor, "batch scored drafters vocabulary"]:
        """The logits of all."""
        scores = [drafter.forward(tokens, positions, visible, logits) for drafter in self.drafters]
        dtype = reduce(torch.promote_types, [s.dtype for s in scores])
        return torch.stack([s.to(tokens.device, dtype) for s in scores], 2)

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        for drafter in self.drafters:
            drafter.keep(chosen)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        for drafter in self.drafters:
            drafter.select(rows)

    def join(self, other: "Together") -> None:
        for drafter, joining in zip(self.drafters, other.drafters, strict=True):
            drafter.join(joining)

    def parts(self, row: int, length: int, capacity: int) -> list[LanguageModel]:
        """The same part of a row in all."""
        return [drafter.part(row, length, capacity) for drafter in self.drafters]


class Several(Together):
    """Drafters side by side: logits have a dimension for them, and the drafting law `distinct` draws by turns."""

    def fresh(self, capacity: int) -> "Several":
        return Several([drafter.fresh(capacity) for drafter in self.drafters])

    def part(self, row: int, length: int, capacity: int) -> "Several":
        return Several(self.parts(row, length, capacity))

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored drafters vocabulary"]:
        return self.scores(tokens, positions, visible, logits)


class Mixture(Together):
    """One drafter whose distribution is the weighted sum of its members', for every drafting law but `distinct`.

        q = sum_i w_i q_i,   q_i = softmax of member i's logits

    `weights` are fixed and sum to one (equal ones if left out), or a function of the members' log-probabilities
    (batch, new, drafters, vocabulary): known before anything is drawn, so that every choice is exact. The mixing comes
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

    def fresh(self, capacity: int) -> "Mixture":
        return Mixture([drafter.fresh(capacity) for drafter in self.drafters], self.weights)

    def part(self, row: int, length: int, capacity: int) -> "Mixture":
        return Mixture(self.parts(row, length, capacity), self.weights)

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        scores = self.scores(tokens, positions, visible, logits)
        laws = (scores if scores.dtype == torch.float64 else scores.float()).log_softmax(-1)
        weights = self.weights(laws) if callable(self.weights) else laws.new_tensor(self.weights)
        return (laws + weights.log()[..., None]).logsumexp(-2)


def check_weights(weights: Sequence[float], drafters: int) -> None:
    """Raise unless there is a weight for each drafter, none below zero, and they sum to one."""
    if len(weights) != drafters or not min(weights) >= 0 or not abs(sum(weights) - 1) < 1e-6:
        raise AdviceError(f"weights {list(weights)} make no mixture of {drafters} drafters; pass as many, summing to 1")
