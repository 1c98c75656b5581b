"""Drafters without weights: what followed the last few tokens earlier in the same text, or in a corpus.

They score few tokens, so that a vocabulary of any size costs nothing.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from heapq import nlargest
from math import log
from typing import Any

import numpy as np
import torch
from torch import Tensor

from multidraft.errors import AdviceError, is_integer, quote
from multidraft.models.corpus import Corpus
from multidraft.models.lookups import GUESS_WEIGHT, Matches
from multidraft.models.prefix_models import PrefixModel, TokenPrefix
from multidraft.models.reader import Lists, digest
from multidraft.models.scores import Scores
from multidraft.verification.distributions import describe

MAX_FOLLOWERS = 64  # tokens that a run brings into a law, the most frequent ones
MAX_UNREAD = 128  # kept tokens that are not read before somebody asks: a millisecond or two
MAX_RUN = 1000  # tokens of a run that is looked up, unless somebody says otherwise
TokenLaw = dict[int, float]  # probabilities by token; the rest of the probability is not known


class History:
    """What followed each run of up to `longest` tokens, kept up as the text grows."""

    def __init__(self, longest: int):
        self.longest, self.num_read = longest, 0
        self.followers: dict[TokenPrefix, dict[int, int]] = {}  # how often by token, the latest one last
        self.counted: dict[TokenPrefix, tuple[int, int, dict[int, int]]] = {}

    def read(self, text: Sequence[int], start: int = 0) -> None:
        """Go on to the end of a text, given from `start` on, of which the beginning has been read."""
        for place in range(self.num_read - start, len(text)):
            self.note(tuple(text[max(place - self.longest, 0) : place]), text[place])
            self.num_read = start + place + 1

    @property
    def looks_back(self) -> int:
        """How many tokens before a new one have to be given again."""
        return self.longest

    def note(self, before: TokenPrefix, token: int) -> None:
        """Read a token behind the last ones before it."""
        for run in runs(before, self.longest):
            followers = self.followers.setdefault(run, {})
            followers[token] = followers.pop(token, 0) + 1
            self.counted.pop(run, None)

    def counts(self, run: TokenPrefix) -> tuple[int, int, dict[int, int]]:
        """How often anything followed a run, how many different tokens did, and how often the most frequent ones."""
        if run not in self.counted:
            followers = self.followers[run]
            frequent = nlargest(MAX_FOLLOWERS, followers.items(), key=lambda pair: (pair[1], -pair[0]))
            self.counted[run] = sum(followers.values()), len(followers), dict(frequent)
        return self.counted[run]


def runs(prefix: TokenPrefix, longest: int) -> Iterator[TokenPrefix]:
    """The last tokens of a prefix, the longest run first, the empty one last."""
    for start in range(max(len(prefix) - longest, 0), len(prefix) + 1):
        yield prefix[start:]


class CountingReader(PrefixModel):
    """A drafter that looks at what followed every run of up to `longest` tokens in each row's kept tokens."""

    cost = "lookup"
    looks_back: int

    def __init__(self, vocabulary: int, longest: int):
        super().__init__(vocabulary)
        self.longest = longest

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"digest": digest(str([self.vocabulary, self.longest]))}

    def read(self, row: int, unread: list[int] | None = None) -> Any:
        """The history of a row's kept tokens, and of the target's tokens that it will keep next."""
        state, unread = self.rows[row], unread or []
        if state.memory is None:
            state.memory = self.new_history()
        history, kept = state.memory, len(state.kept)
        if history.num_read < kept + len(unread):
            start = max(history.num_read - history.looks_back, 0)
            history.read([*state.kept[start:], *self.encode(unread[max(start - kept, 0) :])], start)
        return history

    def keep(self, row: int, tokens: list[int]) -> None:
        self.rows[row].kept += self.encode(tokens)

    def certainty(self, row: int, unread: list[int]) -> float | None:
        self.read(row, unread)
        return max(self.next_token(row, (*self.last_kept(self.rows[row]), *self.encode(unread))).values())

    def _commit(self, paths: Lists) -> None:
        for row, state in enumerate(self.rows):  # a long text not at once; a short one perhaps never, in a batch
            if len(state.kept) - (state.memory.num_read if state.memory else 0) > MAX_UNREAD:
                self.read(row)

    @abstractmethod
    def new_history(self) -> History | Matches:
        """A history that has read nothing."""

    @abstractmethod
    def next_token(self, row: int, prefix: TokenPrefix) -> TokenLaw:  # type: ignore[override]  # `scores` makes logits of it
        """What is known of the token after a prefix."""

    def scores(self, prefixes: list[list[TokenPrefix]], width: int) -> Scores:
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
            raise AdviceError(f"an n-gram model of order {quote(order)} predicts nothing; use at least 1")
        check_corpus(corpus, vocabulary)
        super().__init__(vocabulary, order - 1)
        self.looks_back = order - 1
        self.corpus = History(self.longest)
        self.corpus.read(corpus)

    def new(self, capacity: int) -> "NGram":
        model = NGram(self.vocabulary, self.longest + 1)
        model.corpus = self.corpus
        return model

    def new_history(self) -> History:
        return History(self.longest)

    def next_token(self, row: int, prefix: TokenPrefix) -> TokenLaw:  # type: ignore[override]
        law, remaining, histories = TokenLaw(), 1.0, (self.read(row), self.corpus)
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
        raise AdviceError(f"the corpus is {describe(corpus)}; give a list of token ids")
    for place, token in enumerate(corpus):
        if not (type(token) is int or is_integer(token)) or not 0 <= token < vocabulary:
            last = vocabulary - 1
            raise AdviceError(
                f"the corpus has {quote(token)} at {place}; give token ids of the vocabulary, 0 to {last}"
            )


