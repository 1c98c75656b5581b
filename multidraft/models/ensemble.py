"""Several drafters as one: side by side, each with drafts of its own, or mixed into one distribution."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from multidraft.errors import AdviceError, is_number, quote
from multidraft.models.corpus import Corpus
from multidraft.models.ngram import Lookup
from multidraft.models.reader import MAX_CHUNK_TOKENS, HiddenStates, Lists, Reader, Row, Scored, chain_parents
from multidraft.models.scores import Scores, TokenScores
from multidraft.models.user_models import Model, as_reader
from multidraft.models.vocabularies import are_close
from multidraft.transfer import take, upload
from multidraft.verification.distributions import describe

Weigh = Callable[[Float[Tensor, "rows new drafters vocabulary"]], Float[Tensor, "rows new drafters"]]
MAX_MEMBER_TOKENS = 256  # that a member brings into a mixture, its most likely ones
MIN_CERTAINTY = 0.5  # of a match, from which on the other drafter is not asked


class DrafterGroup(Reader):
    """Drafters that read the same tree. Raises AdviceError where there are none, or they differ in vocabulary."""

    def __init__(self, drafters: Sequence[Model]):
        self.drafters = [as_reader(model) for model in drafters]
        sizes = [drafter.vocabulary for drafter in self.drafters if drafter.ids is None]
        if not self.drafters or (sizes and not are_close(min(sizes), max(sizes))):
            raise AdviceError(f"drafters of vocabularies {sizes} do not fit; pass at least one, all of one tokenizer")
        self.sequences = min((d.sequences for d in self.drafters if d.sequences is not None), default=None)
        self.hidden_layers = tuple(sorted({layer for drafter in self.drafters for layer in drafter.hidden_layers}))

    @property
    def vocabulary(self) -> int:  # type: ignore[override]  # a member's model may have been resized since
        """The largest of the members' vocabularies."""
        return max(drafter.vocabulary for drafter in self.drafters)

    @property
    def context(self) -> int | None:  # type: ignore[override]
        """The smallest of the members' contexts."""
        return min((d.context for d in self.drafters if d.context is not None), default=None)

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """Where the last member is."""
        return self.drafters[-1].device

    def _of(self, drafters: list[Reader]) -> "DrafterGroup":
        """These drafters, going on from other readers of theirs."""
        return type(self)(drafters)

    def new(self, capacity: int) -> "DrafterGroup":
        return self._of([drafter.new(capacity) for drafter in self.drafters])

    def _begin(self, rows: int) -> list[None]:
        for drafter in self.drafters:
            drafter.begin(rows)
        return [None] * rows

    def add_corpora(self, corpora: Sequence[Corpus | None]) -> None:
        for drafter in self.drafters:
            drafter.add_corpora(corpora)

    def observe(self, states: HiddenStates) -> None:
        for drafter in self.drafters:
            if drafter.hidden_layers:
                places = [self.hidden_layers.index(layer) for layer in drafter.hidden_layers]
                is_all = places == [*range(len(self.hidden_layers))]  # else each row is copied
                drafter.observe(states if is_all else [row[:, places] for row in states])

    def observed_state(self, row: int, token: int) -> Float[Tensor, "1 layers width"] | None:
        heads = [drafter for drafter in self.drafters if drafter.hidden_layers]
        return heads[0].observed_state(row, token) if len(heads) == 1 else None  # two may have observed unlike layers

    def _commit(self, paths: Lists) -> None:
        for drafter in self.drafters:
            drafter.commit(paths)

    def reserve(self, rows: int, capacity: int) -> None:
        for drafter in self.drafters:
            drafter.reserve(rows, capacity)

    def set_aside(self) -> None:
        for drafter in self.drafters:
            drafter.set_aside()

    def _gather(self, rows: list[int]) -> None:
        for drafter in self.drafters:
            drafter.gather(rows)

    def _extend(self, other: "DrafterGroup") -> None:
        for drafter, other_drafter in zip(self.drafters, other.drafters, strict=True):
            drafter.extend(other_drafter)

    def _fork(self, fork: "DrafterGroup", row: int, length: int) -> None:
        for drafter, new in zip(self.drafters, fork.drafters, strict=True):
            drafter.copy_to(new, row, length)

    def scores_of_members(self, tokens: Lists, parents: Lists, scored: Scored) -> list[Scores]:
        """The scores of all, and of all that these are made of."""
        return [scores for drafter in self.drafters for scores in drafter.forward_each(tokens, parents, scored)]


