"""A prompt that is being read, piece by piece, so that rows which decode do not wait for all of it.

The target comes first: what it says of the last token is the first answer, for which nobody waits for the draft model.
"""

from functools import cached_property

from torch import Tensor

from multidraft.decoding.logprobs import listed
from multidraft.decoding.prefill import CHUNK, at_roots
from multidraft.decoding.record import Logprob
from multidraft.decoding.state import DecodeConfig, State
from multidraft.models.base import LanguageModel, Scored, heard_by, tell
from multidraft.models.huggingface import Model, answers_prompts, reader
from multidraft.sampling.gate import RowFault, problem_of, softmax
from multidraft.server.job import Job
from multidraft.server.prefix_cache import Kept, PrefixCache

NOTHING: tuple[Kept | None, int] = None, 0


class Reading:
    """The readers of both models, and how far they have come: what is in the cache need not be read again."""

    def __init__(self, job: Job, target: Model, draft: Model | None, config: DecodeConfig, cache: PrefixCache):
        self.job, self.models, self.config = job, (target, draft), config
        self.logprobs: list[Logprob] = []
        found = cache.find(job.prompt[:-1]) if job.prompt_logprobs is None else None
        self.kept, self.reused = found or NOTHING
        self.tells = heard_by(draft)
        if self.tells and self.kept is not None:  # a draft head hears on from its last token, which is read again
            self.reused = max(min(self.reused, self.kept.drafted) - 1, 0)
            self.kept = self.kept if self.reused else None
        self.done, self.last = self.reused, len(job.prompt) - (not answers_prompts(target))  # of the target's tokens
        self.state: State | None = None  # where decoding begins, once the target has read what it is to read

    @cached_property
    def readers(self) -> tuple[LanguageModel, LanguageModel | None]:
        """Target and draft; made when they are first used, where a failure is this row's own."""
        capacity, drafted = self.job.longest + 2 * self.config.policy.most_nodes + 2, self.drafted
        target, draft = reader(self.models[0], capacity, tells=self.tells), self.models[1]
        draft = None if draft is None else reader(draft, capacity)
        if self.kept is not None:
            target = self.kept.target.part(0, self.reused, capacity)
        if self.kept is not None and drafted and self.kept.draft is not None:
            draft = self.kept.draft.part(0, drafted, capacity)
        elif draft is not None:
            draft.forward([[]], [[]], "none")  # which makes it a reader of one row
        return target, draft

    @property
    def drafted(self) -> int:
        """How much of the prompt the draft model finds in the cache."""
        return min(self.reused + bool(self.tells), self.kept.drafted) if self.kept else 0

    @property
    def is_over(self) -> bool:
        """Whether both have read, or the draft model may read what is left together with other rows' tokens."""
        if self.state is None:
            return False
        unread = len(self.state.rows[0].unread)
        return (
            self.state.draft is None or not unread or (unread <= CHUNK and getattr(self.config.policy, "rests", False))
        )

    def advance(self, most: int) -> int:
        """Read on by so many tokens at most, and return their number; the draft model begins after the first answer."""
        if self.state is None:
            return self.advance_target(most)
        assert self.state.draft is not None
        row = self.state.rows[0]
        read(self.state.draft, row.unread[:most])
        count, row.unread = len(row.unread[:most]), row.unread[most:]
        return count

    def advance_target(self, most: int) -> int:
        """Let the target read on, to its end; what it says of the prompt is noted if it was asked for."""
        prompt, wanted = self.job.prompt, self.job.prompt_logprobs
        piece = prompt[self.done : self.done + most][: self.last - self.done]
        self.done += len(piece)
        is_whole = self.done == len(prompt)
        scores = read(self.readers[0], piece, "all" if wanted is not None else "last" if is_whole else "none")
        tell(*self.readers)
        if wanted is not None and piece:
            self.note(scores[0], prompt[self.done - len(piece) + 1 :][: len(piece)], wanted)
        if self.done == self.last:
            said = [scores[0, -1]] if is_whole else None
            job, unread = self.job, prompt[self.drafted : -1]
            self.state = at_roots(*self.readers, [prompt], [job.sampling], [job.generator], said=said, unread=[unread])
        return len(piece)

    def note(self, scores: Tensor, follow: list[int], top: int) -> None:
        """The model's own log-probabilities of the tokens that follow."""
        laws, bad = softmax(scores[: len(follow)])
        if bad:
            raise RowFault("the target model", str(problem_of(scores[bad[0]])))
        self.logprobs += listed(laws.log(), follow, top)


def read(model: LanguageModel, piece: list[int], scored: Scored = "none") -> Tensor:
    """Let a model keep a piece of one row's text; the logits that are asked for."""
    scores: Tensor = model.forward([piece], [list(range(-1, len(piece) - 1))], scored if piece else "none")
    model.keep([list(range(len(piece)))])
    return scores
