"""Answers of models and their checks, and how the tokens of a draft model stand for the target's."""

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, is_integer
from multidraft.models.reader import Reader
from multidraft.transfer import upload
from multidraft.verification.distributions import described, has_values

# Two vocabularies of one tokenizer may differ by so many tokens, or by this share: families pad to multiples of 64 to
# 512, and the vocabularies of two tokenizers differ by far more.
MAX_PADDING, MAX_PADDING_SHARE = 1024, 0.02
MAX_OTHER_TOKENS_SHARE = 0.02  # of two tokenizers' tokens, that may have another name in each
USE_SAME_TOKENIZER = "choose a draft model that has the target's tokenizer"
MAX_CHUNK_TOKENS = 512  # of a text in one forward pass: bounds the memory of the attention mask


class Scores(NamedTuple):
    """Logits of few tokens: the law is the softmax over the columns.

    In a row and node the tokens above -inf are distinct. A drafter that knows only part of a law may return logarithms
    of probabilities that sum to less than one; what it draws from is their normalised law all the same.
    """

    logits: Float[Tensor, "rows new columns"]  # -inf where a node has fewer columns than others
    ids: Int[Tensor, "rows new columns"]  # the token of each column


Answer = Tensor | Scores | tuple[Tensor | Scores, ...]


LanguageModel = Reader  # its name in version 0.2
RENAMED_METHODS = {  # names of version 0.2 that a model of a user's may still have
    "fresh": "new",
    "part": "fork",
    "keep": "commit",
    "select": "gather",
    "join": "extend",
    "hear": "observe",
    "hears": "hidden_layers",
}


def check_method_names(model: Any, name: str) -> None:
    """Raise where a model has methods by the names of version 0.2."""
    if renamed := [f"{old} to {new}" for old, new in RENAMED_METHODS.items() if hasattr(model, old)]:
        raise AdviceError(f"the {name} model has methods by their names of 0.2; rename {', '.join(renamed)}")


def hidden_layers_of(draft: object) -> tuple[int, ...]:
    """Indices into the target's `hidden_states` (0 = embeddings) that a drafter needs; usually empty.

    The last state comes after the last norm, as in Hugging Face's `hidden_states`.
    """
    return draft.hidden_layers if isinstance(draft, Reader) else ()


def pass_hidden_states(target: Reader, draft: Reader | None) -> None:
    """Hand the hidden states of the tokens that the target has just committed to the draft model, if it needs any."""
    if draft is not None and draft.hidden_layers:
        draft.observe([*target.hidden_states])


def answers(model: Any, answer: Any, shape: tuple[int, int] | None = None) -> list[tuple[Tensor, Tensor | None]]:
    """The logits of each drafter with the tokens of its columns, None where column c is token c.

    Raises AdviceError on what is no answer, or none for a `shape` of so many rows and new tokens.
    """
    if isinstance(answer, tuple) and not isinstance(answer, Scores):
        drafters = model.drafters
        if len(answer) != len(drafters):
            raise AdviceError(f"{described_model(model)} returns {len(answer)} answers of {len(drafters)} drafters")
        return [part for pair in zip(drafters, answer, strict=True) for part in answers(*pair, shape)]
    logits, ids = answer if isinstance(answer, Scores) else (answer, model.ids)
    check_logits(model, logits, shape or (None, None))
    if model.undrafted is not None and not isinstance(answer, Scores):
        columns = upload(model.undrafted, logits.device)
        logits = logits.index_fill(-1, columns[columns < logits.shape[-1]], -torch.inf)
    if ids is not None and not (isinstance(ids, Tensor) and has_values(ids) and ids.dtype == torch.int64):
        raise AdviceError(f"{described_model(model)} has ids that are {described(ids)}; make them an int64 tensor")
    if ids is not None and ids.shape not in (logits.shape, logits.shape[-1:]):
        sizes = f"{tuple(ids.shape)} for logits of shape {tuple(logits.shape)}"
        raise AdviceError(f"{described_model(model)} has ids of shape {sizes}; give a token for every column")
    return [(logits, ids)]


def check_logits(model: Any, logits: Any, shape: tuple[int | None, int | None], columns: int | None = None) -> None:
    """Raise unless a model has returned logits of this shape; None stands for any size."""
    if isinstance(logits, tuple):
        raise AdviceError(f"{described_model(model)} can only draft: it knows a part of a law; pass a whole model")
    expected = (*shape, columns)
    if isinstance(logits, Tensor) and logits.is_floating_point() and has_values(logits) and logits.ndim == 3:
        sizes = zip(expected, logits.shape, strict=True)
        if logits.shape[-1] and all(size in (None, actual) for size, actual in sizes):
            return
    names = zip(("rows", "new", "columns"), expected, strict=True)
    form = ", ".join(name if size is None else str(size) for name, size in names)
    raise AdviceError(
        f"{described_model(model)} returns {described(logits)}; its forward must return logits ({form}), a float tensor"
    )


def described_model(model: Any) -> str:
    """A model in an error message."""
    return f"the model {type(model).__name__}"


def check_ids(model: Any, vocabulary: int) -> None:
    """Raise unless the columns of a draft model, and of its drafters, are distinct tokens of the target's."""
    if not isinstance(model, Reader):
        return
    for drafter in model.drafters:
        check_ids(drafter, vocabulary)
    if (ids := model.ids) is not None and not are_tokens(ids, vocabulary):
        use = f"an int64 tensor of distinct tokens, each from 0 to {vocabulary - 1}"
        raise AdviceError(f"the ids of {described_model(model)} are {described(ids)}; give {use}")


def are_tokens(ids: Any, vocabulary: int) -> bool:
    """Whether they are some distinct tokens of a vocabulary."""
    if not (isinstance(ids, Tensor) and ids.ndim == 1 and ids.dtype == torch.int64 and len(ids)):
        return False
    return 0 <= int(ids.min()) <= int(ids.max()) < vocabulary and len(ids.unique()) == len(ids)


def by_drafter(model: Any, answer: Answer) -> list[Scores]:
    """The same, with the token of every column."""
    return [Scores(logits, column_ids(logits, ids).expand_as(logits)) for logits, ids in answers(model, answer)]


def column_ids(logits: Tensor, ids: Tensor | None) -> Tensor:
    """The token of every column, where the logits are."""
    return torch.arange(logits.shape[-1], device=logits.device) if ids is None else upload(ids, logits.device)


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
        self.undrafted: Int[Tensor, " tokens"] | None = None  # the target has others in their places
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


def closed_up(staying: Sequence[int]) -> list[int]:
    """An order of the rows that stay in which the fewest change their index: the last ones fill the gaps.

    >>> closed_up([0, 1, 3, 4])
    [0, 1, 4, 3]
    """
    count, stays = len(staying), set(staying)
    last = sorted((row for row in staying if row >= count), reverse=True)
    return [row if row in stays else last.pop(0) for row in range(count)]
