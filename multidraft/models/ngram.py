"""Drafters without weights: what followed the last few tokens earlier in the same text, or in a corpus.

They score few tokens, so that a vocabulary of any size costs nothing.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from heapq import nlargest
from math import log
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from multidraft.errors import AdviceError, is_integer, shown
from multidraft.models.reader import Lists, digest
from multidraft.models.scores import Scores
from multidraft.models.table import Prefix, PrefixModel
from multidraft.verification.distributions import described

MAX_FOLLOWERS = 64  # tokens that a run brings into a law, the most frequent ones
GUESS_WEIGHT = 0.01  # of a guess without any match
Law = dict[int, float]  # probabilities by token; the rest of the probability is not known


class History:
    """What followed each run of up to `longest` tokens, kept up as the text grows."""

    def __init__(self, longest: int):
        self.longest, self.length = longest, 0
        self.followers: dict[Prefix, dict[int, int]] = {}  # how often by token, the latest one last
        self.counted: dict[Prefix, tuple[int, int, dict[int, int]]] = {}

    def read(self, text: Sequence[int]) -> None:
        """Go on to the end of a text of which the beginning has been read."""
        for place in range(self.length, len(text)):
            self.note(tuple(text[max(place - self.longest, 0) : place]), text[place])
            self.length = place + 1

    def note(self, before: Prefix, token: int) -> None:
        """Read a token behind the last ones before it."""
        for run in runs(before, self.longest):
            followers = self.followers.setdefault(run, {})
            followers[token] = followers.pop(token, 0) + 1
            self.counted.pop(run, None)

    def counts(self, run: Prefix) -> tuple[int, int, dict[int, int]]:
        """How often anything followed a run, how many different tokens did, and how often the most frequent ones."""
        if run not in self.counted:
            followers = self.followers[run]
            frequent = nlargest(MAX_FOLLOWERS, followers.items(), key=lambda pair: (pair[1], -pair[0]))
            self.counted[run] = sum(followers.values()), len(followers), dict(frequent)
        return self.counted[run]

    def latest(self, prefix: Prefix) -> tuple[int, int]:
        """The token that followed the latest occurrence of the longest run that ends a prefix, and the run's length."""
        run = next((run for run in runs(prefix, self.longest) if run in self.followers), None)
        return (prefix[-1], 0) if run is None else (next(reversed(self.followers[run])), len(run))


class Matches(History):
    """A history that notes how often its latest follower was right, by the length of the run that matched."""

    def __init__(self, longest: int):
        super().__init__(longest)
        self.tallies: dict[tuple[int, bool], tuple[int, int]] = {}  # hits and trials
        self.was_right = False  # the guess of the last token that was read

    def note(self, before: Prefix, token: int) -> None:
        if before:
            guess, length = self.latest(before)
            hits, trials = self.tallies.get((length, self.was_right), (0, 0))
            self.tallies[length, self.was_right] = hits + (guess == token), trials + 1
            self.was_right = guess == token
        super().note(before, token)

    def certainty(self, prefix: Prefix, length: int) -> float:
        """How likely the latest follower of a run of this length, which ends a prefix, is right by what the text shows.

        (hits + 2 m) / (trials + 2) among runs of as many tokens whose last one was, or was not, itself guessed right;
        m = length^2 / (length^2 + 4) is a guess in advance.
        """
        right = len(prefix) > 1 and self.latest(prefix[-self.longest - 1 : -1])[0] == prefix[-1]
        hits, trials = self.tallies.get((length, right), (0, 0))
        return (hits + 2 * max(length * length, GUESS_WEIGHT) / (length * length + 4)) / (trials + 2)


def runs(prefix: Prefix, longest: int) -> Iterator[Prefix]:
    """The last tokens of a prefix, the longest run first, the empty one last."""
    for start in range(max(len(prefix) - longest, 0), len(prefix) + 1):
        yield prefix[start:]


class CountingReader(PrefixModel):
    """A drafter that looks at what followed every run of up to `longest` tokens in each row's kept tokens."""

    cost = "lookup"
    looks_back: int
    history: ClassVar[type[History]] = History

    def __init__(self, vocabulary: int, longest: int):
        super().__init__(vocabulary)
        self.longest, self.looks_back = longest, longest + 2

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"digest": digest(str([self.vocabulary, self.longest]))}

    def read(self, row: int, unread: Sequence[int] = ()) -> Any:
        """The history of a row's kept tokens, and of those that it will keep next."""
        state = self.rows[row]
        if state.memory is None:
            state.memory = self.history(self.longest)
        if state.memory.length < len(state.kept) + len(unread):
            state.memory.read([*state.kept, *unread])
        return state.memory

    def certainty(self, row: int, unread: list[int]) -> float | None:
        unread = self.encode(unread)
        self.read(row, unread)
        prefix = *self.rows[row].kept[-self.looks_back :], *unread
        return max(self.next_token(row, prefix[-self.looks_back :]).values())

    def _commit(self, paths: Lists) -> None:
        for row in range(len(self.rows)):  # now, and not at once where a long text is committed piece by piece
            self.read(row)  # up to these paths, which come next time

    @abstractmethod
    def next_token(self, row: int, prefix: Prefix) -> Law:  # type: ignore[override]  # `scores` makes logits of it
        """What is known of the token after a prefix."""

    def scores(self, prefixes: list[list[Prefix]], width: int) -> Scores:
        laws = [[self.next_token(row, prefix) for prefix in row_prefixes] for row, row_prefixes in enumerate(prefixes)]
        columns = max((len(law) for row_laws in laws for law in row_laws), default=1)
        ids, logits = np.zeros((len(laws), width, columns), np.int64), np.full((len(laws), width, columns), -np.inf)
        logits[..., 0] = 0  # where a row has fewer nodes than others
        for row, row_laws in enumerate(laws):
            for node, law in enumerate(row_laws):
                ids[row, node, : len(law)] = list(law)
                logits[row, node, : len(law)] = [log(probability) for probability in law.values()]
        return Scores(torch.from_numpy(logits).to(self.dtype), torch.from_numpy(ids))


