"""The batch: requests decode side by side. They come between two steps, and leave where plain decoding would stop.

This is the only loop, and `step` its body. `generate` adds all its requests and steps until the batch is empty; a
server's engine does the same in a thread, with requests that come at any time; `tune` steps with a clock.

Waiting requests are read as soon as there is room: piece by piece, those of similar lengths side by side. A row then
joins the running ones. The caches of rows that leave are kept for other prompts while there is room.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence

from multidraft.decoding.logprobs import add_logprobs
from multidraft.decoding.metrics import Info, measured_acceptance
from multidraft.decoding.policy import PolicyLimits, PromptReads, TreePolicy
from multidraft.decoding.prefill import DraftReading, TargetReading, similar
from multidraft.decoding.prefix_cache import KeptRow, KnownPrefix, PrefixCache
from multidraft.decoding.record import Clock, StepRecord
from multidraft.decoding.request import Request, Stage, Step, Update
from multidraft.decoding.state import DecodeConfig, State, extend, gather
from multidraft.decoding.step import step
from multidraft.errors import AdviceError
from multidraft.models.huggingface.weight_marks import ModelMark, modules_of
from multidraft.models.prefix_models import answers_prompts
from multidraft.models.reader import Reader
from multidraft.sampling.row_faults import RowFault

LOG = logging.getLogger(__name__)

Updates = list[tuple[Request, Update]]
OnRecord = Callable[[StepRecord, list[Request]], object]  # a step, and the requests of its rows


class Batch:
    """Requests that decode side by side, at most `max_num_seqs`, in caches of at most `max_tokens` slots.

    Without `max_tokens` there is no limit, and no cache of prefixes. It may be used from one thread only.
    """

    def __init__(
        self,
        target: Reader,
        draft: Reader | None,
        config: DecodeConfig,
        policy: TreePolicy,
        max_num_seqs: float | int = math.inf,
        max_tokens: float | int = math.inf,
        on_record: OnRecord = lambda record, requests: None,
    ):
        policy.limits.check(config.scheme)
        self.target, self.draft, self.config, self.policy, self.on_record = target, draft, config, policy, on_record
        self.max_num_seqs, self.max_tokens = rows_within(max_num_seqs, target, draft, policy.limits), max_tokens
        self.slack = policy.limits.slack
        self.scores_last = answers_prompts(target)
        self.reads_whole = target.looks_across  # each prompt alone, as the model itself does
        self.waiting: deque[Request] = deque()
        self.reading: TargetReading | DraftReading | None = None
        self.running: list[Request] = []
        self.state: State | None = None  # of the running requests
        self.prefixes = PrefixCache()
        self.mark: ModelMark | None = None  # of the models that the prefixes come from
        self.width = 0  # slots of a row: all have as many as the longest
        self.info = Info()
        self.prompt_tokens = self.reused_tokens = self.prompt_groups = 0
        self.updates: Updates = []
        self.has_read = False  # in the last step
        self.concerned: list[Request] = []  # by a failure now, if prompts are being read: all that have begun, if not

    def add(self, requests: Iterable[Request]) -> None:
        """Let requests wait, behind those that wait already."""
        self.waiting.extend(requests)

    def step(self, prompt_budget: float | int = math.inf) -> Updates:
        """By turns read up to `prompt_budget` tokens of prompts, or decode a step of the running rows: what happens."""
        self.drop_cancelled()
        self.has_read = not (self.has_read and self.running) and self.read_prompts(prompt_budget)
        if not self.has_read:
            self.decode()
        return self.take_updates()

    def take_updates(self) -> Updates:
        """The updates since the last call: a step that fails leaves some."""
        updates, self.updates = self.updates, []
        return updates

    @property
    def active(self) -> list[Request]:
        """The requests that are read or decode."""
        return [*self.running, *(self.reading.requests if self.reading else ())]

    @property
    def requests(self) -> list[Request]:
        """All that have not ended."""
        return [*self.active, *self.waiting]

    @property
    def tokens_in_cache(self) -> int:
        """Slots that rows take."""
        return len(self.active) * self.width

    @property
    def max_kept_rows(self) -> float | int:
        """The most rows that have left and are kept: as many as the models tell apart beside those that have begun."""
        paths = paths_of(self.target, self.draft)
        return math.inf if paths is None else max(paths - self.policy.limits.paths(max(len(self.active), 1)) - 1, 0)

    @property
    def max_new_rows(self) -> int | None:
        """The most prompts that may be read side by side, of which the models have to tell each apart; None for any."""
        paths = paths_of(self.target, self.draft)
        return None if paths is None else max(paths - len(self.active) - len(self.prefixes.rows) - 1, 1)

    # Requests come

    def read_prompts(self, budget: float | int) -> bool:
        """Read up to so many tokens of prompts; whether there were any that could be read."""
        has_read = False
        while budget > 0 and (self.reading or self.admit(budget)):
            budget -= max(self.read(budget), 1)
            has_read = True
        return has_read

    def admit(self, budget: float | int) -> bool:
        """Begin to read the first that waits, and others whose prompts are about as long, if there is room."""
        if not self.running:
            self.width = 0  # with rows in it, a batch does not become narrower
            self.forget_changed_models()
        group, prefixes = self.next_group(budget)
        if not group:
            return False
        self.prefixes.use([prefix.row for prefix in prefixes if prefix])
        unlimited = self.max_tokens == math.inf  # then all rows are as wide as the longest that is known
        planned = [*group, *self.waiting] if unlimited else group
        self.width = max(self.width, *(request.longest + self.slack for request in planned))
        self.concerned, chosen = group, set(group)
        self.waiting = deque(request for request in self.waiting if request not in chosen)
        models = self.target, self.draft
        slots = self.width if self.state is None else 0  # beside running rows none but what prompts take: they move
        self.reading = TargetReading(group, *models, self.width, prefixes, self.scores_last, slots, self.reads_whole)
        self.prefixes.shrink(self.max_tokens - self.tokens_in_cache, self.max_kept_rows)
        return True

    def forget_changed_models(self) -> None:
        """Let go of what rows have left whose models have changed since."""
        if self.max_tokens == math.inf or (self.mark and self.mark.agrees()):
            return
        self.prefixes, self.mark = PrefixCache(), ModelMark(modules_of(self.target) + modules_of(self.draft))

    @property
    def fitting(self) -> list[Request]:
        """The first that wait, as many as there is room for beside those that have begun."""
        window, width, count = list[Request](), self.width, len(self.active)
        for request in self.waiting:
            width, count = max(width, request.longest + self.slack), count + 1
            if count > self.max_num_seqs or count * width > self.max_tokens:
                break
            window.append(request)
        return window

    @property
    def rows_to_come(self) -> int:
        """How many rows decode as soon as all that fit have been read."""
        return len(self.active) + len(self.fitting)

    @property
    def prompt_reads(self) -> PromptReads:
        """What there was to read of prompts for every new token so far."""
        new_tokens = max(self.info.tokens, 1)
        return PromptReads((self.prompt_tokens - self.reused_tokens) / new_tokens, self.prompt_groups / new_tokens)

    def next_group(self, budget: float | int) -> tuple[list[Request], list[KnownPrefix | None]]:
        """The requests to read side by side next, about as much of which is unread, and what kept rows have of them."""
        window = self.fitting
        if window and self.can_share(window[0]):
            window = list(filter(self.can_share, window))
            window = window[: self.max_new_rows]
        else:
            window = window[:1]
        prefixes = [self.reusable(request) for request in window]
        pairs = zip(window, prefixes, strict=True)
        unread = [len(request.prompt) - (prefix.length if prefix else 0) for request, prefix in pairs]
        places = similar(unread, budget) if window else []
        return [window[place] for place in places], [prefixes[place] for place in places]

    def can_share(self, request: Request) -> bool:
        """Whether a prompt may be read beside others: one that is scored, seeded, or read again, is read alone."""
        is_free = request.num_prompt_logprobs is None and request.phase is Stage.WAITING and not request.is_seeded
        return is_free and not self.reads_whole

    def reusable(self, request: Request) -> KnownPrefix | None:
        """What a kept row has of a prompt, and is not read again.

        One with a seed is read from its beginning each time: in pieces of other lengths numbers are rounded otherwise.
        """
        is_answered = request.phase >= Stage.CATCHING_UP
        is_whole = request.is_seeded or (request.num_prompt_logprobs is not None and not is_answered)
        is_whole |= self.reads_whole
        prefix = None if is_whole else self.prefixes.find(request.text[:-1])
        if prefix is not None and self.draft is not None and self.draft.hidden_layers:
            prefix = prefix.for_head()
        return prefix if prefix and prefix.length else None

    def read(self, budget: float | int) -> int:
        """Let the target read on, or then the draft model, and return the number of tokens; join when both are done."""
        reading = self.reading
        assert reading is not None
        self.concerned, clock = reading.requests, Clock(self.config.synchronise)
        with clock.part(reading.model_name):
            count = reading.advance(budget)
        self.info.add_seconds(clock.seconds)
        if isinstance(reading, TargetReading):
            self.reading = reading = self.answer(reading) if reading.is_over else self.tell_progress(reading)
        if isinstance(reading, DraftReading) and reading.is_over(self.policy, self.rows_to_come):
            if reading.is_repeated:
                self.step_alone(reading)
            self.concerned = []  # with the others from here on
            self.join_rows(reading)
        self.concerned = []
        return count

    def tell_progress(self, reading: TargetReading) -> TargetReading:
        """Tell how much of prompts the target has read."""
        progress = zip(reading.requests, reading.tokens_read, strict=True)
        self.updates += [(request, Update(prompt_tokens_read=tokens)) for request, tokens in progress]
        return reading

    def answer(self, reading: TargetReading) -> DraftReading | None:
        """Tell what the target says of prompts, and draw the first new tokens if it says that too; who goes on."""
        has_to_step = reading.is_repeated and not reading.scores_last  # the first step comes below
        following = DraftReading(reading.requests, reading.state(), has_to_step)
        self.prompt_groups += not reading.is_repeated
        for request, reused in () if reading.is_repeated else zip(reading.requests, reading.reused, strict=True):
            self.prompt_tokens += len(request.prompt)
            self.reused_tokens += reused
            request.phase, end = (Stage.CATCHING_UP, None) if request.max_new_tokens else (Stage.ENDED, "length")
            answer = Update(end=end, prompt_logprobs=reading.prompt_logprobs, cached_tokens=reused)
            self.updates.append((request, answer))
        following.drop_ended()
        if reading.scores_last and following.requests:
            self.step_alone(following)
        return following if following.requests else None

    def step_alone(self, reading: DraftReading) -> None:
        """One step of rows that have not joined the running ones."""
        reading.state, _ = self.step_rows(reading.state, reading.requests)
        reading.drop_ended()

    def join_rows(self, reading: DraftReading) -> None:
        """Let rows decode with the running ones."""
        if reading.requests:
            state = self.state or reading.state
            for model in state.models:
                model.reserve(self.rows_to_come, 0)
            self.state = extend(state, reading.state) if self.state else state
        self.running, self.reading = [*self.running, *reading.requests], None
        for request in reading.requests:
            request.phase = Stage.DECODING

    # Rows decode

    def decode(self) -> None:
        """One step of the running rows; those that end leave."""
        if self.state is None:
            return
        self.state, record = self.step_rows(self.state, self.running)
        going = [row for row, request in enumerate(self.running) if not request.has_ended]
        self.keep_rows(going, record.faults)

    def step_rows(self, state: State, requests: list[Request]) -> tuple[State, StepRecord]:
        """One step of these requests."""
        measures = self.measures(state.steps)
        state, record = step(state, self.config, self.policy)
        clock = Clock(self.config.synchronise, record.seconds)
        with clock.part("rule"):
            add_logprobs(record)
        with clock.part("measure"):
            record.measured = measured_acceptance(self.config.scheme, record) if measures else {}
        self.info.add(record)
        self.on_record(record, requests)
        for row, request in enumerate(requests):
            self.pass_on(request, record, row)
        return state, record

    def measures(self, steps: int) -> bool:
        """Whether the step after so many is compared with the optimum: some are, and each at first, or while cheap."""
        every, first = self.config.measure, self.config.measure_first
        measures_each = bool(first) and (self.info.measured < first or self.info.is_measured_cheaply)
        return every > 0 and (measures_each or steps % every == 0)

    def pass_on(self, request: Request, record: StepRecord, row: int) -> None:
        """Give a request the tokens that a step has brought it, or the fault that ends it."""
        try:
            if row in record.faults:
                fault = record.faults[row]
                raise fault.at(request.index, fault.position)
            emitted, end = request.cut(record.emitted[row])
        except RowFault as fault:
            return self.fail(request, fault)
        tree, path = record.trees[row], record.walk_results[row].path
        update = Update(Step(emitted, tree.tokens, tree.parents, path, len(tree.levels) - 1), end)
        request.take(emitted, end is not None)
        # Nothing can fail from here on: either the request has its tokens and is told, or they come again.
        self.updates.append((request, update))
        self.info.tokens += len(emitted.tokens)

    def fail(self, request: Request, error: BaseException) -> None:
        """End a request with an error."""
        self.updates.append((request, Update(error=error)))
        request.phase = Stage.ENDED

    # Rows leave

    def drop_cancelled(self) -> None:
        """Drop the requests that were cancelled."""
        self.waiting = deque(request for request in self.waiting if not request.cancelled)
        if self.reading is not None and all(request.cancelled for request in self.reading.requests):
            self.reading = None
        self.keep_rows([row for row, request in enumerate(self.running) if not request.cancelled])

    def keep_rows(self, going: list[int], faulty: Collection[int] = ()) -> None:
        """Go on with some of the rows only; the caches of the others are kept while there is room."""
        if self.state is None or len(going) == len(self.running):
            return
        staying = len(going) + (len(self.reading.requests) if self.reading else 0)
        for row in set(range(len(self.running))).difference(going, faulty):
            self.keep_prefix(self.state, row, staying * self.width)
        order = close_gaps(going)  # which moves the fewest
        self.running = [self.running[row] for row in order]
        self.state = gather(self.state, order) if order else None

    def keep_prefix(self, state: State, index: int, taken: int) -> None:
        """Keep the caches of a row that leaves, if they fit beside the slots that are taken."""
        request, row, room = self.running[index], state.rows[index], self.max_tokens - taken
        tokens = request.text[: row.position]
        if self.max_tokens == math.inf or not 0 < len(tokens) <= room or not self.max_kept_rows:
            return
        self.prefixes.shrink(room - len(tokens), self.max_kept_rows - 1)
        try:
            if row.unread and state.draft is not None and state.draft.cost != "pass":  # then reading costs nothing
                state.draft.keep(index, row.unread)
                row.unread = []
            drafted = min(row.position - len(row.unread), len(tokens)) if state.draft is not None else 0
            target = state.target.fork(index, len(tokens), len(tokens))
            draft = state.draft.fork(index, drafted, drafted) if state.draft is not None and drafted else None
            self.prefixes.put(KeptRow(tokens, target, draft, drafted))
        except Exception as error:  # where memory ends, say: the prompt is read again, then
            LOG.warning("the cache of a row that has ended has not been kept", exc_info=error)

    # After a failure

    def take_back(self) -> list[Request]:
        """Take out the requests that a failure may concern, with their random numbers given back, and forget prefixes.

        Something that fails while prompts are read concerns these prompts; any other failure all that have begun.
        """
        requests = self.concerned or self.active
        if not self.concerned:
            self.running, self.state = [], None
        self.reading, self.concerned, self.prefixes = None, [], PrefixCache()
        for request in requests:
            request.random.give_back()
        return [request for request in requests if not (request.has_ended or request.cancelled)]

    def repeat(self, requests: list[Request]) -> None:
        """Read these again first, each alone, and let each step alone before it joins: that finds a faulty one."""
        self.waiting.extendleft(reversed(requests))

    def clear(self) -> list[Request]:
        """Take out all requests that have not ended."""
        requests = [request for request in self.requests if not request.has_ended]
        self.waiting, self.reading, self.running, self.state = deque(), None, [], None
        return requests


def paths_of(*models: Reader | None) -> int | None:
    """The most paths of all rows together that all of these models tell apart; None for any number."""
    counts = [model.sequences for model in models if model is not None and model.sequences is not None]
    return min(counts, default=None)


def rows_within(rows: float | int, target: Reader, draft: Reader | None, limits: PolicyLimits) -> float | int:
    """So many rows, or as many as the models can tell apart with their trees."""
    if (paths := paths_of(target, draft)) is None:
        return rows
    fitting = next(count for count in range(paths, -1, -1) if count == 0 or limits.paths(count) <= paths)
    if not fitting:
        raise AdviceError(f"a tree has {limits.paths(1)} paths and the model tells {paths} apart; use a smaller tree")
    if fitting < rows < math.inf:
        LOG.warning("%d rows are decoded side by side, and not %d: their trees have the %d paths", fitting, rows, paths)
    return min(rows, fitting)


def close_gaps(staying: Sequence[int]) -> list[int]:
    """An order of the rows that stay in which the fewest change their index: the last ones fill the gaps.

    >>> close_gaps([0, 1, 3, 4])
    [0, 1, 4, 3]
    """
    count, stays = len(staying), set(staying)
    last = sorted((row for row in staying if row >= count), reverse=True)
    return [row if row in stays else last.pop(0) for row in range(count)]
