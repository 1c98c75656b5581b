"""A reader: a language model that reads trees of tokens, for a batch of rows, and commits one path of each.

A row holds *kept* tokens (the sequence so far; rows may differ in length) and *pending* ones: those read since the
last `commit`, which form a tree below the kept tokens. `Reader` holds these and makes all checks; an engine writes the
hooks.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Literal, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import GenerationConfig

from multidraft.errors import AdviceError
from multidraft.models.corpus import Corpus
from multidraft.models.scores import Scores, check_scores, part_of_law

Lists = list[list[int]]  # tokens, or places of tokens, row by row
Scored = Literal["all", "last", "none"]  # which of the new tokens are scored: all, each row's last one, or none
Cost = Literal["pass", "lookup", "mixed"]  # which scores need a pass of a model: all, none, some
HiddenStates = list[Float[Tensor, "_ layers width"]]  # of each row's tokens
Answer = Tensor | Scores | list[Scores]  # what a hook may return: logits, scores, or those of several drafters
NO_HIDDEN_STATES = (
    "a draft head reads hidden states, which a target {} does not give; use a Hugging Face model with attention or "
    "gated delta nets, or a GGUF file"
)
MAX_CHUNK_TOKENS = 512  # of a text in one forward pass: bounds the memory of the attention mask
ROOT = -1  # the parent of tokens that follow the kept ones


@dataclass
class Row:
    """The kept tokens of a sequence, its tree of pending ones, and what the engine holds of it (`memory`)."""

    memory: Any = None
    kept: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    depths: list[int] = field(default_factory=list)  # of pending tokens; those that follow the kept ones have 1

    def append(self, tokens: list[int], parents: list[int]) -> None:
        """Add pending tokens."""
        for parent in parents:
            self.depths.append(self.depths[parent] + 1 if parent >= 0 else 1)
        self.parents += parents
        self.tokens += tokens

    def path(self, node: int) -> list[int]:
        """The pending tokens that lead to one, with itself."""
        path = list[int]()
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def commit(self, path: Sequence[int]) -> None:
        """Keep the tokens of a path, and drop all others."""
        self.kept += [self.tokens[node] for node in path]
        self.tokens, self.parents, self.depths = [], [], []

    def with_memory(self, memory: Any) -> "Row":
        """A copy that shares nothing with this row."""
        return Row(memory, self.kept[:], self.tokens[:], self.parents[:], self.depths[:])


class Reader(ABC):
    """A language model that reads a tree of tokens at once, and then commits one path of it.

    Column c of its logits is token c of the target, or token `ids[c]` where a draft model has `ids`: other tokens have
    probability 0. The tokens that it reads are always the target's.

    An engine writes `new` and the hooks `_read`, `_commit`, `_gather`, `_extend` and `_fork`. Those of an engine whose
    state is in the rows' `memory` may be left out, all but `_read`.
    """

    vocabulary: int  # the number of tokens that ids go up to, the target's where it drafts for one
    context: int | None = None  # the largest number of tokens in a sequence; None means no limit
    sequences: int | None = None  # paths of all rows together that it can tell apart; None means no limit
    device: torch.device = torch.device("cpu")  # where logits are returned
    ids: Int[Tensor, " columns"] | None = None  # the target's token of each column; None where column c is token c
    undrafted_columns: Int[Tensor, " tokens"] | None = None  # never drafted: the target has other tokens there
    cost: Cost = "pass"
    drafters: "Sequence[Reader]" = ()  # that a drafter is made of
    generation_config: GenerationConfig | None = (
        None  # where a text ends, and how tokens are drawn unless somebody says otherwise
    )
    looks_across: bool = False  # what it says of a token depends on what is read beside it (pass_check)
    recorded_sizes: int = 0  # sizes of passes that it has recorded so far: the first of a size takes far longer
    hidden_layers: tuple[int, ...] = ()  # of the target, whose states a drafter needs; 0 stands for the embeddings

    rows: list[Row] = []  # noqa: RUF012  # none before the first `forward`; replaced, never changed in place
    source: object = None  # what logits come from: rows of readers with one source may share a batch

    @abstractmethod
    def new(self, capacity: int) -> "Reader":
        """A reader of the model that has read nothing, for sequences of up to `capacity` tokens with their trees."""

    def with_hidden_states(self, layers: Sequence[int]) -> "Reader":
        """The same model as a target whose commits return these hidden states; few engines can."""
        raise AdviceError(NO_HIDDEN_STATES.format(f"of {type(self).__name__}"))

    @property
    def fingerprint(self) -> dict[str, Any]:
        """What a plan for it depends on, beside its class and device."""
        return {"digest": digest(str([self.vocabulary, None]))}

    def prepare(self, rows: int, new: tuple[int, int], lengths: tuple[int, int]) -> None:
        """Compile and record the steps of up to so many rows: between two numbers of tokens, and two of slots."""
        return

    def observe(self, states: HiddenStates) -> None:
        """Take the target's states of `hidden_layers` for each row's next kept tokens, each once and in their order.

        A drafter may read a token after it has observed the states of all tokens before. The fork of a row observes
        from its last token on, or behind it if `observed_state` told that one.
        """
        raise AdviceError(f"a {type(self).__name__} observes no hidden states; do not give it any")

    def observed_state(self, row: int, token: int) -> Float[Tensor, "1 layers width"] | None:
        """The target's state at a kept token of a row, if it is still held as it was observed."""
        return None

    def keep(self, row: int, tokens: list[int]) -> None:
        """Append tokens to the kept ones of one row; a drafter that looks up reads them where it is asked."""
        pieces = [tokens if other == row else [] for other in range(len(self.rows))]
        self.forward(pieces, [chain_parents(len(piece)) for piece in pieces], "none")
        self.commit([[*range(len(piece))] for piece in pieces])

    def add_corpora(self, corpora: Sequence[Corpus | None]) -> None:  # noqa: B027
        """Let new rows that look up drafts copy from a corpus each too, but not their forks: the owner may differ."""

    def reserve(self, rows: int, capacity: int) -> None:  # noqa: B027
        """Make room for so many rows, which come by `extend`, and slots: at once is faster than one by one."""

    def set_aside(self) -> None:  # noqa: B027
        """Hold the rows where passes over others' take no longer for them; they are only forked from now on."""

    def certainty(self, row: int, unread: list[int]) -> float | None:
        """How likely the first draft is right behind the kept tokens of a row and these, which it will read later.

        None where only reading them would tell.
        """
        return None

    def guess(self, row: int, path: list[int]) -> tuple[int, float] | None:
        """The one token that may follow a path behind those that `certainty` was asked for last, and how likely it is.

        None of a drafter that may draft several there, or has to read them.
        """
        return None

    def encode(self, tokens: list[int]) -> list[int]:
        """The target's tokens as this model reads them."""
        return tokens

    @final
    def begin(self, rows: int) -> None:
        """Start with so many empty rows, if there are none."""
        if not self.rows:
            self.rows = [Row(memory) for memory in self._begin(rows)]
        check_rows(rows, len(self.rows))

    @final
    def forward(self, tokens: Lists, parents: Lists, scored: Scored = "all", lookup_only: bool = False) -> Scores:
        """Append new tokens to each row's pending ones, and return what may follow them.

        `parents[row][i]` is the index among the row's pending tokens, in the order in which they were read, of the one
        right before new token i; -1 means that it follows the kept tokens. Rows may bring different numbers of tokens;
        logits are (rows, most new tokens, columns), and those beyond a row's tokens mean nothing. With "last" they are
        (rows, 1, columns), with "none" (rows, 0, columns). With `lookup_only` a drafter that looks up what it can asks
        no model for the rest. The first call settles the number of rows, and may bring no tokens. Positions beyond the
        context count as the last. Raises AdviceError where an engine returns no scores, or those of several drafters.
        """
        scores, *others = self.forward_each(tokens, parents, scored, lookup_only)
        if others and scored != "none":
            raise part_of_law(self)
        return scores

    @final
    def forward_each(
        self, tokens: Lists, parents: Lists, scored: Scored = "all", lookup_only: bool = False
    ) -> list[Scores]:
        """The same of each of several drafters that stand side by side; one of every other reader."""
        self.begin(len(tokens))
        for row, above in zip(self.rows, parents, strict=True):
            check_parents(above, len(row.parents))
        return self._append([self.encode(new) for new in tokens], parents, scored, lookup_only)

    @final
    def _append(self, tokens: Lists, parents: Lists, scored: Scored, lookup_only: bool = False) -> list[Scores]:
        for row, new, above in zip(self.rows, tokens, parents, strict=True):
            row.append(new, above)
        answer = (self._look_up if lookup_only else self._read)(tokens, parents, scored)
        if isinstance(answer, list) and answer and all(isinstance(scores, Scores) for scores in answer):
            return answer
        logits, ids, _ = answer if isinstance(answer, Scores) else Scores(cast(Tensor, answer))
        scores = Scores(logits, self.ids if ids is None else ids)
        if scored != "none":
            check_scores(scores, (len(tokens), max(count_scored(scored, len(new)) for new in tokens)), self)
        return [scores if scores.is_partial else scores._replace(undrafted_columns=self.undrafted_columns)]

    @final
    def commit(self, paths: Lists) -> HiddenStates | None:
        """Append each row's pending tokens `paths[row]`, a path from its kept tokens on, and drop all others.

        Paths of no tokens drop what a failed `forward` has left. Returns the hidden states of the tokens that were
        appended, where they were asked for (`with_hidden_states`).
        """
        check_paths(paths, [row.parents for row in self.rows])
        states = self._commit(paths)
        for row, path in zip(self.rows, paths, strict=True):
            row.commit(path)
        return states

    @final
    def gather(self, rows: list[int]) -> None:
        """Keep these rows of the batch only, in this order; only rows whose index changes move in memory."""
        gathered, seen = list[Row](), set[int]()
        for index in rows:
            row = self.rows[index]
            gathered.append(row.with_memory(self._copy(row)) if index in seen else row)
            seen.add(index)
        self._gather(rows)
        self.rows = gathered

    @final
    def extend(self, other: "Reader") -> None:
        """Move the rows of another reader of the same model below this one's; nothing may be pending in either."""
        if type(self) is not type(other) or self.source is not other.source:
            raise AdviceError("rows of two different models cannot share a batch; start both with the same model")
        if any(row.parents for row in (*self.rows, *other.rows)):
            raise AdviceError("tokens are pending; commit some, or none, before rows are added")
        self._extend(other)
        self.rows, other.rows = self.rows + other.rows, []

    @final
    def fork(self, row: int, length: int, capacity: int) -> "Reader":
        """A reader with one row, the first `length` kept tokens of this row, which stays as it is."""
        kept = self.rows[row].kept
        if not 0 < length <= len(kept):
            raise AdviceError(f"cannot take {length} tokens of row {row}; take some that it has kept")
        fork = self.new(capacity)
        self.copy_to(fork, row, length)
        if (state := self.observed_state(row, length - 1)) is not None:
            fork.observe([state])
        return fork

    @final
    def copy_to(self, fork: "Reader", row: int, length: int) -> None:
        """Give a new reader one row, with the first kept tokens of this row."""
        fork.rows = [Row(kept=self.rows[row].kept[:length])]
        self._fork(fork, row, length)

    @final
    def read_again(self) -> None:
        """Read the kept tokens of all rows once more, into a reader that has read nothing."""
        texts = [row.kept for row in self.rows]
        self.rows = []
        self.begin(len(texts))
        self._append(texts, [chain_parents(len(text)) for text in texts], "none")
        self.commit([list(range(len(text))) for text in texts])

    # Hooks. The empty ones suit an engine that holds nothing but the rows' `memory`.

    def _begin(self, rows: int) -> Sequence[Any]:
        """Start with so many rows; what the engine holds of each."""
        return [None] * rows

    @abstractmethod
    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Answer:
        """Read new tokens, which are the last pending ones of `self.rows` already; their logits as in `forward`."""

    def _look_up(self, tokens: Lists, parents: Lists, scored: Scored) -> Answer:
        """The same without asking a model, by a drafter that looks up what it can."""
        return self._read(tokens, parents, scored)

    def _commit(self, paths: Lists) -> HiddenStates | None:
        """Append paths to what is held of the rows, and drop all else; the rows still have their pending tokens.

        Paths of no tokens must work after a pass that failed at any place. Hidden states as in `commit`.
        """
        return None

    def _gather(self, rows: list[int]) -> None:  # noqa: B027
        """Hold these rows only, in this order."""

    def _copy(self, row: Row) -> Any:
        """A copy of what is held of a row, which goes on as two."""
        return deepcopy(row.memory)

    def _extend(self, other: Any) -> None:  # noqa: B027
        """Hold the rows of another reader too, below those of this one."""

    def _fork(self, fork: Any, row: int, length: int) -> None:  # noqa: B027
        """Let a new reader, whose only row has its kept tokens already, hold the beginning of a row."""


