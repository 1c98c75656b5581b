"""A prompt that is being read, piece by piece, so that rows which decode do not wait for all of it."""

from functools import cached_property

import torch

from multidraft.decoding.logprobs import Logprob, listed
from multidraft.decoding.prefill import at_roots, capacity_of, read, readers
from multidraft.decoding.state import Plan, State
from multidraft.models import LanguageModel
from multidraft.models.causal_lm import Model
from multidraft.server.job import Job
from multidraft.server.shelf import Shelf


class Reading:
    """The readers of both models, and how far they have come: what `shelf` has need not be read again."""

    def __init__(self, job: Job, target: Model, draft: Model | None, plan: Plan, shelf: Shelf):
        self.job, self.models, self.plan = job, (target, draft), plan
        self.logprobs: list[Logprob] = []
        self.found = shelf.find(job.prompt[:-1]) if job.prompt_logprobs is None else None
        self.first = self.reused = self.found[1] if self.found else 0

    @cached_property
    def readers(self) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft; made when they are first used, where a failure is this row's own."""
        if self.found:
            row, length = self.found
            return row.part(length, capacity_of(self.plan, self.job.longest))
        return readers(*self.models, self.plan, self.job.longest)

    @property
    def left(self) -> int:
        """Tokens that have not been read; the last one of the prompt is the root, and never is."""
        return len(self.job.prompt) - 1 - self.first

    def advance(self, most: int) -> int:
        """Read on by so many tokens at most, and return their number."""
        count = min(self.left, most)
        piece = torch.tensor([self.job.prompt[self.first : self.first + count]], dtype=torch.int64)
        wanted, (target, draft) = self.job.prompt_logprobs, self.readers
        logits = read(target, piece, self.first, logits=wanted is not None)
        if wanted is not None:
            follow = self.job.prompt[self.first + 1 :][:count]
            self.logprobs += listed(logits[0].float().log_softmax(-1), follow, wanted)
        if draft is not None:
            read(draft, piece, self.first)
        self.first += count
        return count

    def state(self) -> State:
        """Where decoding begins, after all has been read."""
        job = self.job
        return at_roots(*self.readers, [job.prompt], self.plan, [job.generator], sampling=[job.sampling])
