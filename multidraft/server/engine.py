"""The engine: one thread owns the models, and jobs come and go between its steps.

A fault never ends it silently. A fault while one row is read, or steps alone, ends that row. After any other fault all
rows are read again from their tokens, and each steps alone before it joins the batch. That finds a faulty row, and the
other rows get the same tokens as without the fault. After too many faults without a new token the engine ends.
"""

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
from multidraft.decoding.state import DecodeConfig, State, extend, gather
from multidraft.decoding.step import step
from multidraft.models.base import closed_up
from multidraft.models.compat import home
from multidraft.models.huggingface import Model
from multidraft.sampling.gate import RowFault
from multidraft.server import BROKEN, CLOSED, FULL, Limits, Refused
from multidraft.server.rows import Event, Job, Kept, PrefixCache, Reading, Step, Told, hear_all

LOG = logging.getLogger(__name__)
MEASURED_EVERY = 32  # steps; the optimal acceptance rate takes time, and a sample of it is enough
MAX_FAILURES = 3  # in a row, without a new token in between: then the engine ends


class Engine:
    """Decodes jobs in its own thread; jobs may be submitted and cancelled from any thread."""

    def __init__(self, target: Model, draft: Model | None, config: DecodeConfig, limits: Limits):
        self.target, self.draft, self.limits = target, draft, limits
        self.config = replace(config, measure=MEASURED_EVERY)
        self.slack = 2 * config.policy.most_nodes + 2  # slots that a row may need beyond its tokens
        self.room = limits.tokens_in_cache - self.slack  # the most tokens that one row may come to
        self.waiting: deque[Job] = deque()
        self.suspects: deque[Job] = deque()  # rows that are read again after a fault, before others begin
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
        self.faults = self.failures = 0  # all so far, and those in a row without a new token in between
        self.fault: BaseException | None = None  # that the engine has died of
        self.on_death: Callable[[], object] = bool  # is called then, in the engine's thread
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
        return self.slots(self.rows_begun)

    @property
    def rows_begun(self) -> list[Job]:
        """Those that decode, and the one that is read."""
        return [*self.running, self.reading.job] if self.reading else self.running

    def submit(self, jobs: list[Job]) -> None:
        """Queue all jobs of one request, or none if the queue is full; no job may be longer than `room`."""
        with self.changed:
            if not self.alive:
                raise Refused(*CLOSED)
            if len(self.waiting) >= self.limits.queue:
                raise Refused(*FULL)
            self.waiting.extend(jobs)
            self.changed.notify()

    def close(self, patience: float | int = 0) -> None:
        """Take no more jobs, and end; running jobs get `patience` seconds."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join(patience)
        self.stopped = True
        self.thread.join()
        if isinstance(self.config.policy, Auto):
            self.config.policy.finish(advise=False)

    def run(self) -> None:
        """Work until closed; jobs that are left then, or when the engine dies, get the error CLOSED."""
        try:
            with torch.inference_mode():
                self.work()
        except BaseException as error:
            self.fault = error
            LOG.critical("the engine has died, %d faults after each other", self.failures, exc_info=error)
        with self.changed:
            self.closing = True
            left = [job for job in (*self.rows_begun, *self.suspects, *self.waiting) if not job.has_ended]
            self.running, self.waiting, self.suspects, self.reading, self.state = [], deque(), deque(), None, None
        self.told += [(job, Event(error=Refused(*CLOSED))) for job in left]
        self.flush()
        if self.fault is not None:
            self.on_death()

    def work(self) -> None:
        """Run turns until closed; after a turn that fails, recover."""
        while True:
            try:
                if not self.has_work():
                    return
                self.turn()
            except Exception as error:
                self.take_apart(error)

    def has_work(self) -> bool:
        """Wait for jobs; False when the engine is closed and has none."""
        with self.changed:
            while not (self.waiting or self.suspects or self.running or self.reading):
                if self.closing:
                    return False
                self.changed.wait()
            return not self.stopped

    def turn(self) -> None:
        """Drop cancelled jobs, read up to `prefill` prompt tokens, step once."""
        self.drop_cancelled()
        budget = self.limits.prefill
        while budget > 0 and (reading := self.reading or self.admit()):
            budget -= max(self.read(reading, budget), 1)
        self.flush()
        if self.running:
            self.step()
            self.flush()

    def drop_cancelled(self) -> None:
        """Drop the jobs that were cancelled."""
        with self.changed:
            self.waiting = deque(job for job in self.waiting if not job.cancelled)
            self.suspects = deque(job for job in self.suspects if not job.cancelled)
        if self.reading is not None and self.reading.job.cancelled:
            self.reading = None
        self.go_on([index for index, job in enumerate(self.running) if not job.cancelled])

    def admit(self) -> Reading | None:
        """Begin to read the first in the queue, if the cache has room for one more row."""
        if not self.running:
            self.width = 0  # with rows in it, a batch does not become narrower
        with self.changed:
            queue = self.suspects or self.waiting
            rows = [*self.running, *list(queue)[:1]]
            fits = len(rows) <= self.limits.rows and self.slots(rows) <= self.limits.tokens_in_cache
            if not queue or not fits:
                return None
            try:
                again = queue is self.suspects
                self.reading = Reading(rows[-1], self.target, self.draft, self.config, self.prefixes, again)
            except Exception as error:
                self.blame(rows[-1], error)
            queue.popleft()
        self.width = max(self.width, rows[-1].longest + self.slack)
        self.prefixes.shrink(self.limits.tokens_in_cache - self.tokens_in_cache)
        return self.reading

    def slots(self, jobs: list[Job]) -> int:
        """The cache slots that these jobs take: their number times the longest one."""
        return len(jobs) * max([self.width, *(job.longest + self.slack for job in jobs)])

    def read(self, reading: Reading, budget: int) -> int:
        """Read on by so many tokens at most, and return their number; the row joins the others when its prompt ends."""
        job = reading.job
        try:
            count = self.advance(reading, budget)
        except Exception as error:
            self.reading = None
            self.blame(job, error)
            return 0
        if job.has_ended:
            self.reading = None
        elif reading.is_over and reading.state is not None:
            state = reading.state if self.state is None else extend(self.state, reading.state)
            self.state, self.running, self.reading = state, [*self.running, job], None
        return count

    def advance(self, reading: Reading, budget: int) -> int:
        """Read on; a row whose prompt ends gets its first event, and a row that is read again steps alone."""
        was_waiting = reading.state is None
        count = reading.advance(budget)
        if reading.state is not None and was_waiting and not reading.again:
            self.answer(reading, reading.state)
        elif reading.is_over and reading.again:
            reading.again = False
            self.step_alone(reading)
        return count

    def answer(self, reading: Reading, state: State) -> None:
        """Tell what the target says of a prompt, perhaps with the first new token."""
        job = reading.job
        self.prompt_tokens += len(job.prompt)
        self.reused_tokens += reading.reused
        self.tell(job, Event(prompt=reading.logprobs, end=None if job.new_tokens else "length"))
        if job.new_tokens and state.rows[0].said is not None:
            self.step_alone(reading)

    def step_alone(self, reading: Reading) -> None:
        """A step of a row that has not joined the others."""
        assert reading.state is not None
        reading.state, record = self.stepped(reading.state, [reading.job])
        self.pass_on(reading.job, record, 0)

    def step(self) -> None:
        """One step of all rows."""
        assert self.state is not None
        self.state, record = self.stepped(self.state, self.running)
        self.go_on([row for row, job in enumerate(self.running) if self.pass_on(job, record, row)], record.faults)

    def stepped(self, state: State, jobs: list[Job]) -> tuple[State, StepRecord]:
        """A step of these jobs."""
        if isinstance(self.config.policy, Auto):
            self.config.policy.count_prompt_reads(self.prompt_tokens - self.reused_tokens, self.info.tokens)
        asked = [job.logprobs for job in jobs if job.logprobs is not None]
        state, record = step(state, replace(self.config, logprobs=max(asked)) if asked else self.config)
        self.info.add(record)
        return state, record

    def pass_on(self, job: Job, record: StepRecord, row: int) -> bool:
        """Note a step's event for a row; return whether the row goes on."""
        if fault := record.faults.get(row):
            self.tell(job, Event(error=fault))
            return False
        tree, path = record.trees[row], record.walk_results[row].path
        new, reason = job.cut(record.emitted[row])
        event = Event(Step(new, tree.tokens, tree.parents, path, len(tree.levels) - 1), reason)
        # Nothing can fail from here on: either the row has its tokens and hears of them, or they come again.
        self.told.append((job, event))
        job.tokens += new.tokens
        job.has_ended = reason is not None
        job.random.taken.clear()
        self.info.tokens += len(new.tokens)
        self.failures = 0
        return not job.has_ended

    def go_on(self, going: list[int], faulty: Collection[int] = ()) -> None:
        """Keep only the `going` rows in the batch; the caches of the others are kept while there is room."""
        if self.state is None or len(going) == len(self.running):
            return
        others = [self.running[row] for row in going] + ([self.reading.job] if self.reading else [])
        for row in set(range(len(self.running))).difference(going, faulty):
            self.put_aside(self.state, row, self.slots(others))
        order = closed_up(going)  # which moves the fewest
        self.running = [self.running[row] for row in order]
        self.state = gather(self.state, order) if order else None

    def put_aside(self, state: State, index: int, taken: int) -> None:
        """Keep the cache of a row that leaves, if it fits beside the `taken` slots of the others."""
        job, row, room = self.running[index], state.rows[index], self.limits.tokens_in_cache - taken
        tokens = job.text[: row.position]
        drafted = min(row.position - len(row.unread), len(tokens)) if state.draft is not None else 0
        if not 0 < len(tokens) <= room:
            return
        self.prefixes.shrink(room - len(tokens))
        try:
            target = state.target.fork(index, len(tokens), len(tokens))
            draft = state.draft.fork(index, drafted, drafted) if state.draft is not None and drafted else None
            self.prefixes.put(Kept(tokens, target, draft, drafted))
        except Exception as error:  # where memory ends, say: it is read again, then
            LOG.warning("a conversation has not been kept", exc_info=error)

    def tell(self, job: Job, event: Event) -> None:
        """Note an event for a row's owner."""
        self.told.append((job, event))
        job.has_ended = event.end is not None or event.error is not None

    def flush(self) -> None:
        """Deliver the events since the last flush, as one message."""
        if self.told:
            self.deliver(self.told)
            self.told = []

    def note(self, what: str, error: BaseException) -> None:
        """Count a fault, and log it, once."""
        self.faults, self.failures = self.faults + 1, self.failures + 1
        LOG.error(what, exc_info=error)

    def blame(self, job: Job, error: Exception) -> None:
        """End the row that caused a fault; raises it if no other row can be answered either."""
        if isinstance(error, RowFault):  # its own processor's, say
            return self.tell(job, Event(error=error))
        self.note("a row has failed, and ends", error)
        self.prefixes = PrefixCache()  # of which something may have come
        self.tell(job, Event(error=Refused(*BROKEN)))
        if self.failures >= MAX_FAILURES and not self.answers_a_token():
            raise error

    def take_apart(self, error: Exception) -> None:
        """Read all rows again after a fault of an unknown row; raises after too many faults without a new token."""
        self.note("a turn of the engine has failed; its rows are read again", error)
        unread = [self.reading.job] if self.reading and self.reading.state is None and not self.reading.again else []
        begun = [job for job in self.rows_begun if job not in unread]
        self.running, self.reading, self.state, self.prefixes = [], None, None, PrefixCache()
        for job in begun:
            job.random.give_back()
        with self.changed:
            self.waiting.extendleft(unread)
            self.suspects.extendleft(job for job in reversed(begun) if not (job.has_ended or job.cancelled))
        if self.failures >= MAX_FAILURES:
            raise error

    def answers_a_token(self) -> bool:
        """Whether a prompt of one token can be continued; then the rows that failed were faulty themselves."""
        try:
            reading = Reading(Job([0], 1), self.target, self.draft, self.config, PrefixCache())
            while not reading.is_over or reading.state is None:
                reading.advance(1)
            step(reading.state, self.config)
        except Exception as error:
            LOG.error("not even a prompt of one token is answered", exc_info=error)
            return False
        self.failures = 0
        return True
