"""How prompts are read: piece by piece, those of similar lengths side by side, while other rows decode.

Both models keep all of a prompt but its last token, the root of the first tree. The target reads first. Where it reads
the last token as well, its logits there are what the first new token is drawn from: the first step of the row drafts
nothing and takes no pass, so the token need not wait for the draft model.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from multidraft.decoding.draft import can_draft
from multidraft.decoding.logprobs import top_logprobs
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.prefix_cache import KnownPrefix
from multidraft.decoding.record import Logprob
from multidraft.decoding.request import Request, Stage
from multidraft.decoding.state import DecodeConfig, RunningRow, State, gather
from multidraft.errors import AdviceError
from multidraft.models.reader import MAX_CHUNK_TOKENS, HiddenStates, Reader, Scored, chain_parents
from multidraft.models.scores import check_whole
from multidraft.sampling.from_logits import softmax
from multidraft.sampling.row_faults import RowFault, distribution_error

MAX_RATIO, MAX_PADDING = 1.25, 6  # of the longest to the shortest prompt side by side, and tokens that cost little


class TargetReading:
    """Requests whose prompts the target reads; the `prefixes` of those that have one are not read again.

    Each is read in one pass where `is_whole`. A request that is read again after a fault repeats its last step, with
    the random numbers that it has given back.
    """

    model_name = "target"

    def __init__(
        self,
        requests: list[Request],
        target: Reader,
        draft: Reader | None,
        capacity: int,
        prefixes: Sequence[KnownPrefix | None] = (),
        scores_last: bool = False,
        slots: int = 0,
        is_whole: bool = False,
    ):
        self.requests, self.is_whole, prefixes = requests, is_whole, prefixes or [None] * len(requests)
        self.is_repeated = requests[0].phase >= Stage.CATCHING_UP
        self.scores_last = scores_last and not requests[0].tokens  # a first step is repeated as one
        self.num_prompt_logprobs = None if self.is_repeated else requests[0].num_prompt_logprobs
        self.prompt_logprobs: list[Logprob] = []
        self.logits: Tensor | None = None  # behind the last tokens, when these have been read
        layers = () if draft is None else draft.hidden_layers
        self.reused = [prefix.length if prefix else 0 for prefix in prefixes]
        self.drafted = [prefix.drafted if prefix else 0 for prefix in prefixes]
        self.texts = [request.text for request in requests]
        ends = [len(text) if self.scores_last else -1 for text in self.texts]
        self.unread = [text[start:end] for text, start, end in zip(self.texts, self.reused, ends, strict=True)]
        for request in requests:
            request.phase = max(request.phase, Stage.READING)
        kept_rows = [prefix.row if prefix else None for prefix in prefixes]
        targets = [row.target if row else None for row in kept_rows]
        drafts = [row.draft if row else None for row in kept_rows]
        target = target.with_hidden_states(layers) if layers else target
        slots = max(slots, *map(len, self.texts))
        self.target = rows_of(target, targets, self.reused, capacity, slots)
        check_tokens(requests, self.target.vocabulary)
        self.draft = None if draft is None else rows_of(draft, drafts, self.drafted, capacity, slots)
        if self.draft is not None:
            self.draft.add_corpora([request.corpus for request in requests])

    @property
    def is_over(self) -> bool:
        """Whether the target has read all that it is to read."""
        return not any(self.unread)

    @property
    def tokens_read(self) -> list[int]:
        """How many tokens of every prompt the target has read, or need not read again."""
        return [len(text) - len(unread) for text, unread in zip(self.texts, self.unread, strict=True)]

    def advance(self, budget: float | int) -> int:
        """Read some more tokens, `budget` at most but one a row at least, and return their number."""
        pieces, self.unread = pieces_of(self.unread, budget, self.is_whole)
        top = self.num_prompt_logprobs
        scored: Scored = "all" if top is not None else "last" if self.is_over and self.scores_last else "none"
        self.logits, states = read(self.target, pieces, scored)
        if states is not None and self.draft is not None and self.draft.hidden_layers:
            self.draft.observe(states)
        if top is not None and any(pieces):
            self.note_prompt(self.logits[0], len(pieces[0]), top)
        return sum(map(len, pieces))

    def note_prompt(self, logits: Tensor, count: int, top: int) -> None:
        """Note the target's log-probabilities of the tokens that follow the `count` tokens just read."""
        (text,), (unread,) = self.texts, self.unread
        end = len(text) - len(unread) - (not self.scores_last)
        following = text[end - count + 1 : end + 1]
        probs, bad = softmax(logits[: len(following)])
        if bad:
            raise RowFault("the target model", str(distribution_error(logits[bad[0]])))
        self.prompt_logprobs += top_logprobs(probs.log(), following, top)

    def state(self) -> State:
        """The rows before their first step, with the target's logits at their roots where it has read these."""
        rows = list[RunningRow]()
        for index, (request, text, drafted) in enumerate(zip(self.requests, self.texts, self.drafted, strict=True)):
            root_logits = self.logits[index, -1] if self.scores_last and self.logits is not None else None
            unread = text[drafted:-1] if self.draft is not None else []
            rows.append(row_at_root(request, self.target.device, root_logits, unread))
        return State(self.target, self.draft, rows)


