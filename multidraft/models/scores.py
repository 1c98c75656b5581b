"""What a reader says of the tokens that may come next."""

from itertools import pairwise
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.transfer import download, take, upload
from multidraft.verification.distributions import describe, has_values


class TokenScores(NamedTuple):
    """Logits with the token of every column of every node."""

    logits: Float[Tensor, "rows new columns"]
    ids: Int[Tensor, "rows new columns"]


class Scores(NamedTuple):
    """Logits of the token behind each node: the law is the softmax over the columns.

    In a node the tokens above -inf are distinct. A drafter whose nodes have columns of their own may know only a part
    of a law, and return logarithms of probabilities that sum to less than one; what it draws from is their normalised
    law all the same.
    """

    logits: Float[Tensor, "rows new columns"]  # -inf where a node has fewer columns than others
    ids: Int[Tensor, "*rows_new columns"] | None = None  # tokens, of all nodes or of each; None: column c is token c
    undrafted_columns: Int[Tensor, " some"] | None = None  # never drafted: the target has other tokens there

    @property
    def is_partial(self) -> bool:
        """Whether the logits are logarithms of probabilities that may sum to less than one."""
        return self.ids is not None and self.ids.ndim > 1

    @property
    def drafted_logits(self) -> Float[Tensor, "rows new columns"]:
        """The logits that drafts are drawn by."""
        if self.undrafted_columns is None:
            return self.logits
        columns = upload(self.undrafted_columns, self.logits.device)
        return self.logits.index_fill(-1, columns[columns < self.logits.shape[-1]], -torch.inf)

    def at(self, rows: list[int], columns: list[int]) -> tuple[Float[Tensor, "lines columns"], Tensor | None]:
        """What drafts are drawn by at these nodes, with its tokens: of all lines, or of each on the CPU."""
        logits, ids = values_at(self.drafted_logits, rows, columns), self.ids
        if ids is not None and self.is_partial:
            logits, ids = download(logits, values_at(ids, rows, columns))  # columns are few
        return logits, ids

    def by_token(self) -> TokenScores:
        """What drafts are drawn by."""
        logits = self.drafted_logits
        ids = torch.arange(logits.shape[-1]) if self.ids is None else self.ids
        return TokenScores(logits, upload(ids, logits.device).expand_as(logits))


def values_at(
    values: Shaped[Tensor, "rows new columns"], rows: list[int], columns: list[int]
) -> Shaped[Tensor, "lines columns"]:
    """The values in these columns of these rows: a view where that is all of them, in their order."""
    places = list(zip(rows, columns, strict=True))
    if len(places) == values.shape[0] * values.shape[1] and all(place < next_ for place, next_ in pairwise(places)):
        return values.flatten(0, 1)
    return take(values, rows, columns)


def check_scores(scores: Scores, shape: tuple[int, int], model: object) -> None:
    """Raise unless a model has scored so many rows and new tokens, with a token for each column."""
    logits, ids, _ = scores
    is_float = isinstance(logits, Tensor) and logits.is_floating_point() and has_values(logits)
    if not is_float or logits.ndim != 3 or logits.shape[:2] != shape or not logits.shape[2]:
        raise wrong_logits(logits, (*shape, "columns"), model)
    if ids is None:
        return
    if not (isinstance(ids, Tensor) and has_values(ids) and ids.dtype == torch.int64):
        raise AdviceError(f"{described_model(model)} has ids that are {describe(ids)}; make them an int64 tensor")
    if ids.shape not in (logits.shape, logits.shape[-1:]):
        sizes = f"{tuple(ids.shape)} for logits of shape {tuple(logits.shape)}"
        raise AdviceError(f"{described_model(model)} has ids of shape {sizes}; give a token for every column")


def check_whole(scores: Scores, vocabulary: int, model: object) -> None:
    """Raise unless a target has scored each of its tokens."""
    if scores.ids is not None:
        raise part_of_law(model)
    if scores.logits.shape[2] != vocabulary:
        raise wrong_logits(scores.logits, (*scores.logits.shape[:2], vocabulary), model)


def wrong_logits(logits: object, shape: tuple[int | str, ...], model: object) -> AdviceError:
    """The error of a model that has returned something else than logits of a shape."""
    form = ", ".join(map(str, shape))
    use = f"its forward must return logits ({form}), a float tensor"
    return AdviceError(f"{described_model(model)} returns {describe(logits)}; {use}")


def part_of_law(model: object) -> AdviceError:
    """The error of a drafter that is asked for a whole law."""
    return AdviceError(f"{described_model(model)} can only draft: it knows a part of a law; pass a whole model")


def described_model(model: object) -> str:
    """A model in an error message."""
    return f"the model {type(model).__name__}"
