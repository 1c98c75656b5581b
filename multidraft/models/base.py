"""What a model offers to the decoding loop, be it a target or a draft.

For each row of a batch a model holds *kept* tokens (the sequence so far; rows may differ in length) and *pending* ones:
those passed to `forward` since the last `commit`, which form a tree below the kept ones.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError, is_integer
from multidraft.verification.distributions import described, has_values

# Two vocabularies of one tokenizer may differ by so many tokens, or by this share: families pad to multiples of 64 to
# 512, and the vocabularies of two tokenizers differ by far more.
MAX_PADDING, MAX_PADDING_SHARE = 1024, 0.02
MAX_CHUNK_TOKENS = 512  # of a text in one forward pass: bounds the memory of the attention mask
Lists = list[list[int]]  # tokens, or places of tokens, row by row
Scored = Literal["all", "last", "none"]  # which of the new tokens are scored: all, each row's last one, or none


class Scores(NamedTuple):
    """Logits of few tokens: the law is the softmax over the columns.

    In a row and node the tokens above -inf are distinct. A drafter that knows only part of a law may return logarithms
    of probabilities that sum to less than one; what it draws from is their normalised law all the same.
    """

    logits: Float[Tensor, "rows new columns"]  # -inf where a node has fewer columns than others
    ids: Int[Tensor, "rows new columns"]  # the token of each column


Answer = Tensor | Scores | tuple[Tensor | Scores, ...]


@runtime_checkable
class LanguageModel(Protocol):
    """A language model that reads a tree of tokens at once, and then keeps one path of it.

    Column c of its logits is token c of the target, or token `ids[c]` where a draft model has an attribute `ids`: other
    tokens have probability 0. The tokens that it reads are always the target's.
    """

    vocabulary: int  # the number of tokens that ids go up to, the target's where it drafts for one
    context: int | None  # the largest number of tokens in a sequence; None means no limit

    @property
    def device(self) -> torch.device:
        """Where logits are returned."""

    def new(self, capacity: int) -> "LanguageModel":
        """Another reader of this model with nothing read, for sequences of up to `capacity` tokens with their trees."""

    def forward(self, tokens: Lists, parents: Lists, scored: Scored = "all") -> Any:
        """Append new tokens to each row's pending ones, and return their next-token logits.

        `parents[row][i]` is the index among the row's pending tokens, in the order in which they were read, of the one
        right before new token i; -1 means that it follows the kept tokens. Rows may bring different numbers of tokens;
        logits are (rows, most new tokens, columns), and those beyond a row's own tokens mean nothing. With "last" they
        are (rows, 1, columns), with "none" (rows, 0, columns). A target returns a tensor, a drafter an `Answer`. The
        first call settles the number of rows, and may bring no tokens. Positions beyond the context count as the last.
        """

    def commit(self, chosen: Lists) -> None:
        """Append each row's pending tokens `chosen[row]`, a path from its kept tokens on, and drop all others."""

    def gather(self, rows: list[int]) -> None:
        """Keep these rows of the batch only, in this order; only rows whose index changes move in memory."""

    def extend(self, other: Any) -> None:
        """Put the rows of `other`, a reader of the same model, below this one's; nothing is pending in either."""

    def fork(self, row: int, length: int, capacity: int) -> "LanguageModel":
        """A reader with one row, the first `length` kept tokens of this row, which stays as it is."""


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
    """Indices into the target's `hidden_states` (0 = embeddings) that the drafter needs; usually empty.

    The last state comes after the last norm, as in Hugging Face's `hidden_states`. A drafter that needs some has a
    method `observe(states)`. It is called with the states (new, layers, width) of each row's next kept tokens, each
    once and in their order. The drafter may read a token after it has observed the states of all tokens before. The
    fork of a row observes from its last token on.
    """
    return getattr(draft, "hidden_layers", ())


def pass_hidden_states(target: Any, draft: Any) -> None:
    """Hand the hidden states of the tokens that the target has just committed to the draft model, if it needs any."""
    if hidden_layers_of(draft):
        draft.observe(target.hidden_states)