class Lookup(CountingReader):
    """Look-up: the token that followed the latest occurrence of the longest run that has occurred before.

    Deterministic: all probability is on one token. Its score is the logarithm of how likely it is right, estimated from
    how often such matches were right in the text so far; `LookupThenModel` mixes by it. Runs have at most `longest`
    tokens; where nothing matches, it is the latest token of the text. (Prompt Lookup Decoding, Saxena, 2023, takes runs
    of up to three.) What follows a longer run in a `corpus`, tokens or an index over texts, is a second guess. A token
    takes 5 to 9 us, with a corpus over twice that. Raises AdviceError for `longest` below 1.

    >>> model = Lookup(vocabulary=4)
    >>> _ = model.forward([[3, 1, 0, 3]], [[-1, 0, 1, 2]], "none")
    >>> model.commit([[0, 1, 2, 3]])
    >>> model.forward([[1]], [[-1]]).ids
    tensor([[[0]]])
    """

    looks_back = 0  # kept tokens are in the automaton

    def __init__(self, vocabulary: int, longest: int = MAX_RUN, corpus: Sequence[int] | Corpus = ()):
        if not is_integer(longest) or longest < 1:
            raise AdviceError(f"look-up of runs of {quote(longest)} tokens finds nothing; use at least 1")
        super().__init__(vocabulary, longest)
        if not isinstance(corpus, Corpus):
            check_corpus(corpus, vocabulary)
            corpus = Corpus([corpus])
        self.corpus = corpus

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"digest": digest(str([self.vocabulary, 3]))}  # as when the first plans were written, of runs of three

    def new(self, capacity: int) -> "Lookup":
        return Lookup(self.vocabulary, self.longest, self.corpus)

    def new_history(self, *corpora: Corpus | None) -> Matches:
        return Matches(self.longest, [corpus for corpus in (self.corpus, *corpora) if corpus])

    def add_corpora(self, corpora: Sequence[Corpus | None]) -> None:
        for row, corpus in zip(self.rows, corpora, strict=True):
            row.memory = self.new_history(corpus)

    def certainty(self, row: int, unread: list[int]) -> float | None:
        guess = self.read(row, unread).next_token(())
        return guess[1] if guess else GUESS_WEIGHT

    def guess(self, row: int, path: list[int]) -> tuple[int, float] | None:
        return self.read(row).next_token(path)

    def next_token(self, row: int, prefix: TokenPrefix) -> TokenLaw:  # type: ignore[override]
        matches = self.read(row)
        guess = matches.next_token(prefix[matches.num_read - len(self.rows[row].kept) :])
        token, certainty = guess or (prefix[-1], GUESS_WEIGHT)
        return {token: certainty}