def digest(text: str) -> str:
    """The first 16 characters of a text's SHA-256."""
    return sha256(text.encode()).hexdigest()[:16]


def recorded_sizes(reader: Reader | None) -> int:
    """How many sizes of passes a reader, and all its drafters, have recorded so far."""
    return 0 if reader is None else reader.recorded_sizes + sum(map(recorded_sizes, reader.drafters))


def chain_parents(count: int) -> list[int]:
    """The parents of tokens that follow the kept ones, and each other.

    >>> chain_parents(3)
    [-1, 0, 1]
    """
    return list(range(ROOT, count - 1))


def count_scored(scored: Scored, new: int) -> int:
    """How many of a row's new tokens are scored, the last ones."""
    return {"all": new, "last": min(new, 1), "none": 0}[scored]


def check_rows(brought: int, held: int) -> None:
    """Raise unless there are tokens, or paths, for each row that a reader holds."""
    if brought != held:
        raise AdviceError(
            f"{brought} rows for a reader of {held}; rows leave by gather(rows) and come by extend(other)"
        )


def check_parents(parents: Sequence[int], pending: int) -> None:
    """Raise unless each new token follows the kept ones, or a token that was read before it."""
    for index, parent in enumerate(parents, pending):
        if not -1 <= parent < index:
            raise AdviceError(f"pending token {index} has parent {parent}; use -1, or a token that is read before it")


def check_paths(paths: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> None:
    """Raise unless each row's path follows its kept tokens, among pending ones with these parents."""
    check_rows(len(paths), len(parents))
    for path, above in zip(paths, parents, strict=True):
        for before, index in zip((-1, *path), path, strict=False):
            if not 0 <= index < len(above) or above[index] != before:
                raise AdviceError(
                    f"the pending tokens {list(path)} are no path of the tree with parents {list(above)}; "
                    "commit tokens of which each follows the one before it"
                )