class SideBySide(DrafterGroup):
    """Drafters side by side: scores of each, and the drafting law `distinct` draws by turns."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        return super().fingerprint | {"kind": "Several"}  # its name when the first plans were written

    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> list[Scores]:
        return self.scores_of_members(tokens, parents, scored)


class Mixture(DrafterGroup):
    """One drafter whose distribution is the weighted sum of its members', for every drafting law but `distinct`.

        q = sum_i w_i q_i,   q_i = softmax of member i's logits, cut to its 256 most likely tokens

    `weights` are fixed and sum to one (equal ones if left out), or a function of the members' log-probabilities
    (rows, new, drafters, vocabulary): known before anything is drawn, so that every choice is exact. The mixing comes
    first; temperature, top-k and top-p then apply to the mixture. Raises AdviceError on weights that make none.
    """

    def __init__(
        self,
        drafters: Sequence[Model],
        weights: Sequence[float] | Weigh | None = None,
    ):
        super().__init__(drafters)
        self.weights = [1 / len(self.drafters)] * len(self.drafters) if weights is None else weights
        if not callable(self.weights):
            check_weights(self.weights, len(self.drafters))

    def _of(self, drafters: list[Reader]) -> "DrafterGroup":
        return type(self)(drafters, self.weights)

    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Scores:
        scores = [part.by_token() for part in self.scores_of_members(tokens, parents, scored)]
        dtype = reduce(torch.promote_types, [logits.dtype for logits, _ in scores], torch.float32)
        members = [TokenScores(logits.to(self.device, dtype), ids.to(self.device)) for logits, ids in scores]
        if callable(self.weights):
            laws = torch.stack([spread(member, self.vocabulary) for member in members], 2)
            weights = checked_weights(self.weights(laws), laws).unbind(-1)
        else:
            weights = upload(self.weights, members[0].logits.device, members[0].logits.dtype).unbind()
        return Scores(*add_laws([weigh_law(*pair) for pair in zip(members, weights, strict=True)]))


class LookupThenModel(DrafterGroup):
    """A mixture of look-up and another drafter, weighed by how likely the match is right.

        q = w d + (1 - w) q',   w = the certainty of the match, d = all on its token, q' = the other's law, cut as well

    The certainty is estimated from how often matches of the same length were right in the row's text so far, apart for
    texts whose latest token was guessed right: known before anything is drawn. Where it is a half at least, q = d: the
    other is not asked; nor is it anywhere in a pass that is `lookup_only`. When it is asked again it reads what it has
    missed. For each row that is a queue, which both readers' rows tell:

        this row        kept: 5 3 8 2     pending: 7 1 4
        the other's     kept: 5 3         pending: 8 2 7      it was asked for 7
        the queue       8 2 7 1 4: the unread kept tokens and the pending ones, of which the other has read three
    """

    cost = "mixed"
    context = None  # beyond the other's it goes on by look-up

    def __init__(self, drafters: Sequence[Model]):
        super().__init__(drafters)
        if len(self.drafters) != 2 or not isinstance(self.drafters[0], Lookup):
            raise AdviceError("LookupThenModel mixes two drafters; pass [Lookup(vocabulary), draft]")
        self.copied: Lookup = self.drafters[0]
        self.other = self.drafters[1]

    @property
    def fingerprint(self) -> dict[str, Any]:
        return super().fingerprint | {"kind": "Copying"}  # its name when the first plans were written

    def certainty(self, row: int, unread: list[int]) -> float | None:
        return self.copied.certainty(row, unread)

    def guess(self, row: int, path: list[int]) -> tuple[int, float] | None:
        return self.copied.guess(row, path)

    def _read(self, tokens: Lists, parents: Lists, scored: Scored) -> Scores:
        copied = self._look_up(tokens, parents, scored)
        asked = list[tuple[int, int, int]]()  # scored tokens that are not sure: row, place, and which pending one
        certainties = copied.logits.exp().sum(-1)
        for index, (row, new, sure) in enumerate(zip(self.rows, tokens, certainties, strict=True)):
            pending = len(row.tokens)
            nodes = range(pending - min(len(new), len(sure)), pending)
            readable = [self.is_readable(row, node) for node in nodes]
            asked += [(index, i, nodes[i]) for i, yes in enumerate(readable) if yes and sure[i] < MIN_CERTAINTY]
        return Scores(*self.mix_laws(copied.by_token(), asked)) if asked else copied

    def keep(self, row: int, tokens: list[int]) -> None:
        self.rows[row].kept += tokens
        self.copied.keep(row, tokens)

    def _look_up(self, tokens: Lists, parents: Lists, scored: Scored) -> Scores:
        return self.copied.forward(tokens, parents, scored)

    def is_readable(self, row: Row, node: int) -> bool:
        """Whether the other's context has room for a pending token."""
        return self.other.context is None or len(row.kept) + row.depths[node] <= self.other.context

    def unread(self, row: int) -> int:
        """How many kept tokens, the last ones, the other has not kept."""
        return len(self.rows[row].kept) - len(self.other.rows[row].kept)

    def queue(self, row: int, end: int) -> tuple[list[int], list[int]]:
        """What the other has not read of a row's queue up to a place, with the places that these tokens follow."""
        kept, pending, unread = self.rows[row].kept, self.rows[row], self.unread(row)
        tokens = [*kept[len(kept) - unread :], *pending.tokens]
        parents = [*chain_parents(unread), *(unread + parent for parent in pending.parents)]
        new = slice(len(self.other.rows[row].tokens), end)
        return tokens[new], parents[new]

    def mix_laws(self, copied: TokenScores, asked: list[tuple[int, int, int]]) -> TokenScores:
        """The laws at scored tokens, of which some are asked of the other drafter; on its device."""
        rows, places, _ = zip(*asked, strict=True)
        self.catch_up({row: self.unread(row) - MAX_CHUNK_TOKENS for row in rows})
        read = [len(row.tokens) for row in self.other.rows]
        ends = [self.unread(row) + node + 1 for row, _, node in asked]
        last_ends = dict(zip(rows, ends, strict=True))
        new = [self.queue(row, last_ends.get(row, 0)) for row in range(len(self.rows))]
        scored: Scored = "last" if len(last_ends) == len(asked) else "all"
        logits, ids = self.other.forward([row[0] for row in new], [row[1] for row in new], scored).by_token()
        lines = [-1 if scored == "last" else end - 1 - read[row] for row, end in zip(rows, ends, strict=True)]
        dtype = torch.promote_types(copied.logits.dtype, logits.dtype)
        copied = TokenScores(*(upload(part, self.device) for part in copied))
        scores = TokenScores(take(logits, rows, lines).to(self.device, dtype), take(ids, rows, lines).to(self.device))
        weighted = weigh_law(scores, 1 - take(copied.logits, rows, places).exp().sum(-1))
        shape = (*copied.ids.shape[:2], weighted.ids.shape[-1])
        law = TokenScores(weighted.logits.new_full(shape, -torch.inf), weighted.ids.new_zeros(shape))
        places_of_law = upload([rows, places], self.device).unbind()
        law.logits[places_of_law], law.ids[places_of_law] = weighted
        return add_laws([copied, law])

    def catch_up(self, missing: dict[int, int]) -> None:
        """Let the other keep so many of the tokens that it has not read, piece by piece, unless some are pending."""
        while any(count > 0 for count in missing.values()) and not any(row.tokens for row in self.other.rows):
            counts = [max(min(missing.get(row, 0), MAX_CHUNK_TOKENS), 0) for row in range(len(self.rows))]
            new = [self.queue(row, count) for row, count in enumerate(counts)]
            self.other.forward([tokens for tokens, _ in new], [parents for _, parents in new], "none")
            self.other.commit([[*range(count)] for count in counts])
            missing = {row: count - MAX_CHUNK_TOKENS for row, count in missing.items()}

    def _commit(self, paths: Lists) -> None:
        self.copied.commit(paths)
        if any(row.tokens for row in self.other.rows):
            self.other.commit([self.path_of_other(row, path) for row, path in enumerate(paths)])

    def path_of_other(self, row: int, path: list[int]) -> list[int]:
        """What the other keeps of its pending tokens: the unread ones before a path and those of the path."""
        unread, read = self.unread(row), len(self.other.rows[row].tokens)
        places = [*range(unread), *(unread + node for node in path)] if path else []
        return [place for place in places if place < read]

    def _fork(self, fork: "LookupThenModel", row: int, length: int) -> None:  # type: ignore[override]
        """What the other has not read it reads where it is asked: of a head the target's states go along."""
        count = min(length, self.other.context or length)
        if not self.other.hidden_layers:
            count = min(count, len(self.other.rows[row].kept))
        self.copied.copy_to(fork.copied, row, length)
        if count:
            self.other.copy_to(fork.other, row, count)
        else:
            fork.other.begin(1)


