"""The engine: one thread owns the models, and jobs come and go between its steps."""

import logging
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import replace
from threading import Condition, Thread

import torch

from multidraft.autotune.controller import Auto
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import warm_up
from multidraft.decoding.record import StepRecord
from multidraft.decoding.state import DecodeConfig, State, join, select
from multidraft.decoding.step import step
from multidraft.models.base import closed_up
from multidraft.models.compat import home
from multidraft.models.huggingface import Model
from multidraft.server import CLOSED, FULL, Limits, Refused
from multidraft.server.rows import Event, Job, Kept, PrefixCache, Reading, Step, Told, hear_all

LOG = logging.getLogger(__name__)
MEASURED_EVERY = 32  # steps; the optimal acceptance rate takes time, and a sample of it is enough


class Engine:
    """Jobs may be submitted and cancelled from any thread; everything else happens in the engine's own."""

    def __init__(self, target: Model, draft: Model | None, config: DecodeConfig, limits: Limits):
        self.target, self.draft, self.limits = target, draft, limits
        self.config = replace(config, measure=MEASURED_EVERY)
        self.slack = 2 * config.policy.most_nodes + 2  # slots that a row may need beyond its tokens
        self.room = limits.tokens_in_cache - self.slack  # the most tokens that one row may come to
        self.waiting: deque[Job] = deque()
        self.running: list[Job] = []
        self.state: State | None = None  # of the running jobs
        self.reading: Reading | None = None
        self.prefixes = PrefixCache()
        self.width = 0  # slots of a row: in a batch all have as many as the longest
        self.info = Info()
        self.prompt_tokens = self.reused_tokens = 0
        self.told: Told = []  # by rows since the last message
        self.deliver: Callable[[Told], object] = hear_all
        self.changed = Condition()
        self.closing = self.stopped = False
        self.thread = Thread(target=self.run, name="engine", daemon=True)
        warm_up(config, home(target))  # compiles what is compiled
        self.start = self.thread.start  # from then on jobs are taken

    @property
    def alive(self) -> bool:
        """Whether jobs are taken."""
        return self.thread.is_alive() and not self.closing

    @property
    def tokens_in_cache(self) -> int:
        """Slots that are taken."""
        return self.slots([*self.running, self.reading.job] if self.reading else self.running)

    def submit(self, jobs: list[Job]) -> None:
        """Queue the jobs of one request, none above `room`, all or none: a queue with any room takes them."""
        with self.changed:
            if not self.alive:
                raise Refused(*CLOSED)
            if len(self.waiting) >= self.limits.queue:
                raise Refused(*FULL)
            self.waiting.extend(jobs)
            self.changed.notify()

    def close(self, patience: float | int = 0) -> None:
        """Take no more, and end; what is under way has so many seconds."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join(patience)
        self.stopped = True
        self.thread.join()
        if isinstance(self.config.policy, Auto):
            self.config.policy.finish(advise=False)

    def run(self) -> None:
        """Work until closed; whatever is left then, or when the engine dies, hears that it failed."""
        fault: BaseException = Refused(*CLOSED)
        try:
            with torch.inference_mode():
                while self.has_work():
                    self.turn()
        except BaseException as error:
            fault = error
            LOG.critical("the engine has died", exc_info=error)
        with self.changed:
            self.closing = True
            left = [*self.running, *self.waiting, *([self.reading.job] if self.reading else [])]
            self.running, self.waiting, self.reading, self.state = [], deque(), None, None
        self.told += [(job, Event(error=fault)) for job in left]
        self.flush()

    def has_work(self) -> bool:
        """Wait for some; False where there will be none."""
        with self.changed:
            while not (self.waiting or self.running or self.reading or self.closing):
                self.changed.wait()
            return not self.stopped and bool(self.waiting or self.running or self.reading)

    def turn(self) -> None:
        """Forget who has gone, read a little, step once."""
        self.drop_cancelled()
        budget = self.limits.prefill
        while budget > 0 and (reading := self.reading or self.admit()):
            budget -= max(self.read(reading, budget), 1)
        self.flush()
        if self.running:
            self.step()
            self.flush()

    def drop_cancelled(self) -> None:
        """Nobody waits for these any more."""
        with self.changed:
            self.waiting = deque(job for job in self.waiting if not job.cancelled)
        if self.reading is not None and self.reading.job.cancelled:
            self.reading = None
        self.go_on([index for index, job in enumerate(self.running) if not job.cancelled])

    def admit(self) -> Reading | None:
        """Begin to read the first in the queue, if the cache has room for one more row."""
        if not self.running:
            self.width = 0  # with rows in it, a batch does not become narrower
        with self.changed:
            rows = [*self.running, *list(self.waiting)[:1]]
            fits = len(rows) <= self.limits.rows and self.slots(rows) <= self.limits.tokens_in_cache
            if not self.waiting or not fits:
                return None
            job = self.waiting.popleft()
        self.width = max(self.width, job.longest + self.slack)
        self.reading = Reading(job, self.target, self.draft, self.config, self.prefixes)
        self.prefixes.shrink(self.limits.tokens_in_cache - self.tokens_in_cache)
        return self.reading

    def slots(self, jobs: list[Job]) -> int:
        """What so many rows take: as many times the longest of them."""
        return len(jobs) * max([self.width, *(job.longest + self.slack for job in jobs)])

    def read(self, reading: Reading, budget: int) -> int:
        """Read on by so many tokens at most, and return their number; the row joins the others when its prompt ends."""
        count, was_waiting = 0, reading.state is None
        try:
            count = reading.advance(budget)
            if reading.state is None:
                return count
            if not was_waiting or self.answer(reading, reading.state):
                if not reading.is_over:
                    return count
                self.state = reading.state if self.state is None else join(self.state, reading.state)
                self.running.append(reading.job)
        except Exception as error:
            self.told.append((reading.job, Event(error=error)))
        self.reading = None
        return count

    def answer(self, reading: Reading, state: State) -> bool:
        """Tell what the target says of a prompt, perhaps with the first new token; whether the row goes on."""
        job = reading.job
        self.prompt_tokens += len(job.prompt)
        self.reused_tokens += reading.reused
        self.told.append((job, Event(prompt=reading.logprobs, end=None if job.new_tokens else "length")))
        if job.new_tokens and state.rows[0].said is not None:
            reading.state, record = self.stepped(state, [job])
            return self.pass_on(job, record, 0)
        return job.new_tokens > 0

    def step(self) -> None:
        """One step of all rows; where it fails, and no row can be named for it, all of them end."""
        assert self.state is not None
        try:
            self.state, record = self.stepped(self.state, self.running)
        except Exception as error:
            LOG.error("a step has failed", exc_info=error)
            fault = Event(error=RuntimeError("a step has failed"))  # whatever it was, no request is to blame
            self.told += [(job, fault) for job in self.running]
            self.running, self.state = [], None
            return
        self.go_on([row for row, job in enumerate(self.running) if self.pass_on(job, record, row)], record.faults)

    def stepped(self, state: State, jobs: list[Job]) -> tuple[State, StepRecord]:
        """A step of these jobs."""
        if isinstance(self.config.policy, Auto):
            self.config.policy.charge(self.prompt_tokens - self.reused_tokens, self.info.tokens)
        asked = [job.logprobs for job in jobs if job.logprobs is not None]
        state, record = step(state, replace(self.config, logprobs=max(asked)) if asked else self.config)
        self.info.add(record)
        return state, record

    def pass_on(self, job: Job, record: StepRecord, row: int) -> bool:
        """Tell a row what it has got; whether it goes on."""
        if fault := record.faults.get(row):
            self.told.append((job, Event(error=fault)))
            return False
        tree, path = record.trees[row], record.endings[row].path
        new, reason = job.cut(record.emitted[row])
        self.info.tokens += len(new.tokens)
        self.told.append((job, Event(Step(new, tree.tokens, tree.parents, path, len(tree.levels) - 1), reason)))
        return reason is None

    def go_on(self, going: list[int], faulty: Collection[int] = ()) -> None:
        """The other rows leave the batch, and what they have read is kept while there is room."""
        if self.state is None or len(going) == len(self.running):
            return
        others = [self.running[row] for row in going] + ([self.reading.job] if self.reading else [])
        for row in set(range(len(self.running))).difference(going, faulty):
            self.put_aside(self.state, row, self.slots(others))
        order = closed_up(going)  # which moves the fewest
        self.running = [self.running[row] for row in order]
        self.state = select(self.state, order) if order else None

    def put_aside(self, state: State, index: int, taken: int) -> None:
        """Keep what a row has read, if there is room beside the slots that others take."""
        job, row, room = self.running[index], state.rows[index], self.limits.tokens_in_cache - taken
        tokens = [*job.prompt, *job.tokens][: row.position]
        drafted = min(row.position - len(row.unread), len(tokens)) if state.draft is not None else 0
        if not 0 < len(tokens) <= room:
            return
        self.prefixes.shrink(room - len(tokens))
        try:
            target = state.target.part(index, len(tokens), len(tokens))
            draft = state.draft.part(index, drafted, drafted) if state.draft is not None and drafted else None
            self.prefixes.put(Kept(tokens, target, draft, drafted))
        except Exception as error:  # where memory ends, say: it is read again, then
            LOG.warning("a conversation has not been kept", exc_info=error)

    def flush(self) -> None:
        """Pass on what rows have to be told since the last time, as one message."""
        if self.told:
            told, self.told = self.told, []
            self.deliver(told)
