"""A prompt that is being read, piece by piece, so that rows which decode do not wait for all of it."""

import torch

from multidraft.decoding.logprobs import Logprob, listed
from multidraft.decoding.prefill import at_roots, read, readers
from multidraft.decoding.state import Plan, State
from multidraft.models.causal_lm import Model
from multidraft.server.job import Job


class Reading:
    """The readers of both models, and how far they have come."""

    def __init__(self, job: Job, target: Model, draft: Model | None, plan: Plan):
        self.job, self.plan, self.first = job, plan, 0
        self.target, self.draft = readers(target, draft, plan, job.longest)
        self.logprobs: list[Logprob] = []

    @property
    def left(self) -> int:
        """Tokens that have not been read; the last one of the prompt is the root, and never is."""
        return len(self.job.prompt) - 1 - self.first

    def advance(self, most: int) -> int:
        """Read on by so many tokens at most, and return their number."""
        count = min(self.left, most)
        piece = torch.tensor([self.job.prompt[self.first : self.first + count]], dtype=torch.int64)
        wanted = self.job.prompt_logprobs
        logits = read(self.target, piece, self.first, logits=wanted is not None)
        if wanted is not None:
            follow = self.job.prompt[self.first + 1 :][:count]
            self.logprobs += listed(logits[0].float().log_softmax(-1), follow, wanted)
        if self.draft is not None:
            read(self.draft, piece, self.first)
        self.first += count
        return count

    def state(self) -> State:
        """Where decoding begins, after all has been read."""
        job = self.job
        return at_roots(self.target, self.draft, [job.prompt], self.plan, [job.generator], sampling=[job.sampling])