def weigh_law(scores: TokenScores, weight: Float[Tensor, "*rows"]) -> TokenScores:
    """The logarithms of a law times a weight, cut to its most likely tokens."""
    logits, columns = scores.logits.topk(min(MAX_MEMBER_TOKENS, scores.logits.shape[-1]), -1)
    return TokenScores(logits.log_softmax(-1) + weight.log()[..., None], scores.ids.gather(-1, columns))


def add_laws(parts: list[TokenScores]) -> TokenScores:
    """The sum of laws, with one column for each token."""
    ids, order = torch.cat([part.ids for part in parts], -1).sort(dim=-1, stable=True)
    probabilities = torch.cat([part.logits for part in parts], -1).exp().gather(-1, order)
    places = torch.nn.functional.pad((ids.diff(dim=-1) != 0).cumsum(-1), (1, 0))
    sums = torch.zeros_like(probabilities).scatter_add(-1, places, probabilities)
    return TokenScores(sums.log(), torch.zeros_like(ids).scatter(-1, places, ids))


def spread(scores: TokenScores, vocabulary: int) -> Float[Tensor, "rows new vocabulary"]:
    """The log-probabilities of all tokens."""
    law = scores.logits.softmax(-1)
    return law.new_zeros(*law.shape[:2], vocabulary).scatter_add(-1, scores.ids, law).log()


