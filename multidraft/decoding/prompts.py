"""How prompts are read: piece by piece, those of similar lengths side by side, while other rows decode.

Both models keep all of a prompt but its last token, the root of the first tree. The target reads first. Where it reads
the last token as well, its logits there are what the first new token is drawn from: the first step of the row drafts
nothing and takes no pass, so the token need not wait for the draft model.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.prefix_cache import KeptRow
from multidraft.decoding.record import Logprob, top_logprobs
from multidraft.decoding.request import Request
from multidraft.decoding.state import DecodeConfig, Row, State, gather
from multidraft.errors import AdviceError
from multidraft.models.base import MAX_CHUNK_TOKENS, check_logits, hidden_layers_of, pass_hidden_states
from multidraft.models.huggingface import Model, reader
from multidraft.models.reader import Reader, Scored
from multidraft.sampling.gate import RowFault, distribution_error, softmax

MAX_RATIO = 1.25  # of the longest to the shortest prompt that are read side by side: the rest is padding


class Reading:
    """The progress of both models through some prompts; what `kept` has of the only one is not read again.

    A request that is read again after a fault repeats its last step, with the random numbers that it has given back.
    """

    def __init__(
        self,
        requests: list[Request],
        target: Model,
        draft: Model | None,
        config: DecodeConfig,
        policy: TreePolicy,
        capacity: int,
        kept: KeptRow | None = None,
        reused: int = 0,
        scores_last: bool = False,
    ):
        self.requests, self.models, self.capacity = requests, (target, draft), capacity
        self.config, self.policy = config, policy
        self.kept, self.reused, self.hidden_layers = kept, reused, hidden_layers_of(draft)
        self.is_repeated = requests[0].is_suspect and requests[0].was_answered
        self.scores_last = scores_last and not self.is_repeated
        self.num_prompt_logprobs = None if self.is_repeated else requests[0].num_prompt_logprobs
        self.prompt_logprobs: list[Logprob] = []
        # A head that reads hidden states gets them from its last token on, which the target therefore reads again.
        self.drafted = min(reused + bool(self.hidden_layers), kept.drafted) if kept else 0  # by the draft model
        self.texts = [request.text for request in requests]
        self.unread = [text[reused:] if self.scores_last else text[reused:-1] for text in self.texts]  # by the target
        self.state: State | None = None  # where decoding begins, once the target has read what it is to read

    @cached_property
    def readers(self) -> tuple[Reader, Reader | None]:
        """Target and draft. They are made when they are first used, where a failure concerns these requests alone."""
        (target_model, draft_model), kept = self.models, self.kept
        if kept is None:
            target = reader(target_model, self.capacity, self.config.compile, self.hidden_layers)
        else:
            target = kept.target.fork(0, self.reused, self.capacity)
        check_tokens(self.requests, target.vocabulary)
        if kept and kept.draft is not None and self.drafted:
            return target, kept.draft.fork(0, self.drafted, self.capacity)
        draft = None if draft_model is None else reader(draft_model, self.capacity, self.config.compile)
        if draft is not None:  # the first call settles the number of rows
            draft.forward([[] for _ in self.texts], [[] for _ in self.texts], "none")
        return target, draft

    @property
    def is_over(self) -> bool:
        """Whether both models have read the prompts; a draft model that rests catches up in steps that draft."""
        if self.state is None:
            return False
        skipping = self.policy.begin(len(self.requests)).model_rests
        pairs = zip(self.state.rows, self.unread_by_draft(self.state), strict=True)
        return not any(unread for row, unread in pairs if row.random.is_seeded or not skipping)

    @property
    def tokens_read(self) -> list[int]:
        """How many tokens of every prompt the target has read, or need not read again."""
        return [len(text) - len(unread) for text, unread in zip(self.texts, self.unread, strict=True)]

    def advance(self, budget: float | int) -> int:
        """Read some more tokens, `budget` at most but one a row at least, and return their number."""
        if self.state is None:
            return self.advance_target(budget)
        assert self.state.draft is not None
        pieces, _ = pieces_of(self.unread_by_draft(self.state), budget)
        for row, piece in zip(self.state.rows, pieces, strict=True):
            row.unread = row.unread[len(piece) :]
        read(self.state.draft, pieces, "none")
        return sum(map(len, pieces))

    def unread_by_draft(self, state: State) -> list[list[int]]:
        """What the draft model has to read of every prompt: nothing of one that its context has no room for."""
        return [row.unread if state.can_draft(row) else [] for row in state.rows]

    def advance_target(self, budget: float | int) -> int:
        """Let the target read on; note the prompt's log-probabilities if they were asked for."""
        target, draft = self.readers
        pieces, self.unread = pieces_of(self.unread, budget)
        is_last, top = not any(self.unread), self.num_prompt_logprobs
        logits = read(target, pieces, "all" if top is not None else "last" if is_last and self.scores_last else "none")
        pass_hidden_states(target, draft)
        if top is not None and any(pieces):
            self.note_prompt(logits[0], len(pieces[0]), top)
        if is_last:
            self.state = State(target, draft, self.rows_at_roots(logits, target.device))
        return sum(map(len, pieces))

    def rows_at_roots(self, logits: Tensor, device: torch.device) -> list[Row]:
        """The rows before their first step, with the target's logits at their roots where it has read these."""
        rows = []
        for index, (request, text) in enumerate(zip(self.requests, self.texts, strict=True)):
            root_logits = logits[index, -1] if self.scores_last else None
            unread = text[self.drafted : -1] if self.readers[1] is not None else []
            rows.append(row_at_root(request, device, root_logits, unread))
        return rows

    def note_prompt(self, logits: Tensor, count: int, top: int) -> None:
        """Note the target's log-probabilities of the tokens that follow the `count` tokens just read."""
        (text,), (unread,) = self.texts, self.unread
        end = len(text) - len(unread) - (not self.scores_last)
        following = text[end - count + 1 : end + 1]
        probs, bad = softmax(logits[: len(following)])
        if bad:
            raise RowFault("the target model", str(distribution_error(logits[bad[0]])))
        self.prompt_logprobs += top_logprobs(probs.log(), following, top)

    def drop_ended(self) -> None:
        """Let the rows go that have ended."""
        staying = [index for index, request in enumerate(self.requests) if not request.has_ended]
        if self.state is not None and len(staying) < len(self.requests):
            self.requests = [self.requests[index] for index in staying]
            self.state = gather(self.state, staying)


