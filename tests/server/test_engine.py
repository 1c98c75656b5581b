"""The engine: whatever comes, goes and fails beside a row, its tokens are those that it gets alone."""

import random
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tiny import tiny_model
from transformers import LogitsProcessor

import multidraft as md
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.prefill import CHUNK
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.errors import AdviceError
from multidraft.models.table import TableModel, random_table
from multidraft.sampling.processors import Processors
from multidraft.sampling.settings import Sampling
from multidraft.server import engine as engines
from multidraft.server import rows as rows_module
from multidraft.server.doors import ClosedError, FullError
from multidraft.server.engine import Engine
from multidraft.server.limits import Limits
from multidraft.server.rows import Ended, Event, Failed, Job, Kept, PrefixCache, Read, Reading, Stepped

SIZE, PATIENCE = 5, 60


def tables() -> tuple:
    return TableModel(random_table(SIZE, 3, 1), SIZE), TableModel(random_table(SIZE, 3, 2), SIZE)


def tiny() -> tuple:
    return tiny_model("llama"), tiny_model("gpt2")


class Heard:
    """A job and all that its owner hears."""

    def __init__(self, prompt: list[int], new_tokens: int, seed: int = 0, **settings):
        self.events: list[Event] = []
        self.over = threading.Event()
        self.after: dict[int, Callable[[], None]] = {}  # what to do after so many tokens
        self.seed = seed
        generator = torch.Generator().manual_seed(seed)
        self.job = Job(prompt, new_tokens, self.hear, generator=generator, **settings)

    def hear(self, event: Event) -> None:
        self.events.append(event)
        for count in [count for count in self.after if len(self.job.tokens) >= count]:
            self.after.pop(count)()
        if isinstance(event, Ended | Failed):
            self.over.set()

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events if isinstance(event, Stepped) for token in event.new.tokens]

    def end(self) -> Event:
        assert self.over.wait(PATIENCE)
        return self.events[-1]


def config_for(tree: str = "3x2x1") -> DecodeConfig:
    return DecodeConfig(md.scheme("anchored:lorenz"), StaticTree(Tree.parse(tree)))


@pytest.fixture
def engine():
    """Makes engines, and stops them."""
    made: list[Engine] = []

    def make(models: Callable = tables, **limits: int) -> Engine:
        made.append(Engine(*models(), config_for(), Limits(**limits)))
        made[-1].start()
        return made[-1]

    yield make
    for each in made:
        each.close()


def alone(models: Callable, heard: Heard, tree: str = "3x2x1") -> list[int]:
    job = heard.job
    settings = dict(temperature=job.sampling.temperature, tree=tree, eos_token_id=list(job.ends))
    generator = [torch.Generator().manual_seed(heard.seed)]
    rows, _ = md.generate(*models(), [job.prompt], max_new_tokens=job.new_tokens, generator=generator, **settings)
    return rows[0].tolist()


def a_job(chance: random.Random, seed: int) -> Heard:
    prompt = [chance.randrange(SIZE) for _ in range(chance.choice([1, 2, 7, 20]))]
    sampling = Sampling(temperature=chance.choice([0, 0.7, 1.0]))
    return Heard(prompt, chance.randint(1, 12), seed, sampling=sampling, ends=set(chance.choice([[], [3]])))


@pytest.mark.parametrize(("models", "schedule"), [(tables, 0), (tiny, 1)])
def test_tokens_are_those_of_a_row_alone_however_others_come_and_go(engine, models, schedule):
    """Rows arrive when others have got so many tokens, and some are cancelled so; few fit at a time."""
    chance = random.Random(schedule)
    server = engine(models, rows=3, prefill=8)
    rows = [a_job(chance, seed) for seed in range(10)]
    gone = chance.sample(range(10), 3)
    for number, row in enumerate(rows):
        if number in gone:
            row.after[chance.randint(0, 4)] = lambda job=row.job: setattr(job, "cancelled", True)
        if number % 2 == 0:  # the next one comes when this one has so many tokens
            row.after[0] = lambda job=rows[number + 1].job: server.submit([job])
    server.submit([row.job for row in rows[::2]])
    for number, row in enumerate(rows):
        if number not in gone:
            assert isinstance(row.end(), Ended)
            assert row.tokens == alone(models, row)