def checked_weights(weights: Any, laws: Float[Tensor, "rows new drafters _"]) -> Float[Tensor, "rows new drafters"]:
    """What a function has weighed the drafters with; raises AdviceError unless each node has a weight for each."""
    shape, use = tuple(laws.shape[:-1]), "a float tensor (rows, new, drafters) of weights, none below 0 and one above"
    good = isinstance(weights, Tensor) and weights.is_floating_point() and weights.shape == shape
    if not good or weights.device != laws.device:
        what = f"{describe(weights)}, not of shape {shape} on {laws.device}"
        raise AdviceError(f"the weights function of a Mixture returns {what}; return {use}")
    fine = weights.isfinite().all(-1) & (weights >= 0).all(-1) & (weights > 0).any(-1)
    if not fine.all():
        row, node = (~fine).nonzero()[0].tolist()
        node_weights = weights[row, node].tolist()
        raise AdviceError(
            f"the weights function of a Mixture returns {node_weights} in row {row}, node {node}; return {use}"
        )
    return weights


def check_weights(weights: object, drafters: int) -> None:
    """Raise unless there is a weight for each drafter, none below zero, and they sum to one."""
    listed = weights if isinstance(weights, list | tuple) and all(map(is_number, weights)) else []
    if len(listed) != drafters or not min(listed) >= 0 or not abs(sum(listed) - 1) < 1e-6:
        raise AdviceError(
            f"weights {quote(weights)} make no mixture of {drafters} drafters; pass as many, summing to 1"
        )
