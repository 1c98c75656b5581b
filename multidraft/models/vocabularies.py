"""A draft model's vocabulary beside the target's: padded to another size, or a part of it."""

from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.errors import AdviceError, is_integer

MOST, SHARE = 1024, 0.02  # families pad to multiples of 64 to 512; one tokenizer beside another differs by far more


class Vocabulary:
    """How a model's own tokens, of which there are `size`, stand for the target's.

    Without `target_ids` they are the same; a token that the model does not have (padding of a larger vocabulary: next
    to never) is read as token 0. With them, own token i is the target's `target_ids[i]`, and the one after them stands
    for all others where it reads, and is never drafted. Raises AdviceError where the ids are no such list.
    """

    def __init__(self, size: int, target_ids: Any = None):
        self.columns, self.places, self.other, self.target_ids = size, None, 0, target_ids
        self.ids: Int[Tensor, " columns"] | None = None
        self.size = size  # that the target's tokens go up to, as far as this model knows
        if target_ids is not None:
            check_ids(target_ids, size)
            self.ids, self.columns, self.other = torch.tensor(target_ids), size - 1, size - 1
            self.places = {token: place for place, token in enumerate(target_ids)}
            self.size = max(target_ids) + 1

    def own(self, tokens: list[int]) -> list[int]:
        """The target's tokens as the model reads them."""
        if self.places is not None:
            return [self.places.get(token, self.other) for token in tokens]
        return [token if token < self.columns else self.other for token in tokens]


def check_ids(target_ids: Any, size: int) -> None:
    """Raise unless a model of this size has a token for each id, all distinct, and one for all others."""
    is_list = isinstance(target_ids, list | tuple) and all(is_integer(each) and each >= 0 for each in target_ids)
    if not is_list or not len(target_ids) == len(set(target_ids)) == size - 1 > 0:
        raise AdviceError(
            f"target_ids of a draft model with {size} tokens must be {size - 1} distinct tokens of the target; "
            "the last token of the model stands for all others"
        )


def are_close(size: int, other: int) -> bool:
    """Whether two vocabularies differ at most as paddings do."""
    return abs(size - other) <= min(MOST, SHARE * max(size, other))


def check_sizes(target: int, draft: int, is_reduced: bool = False) -> None:
    """Raise unless the draft's tokens can be the target's; that the tokenizers agree, sizes cannot tell.

    The vocabularies may differ as paddings do; a reduced one goes up to any token that the target has.
    """
    if not (draft <= target if is_reduced else are_close(target, draft)):
        raise AdviceError(
            f"the target has {target} tokens and the draft {draft}; the two need one tokenizer, "
            "so choose a draft model of the target's family"
        )