def answers(model: Any, answer: Any, shape: tuple[int, int] | None = None) -> list[tuple[Tensor, Tensor | None]]:
    """The logits of each drafter with the tokens of its columns, None where column c is token c.

    Raises AdviceError on what is no answer, or none for a `shape` of so many rows and new tokens.
    """
    if isinstance(answer, tuple) and not isinstance(answer, Scores):
        drafters = getattr(model, "drafters", ())
        if len(answer) != len(drafters):
            raise AdviceError(f"{described_model(model)} returns {len(answer)} answers of {len(drafters)} drafters")
        return [part for pair in zip(drafters, answer, strict=True) for part in answers(*pair, shape)]
    logits, ids = answer if isinstance(answer, Scores) else (answer, getattr(model, "ids", None))
    check_logits(model, logits, shape or (None, None))
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
    for drafter in getattr(model, "drafters", ()):
        check_ids(drafter, vocabulary)
    ids = getattr(model, "ids", None)
    if ids is not None and not are_tokens(ids, vocabulary):
        use = f"an int64 tensor of distinct tokens, each from 0 to {vocabulary - 1}"
        raise AdviceError(f"the ids of {described_model(model)} are {described(ids)}; give {use}")


def are_tokens(ids: Any, vocabulary: int) -> bool:
    """Whether they are some distinct tokens of a vocabulary."""
    if not (isinstance(ids, Tensor) and ids.ndim == 1 and ids.dtype == torch.int64 and len(ids)):
        return False
    return 0 <= int(ids.min()) <= int(ids.max()) < vocabulary and len(ids.unique()) == len(ids)


def by_drafter(model: Any, answer: Answer) -> list[Scores]:
    """The same, with the token of every column."""
    return [
        Scores(logits, (torch.arange(logits.shape[-1], device=logits.device) if ids is None else ids).expand_as(logits))
        for logits, ids in answers(model, answer)
    ]


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


def closed_up(staying: Sequence[int]) -> list[int]:
    """An order of the rows that stay in which the fewest change their index: the last ones fill the gaps.

    >>> closed_up([0, 1, 3, 4])
    [0, 1, 4, 3]
    """
    count, stays = len(staying), set(staying)
    last = sorted((row for row in staying if row >= count), reverse=True)
    return [row if row in stays else last.pop(0) for row in range(count)]


def count_scored(scored: Scored, new: int) -> int:
    """How many of a row's new tokens are scored, the last ones."""
    return {"all": new, "last": min(new, 1), "none": 0}[scored]


def check_rows(brought: int, held: int) -> None:
    """Raise unless there are tokens, or choices, for each row that a reader holds."""
    if brought != held:
        raise AdviceError(
            f"{brought} rows for a reader of {held}; rows leave by gather(rows) and come by extend(other)"
        )


def check_parents(parents: Sequence[int], pending: int) -> None:
    """Raise unless each new token follows the kept ones, or a token that was read before it."""
    for index, parent in enumerate(parents, pending):
        if not -1 <= parent < index:
            raise AdviceError(f"pending token {index} has parent {parent}; use -1, or a token that is read before it")


def check_paths(chosen: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> None:
    """Raise unless each row's choice is a path that follows its kept tokens, among pending ones with these parents."""
    check_rows(len(chosen), len(parents))
    for path, above in zip(chosen, parents, strict=True):
        for before, index in zip((-1, *path), path, strict=False):
            if not 0 <= index < len(above) or above[index] != before:
                raise AdviceError(
                    f"the pending tokens {list(path)} are no path of the tree with parents {list(above)}; "
                    "commit tokens of which each follows the one before it"
                )


def check_nothing_pending(*pending: int) -> None:
    """Raise where rows would be added in the middle of a step."""
    if any(pending):
        raise AdviceError("tokens are pending; commit some, or none, before rows are added")


def check_same(model: object, other: object) -> None:
    """Raise unless the rows of two readers may share a batch."""
    if model is not other:
        raise AdviceError("rows of two different models cannot share a batch; start both with the same model")


def check_part(row: int, length: int, held: int) -> None:
    """Raise unless a row has kept so many tokens."""
    if not 0 < length <= held:
        raise AdviceError(f"cannot take {length} tokens of row {row}; take some that it has kept")
