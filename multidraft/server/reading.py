"""A prompt that is being read, piece by piece, so that rows which decode do not wait for all of it.

The target comes first: what it says of the last token is the first answer, for which nobody waits for the draft model.
"""

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from multidraft.autotune.auto import Auto
from multidraft.decoding.logprobs import Logprob, listed
from multidraft.decoding.prefill import CHUNK, at_roots, capacity_of, read, readers
from multidraft.decoding.state import Plan, State
from multidraft.models import LanguageModel, Scored
from multidraft.models.huggingface import Model, answers_prompts
from multidraft.server.job import Job
from multidraft.server.prefix_cache import PrefixCache


class Reading:
    """The readers of both models, and how far they have come: what `prefixes` has need not be read again."""

    def __init__(self, job: Job, target: Model, draft: Model | None, plan: Plan, prefixes: PrefixCache):
        self.job, self.models, self.plan = job, (target, draft), plan
        self.logprobs: list[Logprob] = []
        self.found = prefixes.find(job.prompt[:-1]) if job.prompt_logprobs is None else None
        self.reused = self.target_has = self.draft_has = self.found[1] if self.found else 0
        self.whole, self.is_drafted = answers_prompts(target), draft is None
        is_short = len(job.prompt) <= CHUNK  # for it may have to be read in one pass, with a mask that is its square
        self.draft_waits = is_short and isinstance(plan.shape, Auto) and plan.shape.rests
        self.state: State | None = None  # where decoding begins, once the target has read what it is to read

    @cached_property
    def readers(self) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft; made when they are first used, where a failure is this row's own."""
        if self.found:
            row, length = self.found
            return row.part(length, capacity_of(self.plan, self.job.longest))
        return readers(*self.models, self.plan, self.job.longest)

    @property
    def is_over(self) -> bool:
        """Whether both have read: all but the last token, the root, which the target may read as well."""
        return self.state is not None and self.is_drafted

    def advance(self, most: int) -> int:
        """Read on by so many tokens at most, and return their number; the draft model ends after the first answer."""
        count = self.advance_target(most) if self.state is None else 0
        if not count or self.state is None:  # the target's last piece is answered first
            self.catch_up()
        return count

    def advance_target(self, most: int) -> int:
        """The same of the target, to its end; what it says of the prompt is noted if it was asked for."""
        prompt, wanted = self.job.prompt, self.job.prompt_logprobs
        last = len(prompt) - (not self.whole)
        end = min(self.target_has + most, last)
        piece, is_last = prompt[self.target_has : end], end == last
        scored: Scored = bool(piece) and (wanted is not None or (self.whole and is_last and "last"))
        said = self.read(0, piece, self.target_has, scored)
        if wanted is not None:
            follow = prompt[self.target_has + 1 :][: len(piece)]
            self.logprobs += listed(said[0, : len(follow)].float().log_softmax(-1), follow, wanted)
        self.target_has = end
        if is_last:
            self.state = self.begun(said[:, -1:] if self.whole else None)
        return len(piece)

    def catch_up(self) -> None:
        """Let the draft model read what the target has read, but for the root."""
        if not self.is_drafted:
            end = self.draft_has if self.draft_waits else min(self.target_has, len(self.job.prompt) - 1)
            self.read(1, self.job.prompt[self.draft_has : end], self.draft_has)
            self.draft_has = end
            self.is_drafted = self.draft_waits or end == len(self.job.prompt) - 1

    def read(self, which: int, piece: list[int], first: int, logits: Scored = False) -> Tensor:
        """Let one of the two read a piece."""
        reader = self.readers[which]
        assert reader is not None
        return read(reader, torch.tensor([piece], dtype=torch.int64), first, logits)

    def begun(self, said: Tensor | None) -> State:
        """Where decoding begins."""
        job, plan = self.job, self.plan
        state = at_roots(*self.readers, [job.prompt], plan, [job.generator], sampling=[job.sampling], said=said)
        return replace(state, unread=[job.prompt[self.draft_has : -1] if self.draft_waits else []])