class NGram(CountingReader):
    """An n-gram model of each row's own text so far, and of a corpus of tokens if there is one.

    With c(s) the number of times that the run s was followed by anything, c(s, x) by x, and d(s) by how many different
    tokens, longer and longer runs refine the estimate, up to n - 1 tokens (Witten and Bell, 1991):

        P(x | s) = (c(s, x) + d(s) P(x | s without its first token)) / (c(s) + d(s))

    Below the empty run nothing is known: tokens never seen have no probability, and what is left is normalised. A run
    brings its 64 most frequent followers. At equal length the row's own text refines the corpus. Before anything was
    seen it guesses the latest token. Raises AdviceError for an order below 1.

    >>> model = NGram(vocabulary=4, order=2)
    >>> _ = model.forward([[3, 1, 3, 1]], [[-1, 0, 1, 2]], "none")
    >>> model.commit([[0, 1, 2, 3]])
    >>> scores = model.forward([[3]], [[-1]])
    >>> scores.ids, scores.logits.softmax(-1)
    (tensor([[[1, 3]]]), tensor([[[0.8750, 0.1250]]]))
    """

    def __init__(self, vocabulary: int, order: int = 3, corpus: Sequence[int] = ()):
        if not is_integer(order) or order < 1:
            raise AdviceError(f"an n-gram model of order {shown(order)} predicts nothing; use at least 1")
        check_corpus(corpus, vocabulary)
        super().__init__(vocabulary, order - 1)
        self.corpus = History(self.longest)
        self.corpus.read(corpus)

    def new(self, capacity: int) -> "NGram":
        model = NGram(self.vocabulary, self.longest + 1)
        model.corpus = self.corpus
        return model

    def next_token(self, row: int, prefix: Prefix) -> Law:  # type: ignore[override]
        law, remaining, histories = Law(), 1.0, (self.read(row), self.corpus)
        for run in runs(prefix, self.longest):
            for history in histories:
                if run in history.followers:
                    total, kinds, frequent = history.counts(run)
                    share = remaining / (total + kinds)
                    for token, count in frequent.items():
                        law[token] = law.get(token, 0) + share * count
                    remaining *= kinds / (total + kinds)
        return law or {prefix[-1]: GUESS_WEIGHT}


def check_corpus(corpus: Any, vocabulary: int) -> None:
    """Raise unless it is a text of tokens of the vocabulary."""
    if isinstance(corpus, Tensor | str | bytes) or not isinstance(corpus, Sequence):
        raise AdviceError(f"the corpus is {described(corpus)}; give a list of token ids")
    for place, token in enumerate(corpus):
        if not (type(token) is int or is_integer(token)) or not 0 <= token < vocabulary:
            last = vocabulary - 1
            raise AdviceError(
                f"the corpus has {shown(token)} at {place}; give token ids of the vocabulary, 0 to {last}"
            )


class Lookup(CountingReader):
    """Prompt look-up: the token that followed the latest occurrence of the longest run that has occurred before.

    Deterministic: all probability is on one token. Its score is the logarithm of how likely it is right, estimated from
    how often such matches were right in the text so far; `LookupThenModel` mixes by it. Runs have at most `longest`
    tokens; where nothing matches, it is the latest token of the text (Saxena, Prompt Lookup Decoding, 2023). Raises
    AdviceError for `longest` below 1.
    """

    history = Matches

    def __init__(self, vocabulary: int, longest: int = 3):
        if not is_integer(longest) or longest < 1:
            raise AdviceError(f"look-up of runs of {shown(longest)} tokens finds nothing; use at least 1")
        super().__init__(vocabulary, longest)

    def new(self, capacity: int) -> "Lookup":
        return Lookup(self.vocabulary, self.longest)

    def next_token(self, row: int, prefix: Prefix) -> Law:  # type: ignore[override]
        history = self.read(row)
        token, length = history.latest(prefix)
        return {token: history.certainty(prefix, length)}