def test_the_comparison_catches_rows_that_swap_places(engine, monkeypatch):
    joined = engines.join

    def swapped(*states):
        state = joined(*states)
        state.rows.reverse()
        return state

    monkeypatch.setattr(engines, "join", swapped)
    server = engine(tables)
    rows = [Heard([4, token], 12, seed=token) for token in range(3)]
    server.submit([row.job for row in rows])
    assert [row.end() and row.tokens for row in rows] != [alone(tables, row) for row in rows]


def test_a_long_prompt_is_read_between_the_steps_of_others(engine):
    """Of the short row's tokens many come before the long prompt has been read."""
    server, order = engine(prefill=4), list[str]()
    long, short = Heard([0, 1] * 100, 1), Heard([1], 40)
    for row, name in ((long, "long"), (short, "short")):
        row.hear = lambda event, name=name, hear=row.job.hear: (order.append(name), hear(event))
        row.job.hear = row.hear
    server.submit([short.job, long.job])
    assert isinstance(long.end(), Ended)
    assert isinstance(short.end(), Ended)
    assert order.index("long") > order.index("short") + 5


def test_the_events_of_a_step_are_one_message(engine):
    """However many rows there are."""
    server, messages = engine(), list[list]()
    rows = [Heard([1, token], 9) for token in range(4)]
    server.deliver = lambda told, deliver=server.deliver: (
        messages.append([type(event) for _, event in told]),
        deliver(told),
    )
    server.submit([row.job for row in rows])
    for row in rows:
        assert isinstance(row.end(), Ended)
    assert max(message.count(Stepped) for message in messages) == 4
    assert len(messages) < sum(len(row.events) for row in rows) / 2


def test_a_prompt_of_one_token_has_nothing_to_score(engine):
    """Where models have no weights, too, which cannot say anything of no token."""
    row = Heard([2], 3, prompt_logprobs=1)
    engine().submit([row.job])
    assert row.end() == Ended("length")
    assert row.events[0] == Read([])


def test_prompts_are_scored_as_the_model_scores_them(engine):
    prompt = [0, 1, 4, 2, 3, 3, 1]
    row = Heard(prompt, 0, prompt_logprobs=2)
    engine(prefill=3).submit([row.job])
    assert row.end() == Ended("length")
    (read,) = [event for event in row.events if isinstance(event, Read)]
    table = random_table(SIZE, 3, 1)
    for place, entry in enumerate(read.logprobs, 1):
        law = table(tuple(prompt[:place]))
        assert entry.logprob == pytest.approx(float(law[prompt[place]].log()), abs=1e-6)
        assert entry.top[0][1] == pytest.approx(float(law.max().log()), abs=1e-6)
    assert len(read.logprobs) == len(prompt) - 1


class Fails(LogitsProcessor):
    """Works until it does not."""

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] > 4:
            raise ZeroDivisionError("in a processor")
        return scores


class ForbidsAll(LogitsProcessor):
    """Leaves no token."""

    def __call__(self, input_ids, scores):
        return scores - torch.inf


class Makes(LogitsProcessor):
    """Puts a number in the place of one logit."""

    def __init__(self, number: float):
        self.number = number

    def __call__(self, input_ids, scores):
        return torch.where(torch.arange(scores.shape[-1]) == 2, self.number, scores)


@pytest.mark.parametrize("processor", [Fails(), ForbidsAll(), Makes(torch.inf), Makes(torch.nan)])
def test_an_exception_in_one_row_ends_it_alone(engine, processor):
    bad = Heard([1, 2], 9, sampling=Sampling(before=Processors([processor])))
    good, server = Heard([1, 2], 9, seed=3), engine()
    server.submit([good.job, bad.job])
    assert isinstance(bad.end(), Failed)
    assert isinstance(good.end(), Ended)
    assert good.tokens == alone(tables, good)


def test_a_step_that_fails_ends_its_rows_and_the_engine_goes_on(engine, monkeypatch):
    server, first, second = engine(), Heard([1, 2], 9), Heard([1, 2], 9)

    def fails(*_):
        raise RuntimeError("out of something")

    with monkeypatch.context() as patch:
        patch.setattr(engines, "step", fails)
        server.submit([first.job])
        assert isinstance(first.end(), Failed)
    server.submit([second.job])
    assert isinstance(second.end(), Ended)


