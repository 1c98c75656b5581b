"""A draft model whose vocabulary was padded to another size than the target's, as in the Qwen families."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.models import LanguageModel, Scored

MOST, SHARE = 1024, 0.02  # families pad to multiples of 64 to 512; one tokenizer beside another differs by far more


def are_close(size: int, other: int) -> bool:
    """Whether two sizes differ at most as paddings do."""
    return abs(size - other) <= min(MOST, SHARE * max(size, other))


def check_sizes(target: int, draft: int) -> None:
    """Raise unless the two sizes differ at most as paddings do; that the tokenizers agree, sizes cannot tell."""
    if not are_close(target, draft):
        raise AdviceError(
            f"the target has {target} tokens and the draft {draft}; the two need one tokenizer, "
            "so choose a draft model of the target's family"
        )


def resize(logits: Float[Tensor, "*batch own"], vocabulary: int) -> Float[Tensor, "*batch vocabulary"]:
    """Leave tokens out at the end, or add some that have no probability."""
    missing = vocabulary - logits.shape[-1]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits


class Resized:
    """The draft model over the target's vocabulary.

    Tokens that only the draft model knows are left out, and those that only the target knows are never drafted: the
    law of the drafts is what is left, renormalised, so the output is exact. If the target emits a token that the draft
    model cannot read (it is padding: next to never), the draft model reads token 0 in its place.
    """

    def __init__(self, model: LanguageModel, vocabulary: int):
        self.model, self.vocabulary, self.context = model, vocabulary, model.context

    def fresh(self, capacity: int) -> "Resized":
        return Resized(self.model.fresh(capacity), self.vocabulary)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(
        self,
        tokens: Int[Tensor, "batch new"],
        positions: Int[Tensor, "batch new"],
        visible: Bool[Tensor, "batch new pending"],
        logits: Scored = True,
    ) -> Float[Tensor, "batch scored vocabulary"]:
        readable = tokens.where(tokens < self.model.vocabulary, 0)
        return resize(self.model.forward(readable, positions, visible, logits), self.vocabulary)

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        self.model.keep(chosen)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        self.model.select(rows)

    def join(self, other: "Resized") -> None:
        self.model.join(other.model)

    def part(self, row: int, length: int, capacity: int) -> "Resized":
        return Resized(self.model.part(row, length, capacity), self.vocabulary)


def fitted(model: LanguageModel, vocabulary: int) -> LanguageModel:
    """The model over this vocabulary."""
    return model if model.vocabulary == vocabulary else Resized(model, vocabulary)