class DraftReading:
    """Requests whose prompts the target has read, and the draft model reads: then their rows join the running ones."""

    model_name = "draft"

    def __init__(self, requests: list[Request], state: State, is_repeated: bool):
        self.requests, self.state, self.is_repeated = requests, state, is_repeated

    @property
    def unread(self) -> list[list[int]]:
        """What the draft model has to read of every prompt: nothing of one that its context has no room for."""
        return [row.unread if can_draft(self.state, row) else [] for row in self.state.rows]

    def is_over(self, policy: TreePolicy, rows: int) -> bool:
        """Whether it has read the prompts; a draft model that rests for `rows` rows catches up as it drafts."""
        skipping, pairs = policy.begin(rows).model_rests, zip(self.state.rows, self.unread, strict=True)
        return not any(unread for row, unread in pairs if row.random.is_seeded or not skipping)

    def advance(self, budget: float | int) -> int:
        """Read some more tokens, `budget` at most but one a row at least, and return how many took a pass."""
        draft = self.state.draft
        assert draft is not None
        pieces, _ = pieces_of(self.unread, budget if draft.cost == "pass" else math.inf)
        for row, piece in zip(self.state.rows, pieces, strict=True):
            row.unread = row.unread[len(piece) :]
        read(draft, pieces, "none")
        return sum(map(len, pieces)) if draft.cost == "pass" else 0

    def drop_ended(self) -> None:
        """Let the rows go that have ended."""
        staying = [index for index, request in enumerate(self.requests) if not request.has_ended]
        if len(staying) < len(self.requests):
            self.requests = [self.requests[index] for index in staying]
            self.state = gather(self.state, staying)


def rows_of(
    model: Reader, kept_rows: Sequence[Reader | None], counts: Sequence[int], capacity: int, slots: int = 0
) -> Reader:
    """A new reader of as many rows, each with so many tokens of a kept one, if any; room for `slots` is made now."""
    if not any(counts):
        reader = model.new(capacity)
        reader.begin(len(counts))
        reader.reserve(len(counts), slots)
        return reader
    readers = (
        row.fork(0, count, capacity) if row and count else rows_of(model, [None], [0], capacity, slots)
        for row, count in zip(kept_rows, counts, strict=True)
    )
    first = next(readers)
    first.reserve(len(counts), slots)
    for other in readers:  # one is made when the one before has joined: all of them together take twice the memory
        first.extend(other)
    return first


def read_whole(
    requests: list[Request],
    target: Reader,
    draft: Reader | None,
    config: DecodeConfig,
    policy: TreePolicy,
    scores_last: bool = False,
) -> State:
    """The state of requests before their first step: all prompts have been read, side by side."""
    capacity = max(request.longest for request in requests) + policy.limits.slack
    reading = TargetReading(requests, target, draft, capacity, scores_last=scores_last, slots=capacity)
    reading.advance(math.inf)
    while not reading.is_over:
        reading.advance(math.inf)
    drafting = DraftReading(requests, reading.state(), is_repeated=False)
    while not drafting.is_over(policy, len(requests)):
        drafting.advance(math.inf)
    return drafting.state


def check_tokens(requests: list[Request], vocabulary: int) -> None:
    """Raise AdviceError on a token that the target does not have: a reader may take it for another."""
    for request in requests:
        if strange := [token for token in request.text if not 0 <= token < vocabulary]:
            where = f"prompt {request.index} has token {strange[0]}"
            raise AdviceError(f"{where}, and the target's are 0 to {vocabulary - 1}")


def row_at_root(
    request: Request, device: torch.device, root_logits: Tensor | None = None, unread: Sequence[int] = ()
) -> RunningRow:
    """A request's row when the target has read all but its last token, perhaps that too; `unread` by the draft."""
    text, sampling = request.text, request.sampling
    prefix = torch.tensor(request.padded_text, device=device) if sampling.looks_back else None
    place = text[-1], len(text) - 1
    unread, asked = list(unread), (request.num_logprobs, request.longest)
    return RunningRow(sampling, request.random, *place, unread, prefix, root_logits, *asked)


def read(model: Reader, pieces: list[list[int]], scored: Scored) -> tuple[Tensor, HiddenStates | None]:
    """Append a piece to each row's kept tokens; the logits and the hidden states that were asked for."""
    scored = scored if any(pieces) else "none"
    scores = model.forward(pieces, [chain_parents(len(piece)) for piece in pieces], scored)
    states = model.commit([list(range(len(piece))) for piece in pieces])
    if scored != "none":
        check_whole(scores, model.vocabulary, model)
    return scores.logits, states


def pieces_of(
    texts: list[list[int]], budget: float | int, is_whole: bool = False
) -> tuple[list[list[int]], list[list[int]]]:
    """The next piece of each text, and what is left of it; texts of different lengths end in the same pass.

    A pass takes `budget` tokens at most, but one a row at least, and no more than MAX_CHUNK_TOKENS of any row; all of
    them where it `is_whole`.

    >>> pieces_of([[1, 2, 3], [4]], 4)
    ([[1, 2], []], [[3], [4]])
    """
    longest = max(map(len, texts))
    length = longest if is_whole else int(min(MAX_CHUNK_TOKENS, max(budget / len(texts), 1)))
    counts = [max(len(text) - max(longest - length, 0), 0) for text in texts]
    pairs = list(zip(texts, counts, strict=True))
    return [text[:count] for text, count in pairs], [text[count:] for text, count in pairs]


def similar(lengths: Sequence[int], budget: float | int = math.inf) -> list[int]:
    """The prompts to read beside the first: those about as long as it, as far as the budget goes.

    >>> similar([10, 30, 9, 11, 2])
    [0, 2, 3]
    """
    chosen, total, shortest, longest = [0], lengths[0], lengths[0], lengths[0]
    for index in sorted(range(1, len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        room = MAX_RATIO * min(shortest, length) + MAX_PADDING
        if max(longest, length) <= room and total + length <= budget:
            chosen.append(index)
            total, shortest, longest = total + length, min(shortest, length), max(longest, length)
    return sorted(chosen)