def test_what_is_too_much_is_refused(engine):
    server = engine(tokens_in_cache=100, rows=1, queue=1)
    with pytest.raises(AdviceError, match="more than this server's cache"):
        server.submit([Heard([1] * 50, 60).job])
    held = Heard([1], 40)
    gate = threading.Event()
    held.after[0] = lambda: gate.wait(PATIENCE)
    server.submit([held.job])
    while not server.running and not held.events:
        pass
    server.submit([Heard([1], 1).job])
    with pytest.raises(FullError):
        server.submit([Heard([1], 1).job])
    gate.set()
    held.end()


def test_rows_take_as_much_room_as_the_longest():
    server = Engine(tiny_model("llama"), None, config_for(), Limits(tokens_in_cache=160))  # a row needs 34 more
    server.waiting.extend(Heard([1] * prompt, 5).job for prompt in (30, 3, 3))
    while reading := server.admit():
        server.running.append(reading.job)
        server.reading = None
    assert (len(server.running), server.tokens_in_cache) == (2, 2 * 69)


def test_closing_lets_rows_end_within_its_patience_and_takes_no_more(engine):
    server, patient = engine(), Heard([1], 30)
    server.submit([patient.job])
    server.close(PATIENCE)
    assert patient.events[-1] == Ended("length")
    assert not server.alive
    with pytest.raises(ClosedError):
        server.submit([Heard([1], 1).job])


def test_closing_ends_what_does_not_end_in_time(engine):
    server, endless = engine(), Heard([1], 10_000)
    server.submit([endless.job])
    server.close(0)
    assert isinstance(endless.end(), Failed)


def test_a_dead_engine_says_so_to_everybody(engine, monkeypatch):
    server, row = engine(), Heard([1], 30)
    monkeypatch.setattr(server, "turn", lambda: 1 / 0)
    server.submit([row.job])
    assert isinstance(row.end(), Failed)
    server.thread.join(PATIENCE)
    assert not server.alive


class Rests(StaticTree):
    """Drafts nothing at present."""

    rests = True


def test_while_nothing_is_drafted_the_draft_model_need_not_read_a_prompt():
    """What it has not read is as good as read: with drafts that begin later, the law's own tokens come."""
    tree, job = Tree.parse("2x1"), Heard([0, 3, 1, 4, 2], 9).job
    read = Reading(job, *tiny(), replace(config_for(), policy=Rests(tree)), PrefixCache())
    while not read.is_over:
        read.advance(2)
    assert read.state.rows[0].unread == [0, 3, 1, 4]
    long = Reading(Heard([0] * (CHUNK + 2), 4).job, *tiny(), read.config, PrefixCache())
    while long.state is None:
        long.advance(CHUNK)
    assert not long.is_over
    state, found = read.state, list[int]()
    with torch.inference_mode():
        while len(found) < 9:
            state, record = step(state, config_for("2x1"))
            found += record.emitted[0].tokens
    heard = Heard(job.prompt, 9)
    assert found[:9] == alone(tiny, heard, "2x1")


# What has been read before is not read again

PROMPT = [0, 3, 1, 4, 2, 2, 0, 1, 3, 3, 4, 1]


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """The sizes of all pieces of prompts that the target and the draft model read."""
    sizes: list[int] = []

    def counting(model, piece, *settings, read=rows_module.read):
        sizes.append(len(piece))
        return read(model, piece, *settings)

    monkeypatch.setattr(rows_module, "read", counting)
    return sizes


def everything(models, prompt: list[int]) -> int:
    """What both read of a prompt: all but its last token; where a pass has a price that one as well."""
    return 2 * (len(prompt) - (models is tables))


@pytest.fixture
def run():
    """Runs jobs one after another in one engine, whose cache has room for them."""
    made: list[Engine] = []

    def call(models, *rows: Heard, **limits: int) -> Engine:
        engine = Engine(*models(), config_for(), Limits(**limits))
        made.append(engine)
        engine.start()
        for row in rows:
            engine.submit([row.job])
            assert isinstance(row.end(), Ended)
        return engine

    yield call
    for engine in made:
        engine.close()