def read_whole(
    requests: list[Request],
    target: Model,
    draft: Model | None,
    config: DecodeConfig,
    policy: TreePolicy,
    scores_last: bool = False,
) -> State:
    """The state of requests before their first step: all prompts have been read, side by side."""
    capacity = max(request.longest for request in requests) + policy.limits.slack
    reading = Reading(requests, target, draft, config, policy, capacity, scores_last=scores_last)
    while reading.state is None or not reading.is_over:
        reading.advance(math.inf)
    return reading.state


def check_tokens(requests: list[Request], vocabulary: int) -> None:
    """Raise AdviceError on a token that the target does not have: a reader may take it for another."""
    for request in requests:
        if strange := [token for token in request.text if not 0 <= token < vocabulary]:
            where = f"prompt {request.index} has token {strange[0]}"
            raise AdviceError(f"{where}, and the target's are 0 to {vocabulary - 1}")


def row_at_root(
    request: Request, device: torch.device, root_logits: Tensor | None = None, unread: Sequence[int] = ()
) -> Row:
    """A request's row when the target has read all but its last token, perhaps that too; `unread` by the draft."""
    text, sampling = request.text, request.sampling
    prefix = torch.tensor(request.padded_text, device=device) if sampling.looks_back else None
    place = text[-1], len(text) - 1
    return Row(sampling, request.random, *place, list(unread), prefix, root_logits, request.num_logprobs)


def read(model: Reader, pieces: list[list[int]], scored: Scored) -> Any:
    """Append a piece to each row's kept tokens, and return the logits that are asked for."""
    scored = scored if any(pieces) else "none"
    logits = model.forward(pieces, [list(range(-1, len(piece) - 1)) for piece in pieces], scored)
    model.commit([list(range(len(piece))) for piece in pieces])
    if scored != "none":
        width = 1 if scored == "last" else max(map(len, pieces))
        check_logits(model, logits, (len(pieces), width), model.vocabulary)
    return logits


def pieces_of(texts: list[list[int]], budget: float | int) -> tuple[list[list[int]], list[list[int]]]:
    """The next piece of each text, and what is left of it; texts of different lengths end in the same pass.

    A pass takes `budget` tokens at most, but one a row at least, and no more than MAX_CHUNK_TOKENS of any row.

    >>> pieces_of([[1, 2, 3], [4]], 4)
    ([[1, 2], []], [[3], [4]])
    """
    longest = max(map(len, texts))
    length = int(min(MAX_CHUNK_TOKENS, max(budget // len(texts), 1)))
    counts = [max(len(text) - max(longest - length, 0), 0) for text in texts]
    pairs = list(zip(texts, counts, strict=True))
    return [text[:count] for text, count in pairs], [text[count:] for text, count in pairs]


def similar(lengths: Sequence[int], budget: float | int = math.inf) -> list[int]:
    """The prompts to read beside the first: those about as long as it, as far as the budget goes.

    >>> similar([10, 30, 9, 11, 8])
    [0, 2, 3]
    """
    chosen, total, shortest, longest = [0], lengths[0], lengths[0], lengths[0]
    for index in sorted(range(1, len(lengths)), key=lambda index: -lengths[index]):
        length = lengths[index]
        if max(longest, length) <= MAX_RATIO * min(shortest, length) and total + length <= budget:
            chosen.append(index)
            total, shortest, longest = total + length, min(shortest, length), max(longest, length)
    return sorted(chosen)
