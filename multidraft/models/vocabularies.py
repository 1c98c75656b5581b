"""How the tokens of a draft model stand for the target's."""

from collections.abc import Mapping
from copy import copy
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from multidraft.errors import AdviceError, is_integer
from multidraft.models.reader import Reader
from multidraft.models.scores import described_model
from multidraft.verification.distributions import describe

# Two vocabularies of one tokenizer may differ by so many tokens, or by this share: families pad to multiples of 64 to
# 512, and the vocabularies of two tokenizers differ by far more.
MAX_PADDING, MAX_PADDING_SHARE = 1024, 0.02
MAX_OTHER_TOKENS_SHARE = 0.02  # of two tokenizers' tokens, that may have another name in each
USE_SAME_TOKENIZER = "choose a draft model that has the target's tokenizer"


def check_ids(model: object, vocabulary: int) -> None:
    """Raise unless the columns of a draft model, and of its drafters, are distinct tokens of the target's."""
    if not isinstance(model, Reader):
        return
    for drafter in model.drafters:
        check_ids(drafter, vocabulary)
    if (ids := model.ids) is not None and not are_tokens(ids, vocabulary):
        use = f"an int64 tensor of distinct tokens, each from 0 to {vocabulary - 1}"
        raise AdviceError(f"the ids of {described_model(model)} are {describe(ids)}; give {use}")


def are_tokens(ids: object, vocabulary: int) -> bool:
    """Whether they are some distinct tokens of a vocabulary."""
    if not (isinstance(ids, Tensor) and ids.ndim == 1 and ids.dtype == torch.int64 and len(ids)):
        return False
    return 0 <= int(ids.min()) <= int(ids.max()) < vocabulary and len(ids.unique()) == len(ids)


class Vocabulary:
    """How a model's own tokens, of which there are `size`, stand for the target's.

    Without `target_ids` they are the same; a token that the model does not have (padding of a larger vocabulary: next
    to never) is read as token 0. With them, the model's token i is the target's `target_ids[i]`; one more input token
    stands for every other target token, and is never drafted. Raises AdviceError where the ids are no such list.
    """

    def __init__(self, size: int, target_ids: Any = None):
        self.size = self.columns = size  # `size`: that the target's tokens go up to, as far as this model knows
        self.token_count = size  # of the model's own
        self.places: dict[int, int] | None = None
        self.ids: Int[Tensor, " columns"] | None = None
        self.target_ids = copy(target_ids)
        self.undrafted_columns: Int[Tensor, " tokens"] | None = None  # the target has others in their places
        if target_ids is None:
            return
        is_list = isinstance(target_ids, list | tuple) and all(is_integer(token) and token >= 0 for token in target_ids)
        if not is_list or not len(target_ids) == len(set(target_ids)) == size - 1 > 0:
            raise AdviceError(
                f"target_ids of a draft model with {size} tokens must be {size - 1} distinct tokens of the target; "
                "the last token of the model stands for all others"
            )
        self.size, self.columns, self.ids = max(target_ids) + 1, size - 1, torch.tensor(target_ids)
        self.places = {token: place for place, token in enumerate(target_ids)}

    def is_of(self, token_count: int, target_ids: Any) -> bool:
        """Whether it is that of a model with so many tokens of its own, and these of the target's."""
        return self.token_count == token_count and self.target_ids == target_ids

    def encode(self, tokens: list[int]) -> list[int]:
        """The target's tokens as the model reads them."""
        if self.places is not None:
            return [self.places.get(token, self.columns) for token in tokens]
        return [token if token < self.columns else 0 for token in tokens]


def are_close(size: int, other: int) -> bool:
    """Whether two vocabularies differ at most as paddings do."""
    return abs(size - other) <= min(MAX_PADDING, MAX_PADDING_SHARE * max(size, other))


def check_sizes(target: int, draft: int, is_reduced: bool = False) -> None:
    """Raise unless the draft's tokens can be the target's; that the tokenizers agree, sizes cannot tell.

    The vocabularies may differ as paddings do; a reduced one goes up to any token that the target has.
    """
    if not (draft <= target if is_reduced else are_close(target, draft)):
        raise AdviceError(
            f"the target has {target} tokens and the draft {draft}; the two need one tokenizer, "
            "so choose a draft model of the target's family"
        )


def other_tokens(target: Mapping[int, str], draft: Mapping[int, str], use: str = USE_SAME_TOKENIZER) -> list[int]:
    """The tokens that two tokenizers name differently, by number: few, as where special ones were renamed or added.

    Raises AdviceError where they are more than 2 % of all: then these are two tokenizers.
    """
    if target == draft:
        return []
    tokens = sorted(token for token in target.keys() | draft.keys() if target.get(token) != draft.get(token))
    if len(tokens) > MAX_OTHER_TOKENS_SHARE * max(len(target), len(draft)):
        first, second = (repr(names[tokens[0]]) if tokens[0] in names else "absent" for names in (target, draft))
        raise AdviceError(
            f"the vocabularies of target and draft differ: token {tokens[0]} is {first} in the first and {second} in "
            f"the second, and {len(tokens) - 1} others differ; {use}"
        )
    return tokens


def undrafted_note(tokens: list[int], target: Mapping[int, str], draft: Mapping[int, str]) -> str:
    """What a user is told of tokens that are not drafted."""
    first, second = target.get(tokens[0], "absent"), draft.get(tokens[0], "absent")
    what = f"{len(tokens)} of the draft's tokens are not the target's" if len(tokens) > 1 else "one token differs"
    return f"{what} (token {tokens[0]} is {first!r} there, and {second!r} in the draft): never drafted"