@pytest.mark.parametrize("models", [tables, tiny])
def test_the_next_turn_reads_only_what_is_new(run, read, models):
    engine = run(models, first := Heard(PROMPT, 9, 1))
    assert sum(read) == everything(models, PROMPT)
    read.clear()
    engine.submit([(second := Heard([*PROMPT, *first.tokens, 2, 0, 4], 8, 2)).job])
    assert isinstance(second.end(), Ended)
    assert [first.tokens, second.tokens] == [alone(models, first), alone(models, second)]
    lag = sum(read) - (everything(models, second.job.prompt) - 2 * engine.reused_tokens)  # of the draft model
    assert 0 <= lag <= 1
    assert sum(read) / 2 <= 3 + 4  # what is new, and of the tokens before it a step's at most: one is never read


def differing(place: int) -> Heard:
    """A prompt that differs from the usual one in one token."""
    prompt = [*PROMPT[:place], (PROMPT[place] + 1) % SIZE, *PROMPT[place + 1 :]]
    return Heard(prompt, 8, 3, sampling=Sampling(temperature=0.7))


@pytest.mark.parametrize("models", [tables, tiny])
@pytest.mark.parametrize("place", [1, 5, len(PROMPT) - 2, len(PROMPT) - 1])
def test_nothing_is_reused_beyond_a_token_that_differs(run, read, models, place):
    other = differing(place)
    engine = run(models, Heard(PROMPT, 4, 1), other)
    assert engine.reused_tokens == place
    assert sum(read) == 2 * everything(models, PROMPT) - 2 * place
    assert other.tokens == alone(models, other)


def test_the_comparison_catches_what_is_reused_beyond_it(run, monkeypatch):
    """The models remember another token, on which what they say depends."""
    monkeypatch.setattr(rows_module, "common", lambda *lists, common=rows_module.common: common(*lists) + 1)
    other = differing(len(PROMPT) - 3)
    run(tables, Heard(PROMPT, 4, 1), other)
    assert other.tokens != alone(tables, other)


def test_prompts_that_are_scored_are_read_as_a_whole(run, read):
    scored = Heard(PROMPT, 1, prompt_logprobs=1)
    run(tables, Heard(PROMPT, 1), scored)
    assert sum(read) == 4 * (len(PROMPT) - 1)
    assert len(scored.events[0].logprobs) == len(PROMPT) - 1


def test_what_is_kept_stays_within_the_caches_bound(run):
    """Rows have precedence: what they need, the kept ones leave."""
    rows = [Heard([seed % SIZE, seed // SIZE, *PROMPT], 4, seed) for seed in range(20)]
    engine = run(tables, *rows, tokens_in_cache=100)
    engine.close(PATIENCE)
    assert 30 < engine.prefixes.tokens <= 100
    engine = run(tables, Heard(PROMPT, 4), large := Heard([4] * 60, 3), tokens_in_cache=100)
    engine.close(PATIENCE)
    assert [row.tokens for row in engine.prefixes.rows] == [([4] * 60 + large.tokens)[: engine.prefixes.tokens]]


def test_a_row_that_cannot_be_kept_harms_nobody(run, monkeypatch):
    monkeypatch.setattr(TableModel, "part", lambda *_: 1 / 0)
    rows = [Heard(PROMPT, 4, 1), Heard(PROMPT, 4, 1)]
    assert run(tables, *rows).prefixes.rows == []
    assert rows[0].tokens == rows[1].tokens


def kept(*tokens: int) -> Kept:
    return Kept(list(tokens), TableModel(random_table(SIZE, 1, 1), SIZE), None, 0)


def test_the_least_recently_used_leaves_first():
    first, second, third, many = kept(1, 2, 3), kept(2, 2, 2), kept(3, 1), PrefixCache()
    for row in (first, second, third):
        many.put(row)
    assert many.find([1, 2, 4, 4]) == (first, 2)
    assert many.find([4]) is None
    many.shrink(5)
    assert many.rows == [third, first]
    many.put(longer := kept(1, 2, 3, 4))
    assert many.rows == [third, longer]  # which the first one is the beginning of
