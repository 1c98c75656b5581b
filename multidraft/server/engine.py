"""The engine: one thread that owns the models and steps a batch, to which requests come from other threads.

A fault never ends it silently. A fault while one prompt is read, or while one row steps alone, ends that row. After any
other fault the rows that it may concern are read again from their tokens, and each steps alone before it joins the
batch. That finds a faulty row, and the other rows get the same tokens as without the fault. After too many faults
without a new token the engine ends.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from threading import Condition, Thread

import torch

from multidraft.decoding.batch import Batch, Updates
from multidraft.decoding.metrics import Info
from multidraft.decoding.policy import Outlook, TreePolicy
from multidraft.decoding.request import Request
from multidraft.decoding.state import MEASURED_AT_FIRST, DecodeConfig
from multidraft.decoding.warm_up import warm_up
from multidraft.models.reader import Reader
from multidraft.sampling.row_faults import RowFault
from multidraft.server import BROKEN_ERROR, CLOSED_ERROR, FULL_ERROR, Limits, Refused

LOG = logging.getLogger(__name__)
MEASURED_EVERY = 32  # steps; the optimal acceptance rate takes time, and a sample of it is enough
MAX_FAILURES = 3  # in a row, without a new token in between: then the engine ends


class Engine:
    """Decodes requests in its own thread; they may be submitted and cancelled from any thread."""

    def __init__(self, target: Reader, draft: Reader | None, config: DecodeConfig, policy: TreePolicy, limits: Limits):
        self.target, self.draft, self.policy, self.limits = target, draft, policy, limits
        self.outlook = Outlook()  # which another thread may read
        self.config = replace(config, measure=MEASURED_EVERY, measure_first=MEASURED_AT_FIRST)
        self.batch = Batch(target, draft, self.config, policy, limits.rows, limits.tokens_in_cache)
        self.room = limits.tokens_in_cache - self.batch.slack  # the most tokens that one row may come to
        self.submitted: list[Request] = []  # which the thread has not taken yet
        self.deliver: Callable[[Updates], object] = send_updates
        self.changed = Condition()
        self.closing = self.stopped = False
        self.faults = self.failures = 0  # all so far, and those in a row without a new token in between
        self.tokens_at_failure = 0
        self.fault: BaseException | None = None  # that the engine has died of
        self.on_death: Callable[[], object] = bool  # is called then, in the engine's thread
        self.thread = Thread(target=self.run, name="engine", daemon=True)
        warm_up(config, policy.limits, target.device)  # compiles what is compiled
        self.start = self.thread.start  # from then on requests are taken

    @property
    def alive(self) -> bool:
        """Whether requests are taken."""
        return self.thread.is_alive() and not self.closing

    @property
    def info(self) -> Info:
        """What has happened so far."""
        return self.batch.info

    @property
    def num_waiting(self) -> int:
        """The number of requests that have not begun."""
        return len(self.submitted) + len(self.batch.waiting)

    def submit(self, requests: list[Request]) -> None:
        """Queue all of these, or none if the queue is full; none may become longer than `room`."""
        with self.changed:
            if not self.alive:
                raise Refused(*CLOSED_ERROR)
            if self.num_waiting >= self.limits.queue:
                raise Refused(*FULL_ERROR)
            self.submitted += requests
            self.changed.notify()

    def close(self, patience: float | int = 0) -> None:
        """Take no more requests, and end; running requests get `patience` seconds."""
        with self.changed:
            self.closing = True
            self.changed.notify()
        self.thread.join(patience)
        self.stopped = True
        self.thread.join()
        self.policy.finish(advise=False)

    def run(self) -> None:
        """Work until closed; requests that are left then, or when the engine dies, get the error CLOSED."""
        try:
            with torch.inference_mode():
                self.work()
        except BaseException as error:
            self.fault = error
            LOG.critical("the engine has died, %d faults after each other", self.failures, exc_info=error)
        with self.changed:
            self.closing = True
            self.batch.add(self.submitted)
            self.submitted = []
        for request in self.batch.clear():
            self.batch.fail(request, Refused(*CLOSED_ERROR))
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
                self.recover(error)
                self.flush()

    def has_work(self) -> bool:
        """Wait for requests, and take them; False when the engine is closed and has none."""
        with self.changed:
            while not (self.submitted or self.batch.requests):
                if self.closing:
                    return False
                self.changed.wait()
            self.batch.add(self.submitted)
            self.submitted = []
            return not self.stopped

    def turn(self) -> None:
        """One step of the batch; what it brings is delivered as one message."""
        batch = self.batch
        self.outlook = self.policy.begin(max(batch.rows_to_come, 1), batch.prompt_reads)
        if updates := batch.step(self.limits.prefill):
            self.deliver(updates)
        self.notice_progress()

    def flush(self) -> None:
        """Deliver the updates that a failure or the end has left."""
        if updates := self.batch.take_updates():
            self.deliver(updates)

    # After a fault

    def recover(self, error: Exception) -> None:
        """End the request that a fault concerns, or read all that it may concern again.

        Raises the fault after too many of them without a new token.
        """
        is_reading, requests = bool(self.batch.concerned), self.batch.take_back()
        if is_reading and len(requests) == 1:
            return self.blame(requests[0], error)
        self.note("a turn of the engine has failed; its rows are read again", error)
        self.batch.repeat(requests)
        if self.failures >= MAX_FAILURES:
            raise error

    def blame(self, request: Request, error: Exception) -> None:
        """End the request that caused a fault; raises it if no other request can be answered either."""
        if isinstance(error, RowFault):  # its own processor's, say
            return self.batch.fail(request, error)
        self.note("a row has failed, and ends", error)
        self.batch.fail(request, Refused(*BROKEN_ERROR))
        if self.failures >= MAX_FAILURES and not self.answers_a_token():
            raise error

    def note(self, event: str, error: BaseException) -> None:
        """Count a fault, and log it, once."""
        self.notice_progress()
        self.tokens_at_failure = self.info.tokens
        self.faults, self.failures = self.faults + 1, self.failures + 1
        LOG.error(event, exc_info=error)

    def notice_progress(self) -> None:
        """Forget earlier faults when there has been a new token since the last."""
        if self.failures and self.info.tokens > self.tokens_at_failure:
            self.failures = 0

    def answers_a_token(self) -> bool:
        """Whether a prompt of one token can be continued; then the rows that failed were faulty themselves."""
        try:
            batch = Batch(self.target, self.draft, self.config, self.policy)
            batch.add([Request([0], 3)])  # the prompt's pass brings the first, and the last needs no tree
            while batch.requests:
                batch.step()
        except Exception as error:
            LOG.error("not even a prompt of one token is answered", exc_info=error)
            return False
        self.failures = 0
        return True


def send_updates(updates: Updates) -> None:
    """Pass each update to its request's owner; a request whose `on_update` raises is cancelled."""
    for request, update in updates:
        try:
            request.on_update(update)
        except Exception:
            request.cancelled = True
