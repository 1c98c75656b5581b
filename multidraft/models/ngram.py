"""Drafters without weights: what followed the last few tokens earlier in the same text, or in a corpus."""

import copy
from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from multidraft.errors import AdviceError
from multidraft.models.prefix import Prefix, PrefixModel

Counts = tuple[np.ndarray, np.ndarray]  # distinct tokens, and how often each


class History:
    """What followed each run of up to `longest` tokens, kept up as the text grows."""

    def __init__(self, longest: int):
        self.longest = longest
        self.followers: dict[Prefix, list[int]] = {}  # in the order of the text
        self.counted: dict[Prefix, Counts] = {}

    def read(self, tokens: Prefix, start: int) -> None:
        """Go on with a text of which the first `start` tokens have been read."""
        for place in range(start, len(tokens)):
            for length in range(min(self.longest, place) + 1):
                run = tokens[place - length : place]
                self.followers.setdefault(run, []).append(tokens[place])
                self.counted.pop(run, None)

    def counts(self, run: Prefix) -> Counts:
        """The tokens that followed a run, with counts."""
        if run not in self.counted:
            self.counted[run] = np.unique(self.followers[run], return_counts=True)
        return self.counted[run]


class Reader(PrefixModel):
    """A drafter that remembers what followed every run of up to `longest` tokens in each row's kept tokens."""

    def __init__(self, vocabulary: int, longest: int):
        super().__init__(vocabulary)
        self.longest = longest
        self.histories: list[History] = []

    @abstractmethod
    def fresh(self, capacity: int) -> "Reader": ...

    def begin(self, batch: int) -> None:
        super().begin(batch)
        self.histories = [History(self.longest) for _ in range(batch)]

    def keep(self, chosen: Int[Tensor, "batch kept"]) -> None:
        before = [len(kept) for kept in self.kept]
        super().keep(chosen)
        for history, kept, start in zip(self.histories, self.kept, before, strict=True):
            history.read(kept, start)

    def select(self, rows: Int[Tensor, " rows"]) -> None:
        super().select(rows)
        if not self.histories:
            return
        order = rows.tolist()  # a row that is asked for twice goes on as two
        self.histories = [
            copy.deepcopy(self.histories[row]) if row in order[:i] else self.histories[row]
            for i, row in enumerate(order)
        ]

    def join(self, other: PrefixModel) -> None:
        super().join(other)
        assert isinstance(other, Reader)
        self.histories = self.histories + other.histories

    def part(self, row: int, length: int, capacity: int) -> PrefixModel:
        part = super().part(row, length, capacity)
        assert isinstance(part, Reader)
        part.histories[0].read(part.kept[0], 0)
        return part

    def runs(self, prefix: Prefix) -> Iterator[Prefix]:
        """The last tokens of a prefix, the longest run first, the empty one last."""
        for start in range(max(len(prefix) - self.longest, 0), len(prefix) + 1):
            yield prefix[start:]


class NGram(Reader):
    """An n-gram model of each row's own text so far, and of a corpus of tokens if there is one.

    With c(s) the number of times that the run s was followed by anything, c(s, x) by x, and d(s) by how many different
    tokens, longer and longer runs refine the estimate, up to n - 1 tokens, from a uniform one:

        P(x | s) = (c(s, x) + d(s) P(x | s without its first token)) / (c(s) + d(s))

    (Witten and Bell, 1991). Every token has some probability. At equal length the row's own text refines the corpus.
    Raises AdviceError for an order below 1.

    >>> model = NGram(vocabulary=4, order=2)
    >>> text = torch.tensor([[3, 1, 3, 1, 3]])
    >>> causal = torch.ones(1, 5, 5, dtype=torch.bool).tril()
    >>> _ = model.forward(text[:, :4], torch.arange(4)[None], causal[:, :4, :4], logits=False)
    >>> model.keep(torch.tensor([[0, 1, 2, 3]]))
    >>> model.forward(text[:, 4:], torch.tensor([[4]]), causal[:, :1, :1]).exp()
    tensor([[[0.0278, 0.8056, 0.0278, 0.1389]]])
    """

    def __init__(self, vocabulary: int, order: int = 3, corpus: Sequence[int] = ()):
        if order < 1:
            raise AdviceError(f"an n-gram model of order {order} predicts nothing; use at least 1")
        super().__init__(vocabulary, order - 1)
        self.corpus = History(self.longest)
        self.corpus.read(tuple(corpus), 0)

    def fresh(self, capacity: int) -> "NGram":
        model = NGram(self.vocabulary, self.longest + 1)
        model.corpus = self.corpus
        return model

    def next_token(self, row: int, prefix: Prefix) -> Float[Tensor, " vocabulary"]:
        probability, left = np.zeros(self.vocabulary), 1.0
        for run in self.runs(prefix):
            for history in (self.histories[row], self.corpus):
                if run in history.followers:
                    tokens, counts = history.counts(run)
                    trusted = counts.sum() / (counts.sum() + len(counts))
                    probability[tokens] += left * trusted * counts / counts.sum()
                    left *= 1 - trusted
        return torch.from_numpy(probability + left / self.vocabulary)


class Lookup(Reader):
    """Prompt look-up: the token that followed the latest occurrence of the longest run that has occurred before.

    Deterministic: all probability is on one token. Runs have at most `longest` tokens; where nothing matches, it is the
    latest token of the text (Saxena, Prompt Lookup Decoding, 2023). Raises AdviceError for `longest` below 1.
    """

    def __init__(self, vocabulary: int, longest: int = 3):
        if longest < 1:
            raise AdviceError(f"look-up of runs of {longest} tokens finds nothing; use at least 1")
        super().__init__(vocabulary, longest)

    def fresh(self, capacity: int) -> "Lookup":
        return Lookup(self.vocabulary, self.longest)

    def next_token(self, row: int, prefix: Prefix) -> Float[Tensor, " vocabulary"]:
        followers = self.histories[row].followers
        matches = (followers[run] for run in self.runs(prefix) if run in followers)
        probability = torch.zeros(self.vocabulary)
        probability[next(matches, prefix)[-1]] = 1
        return probability
