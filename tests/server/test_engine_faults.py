"""An engine that cannot die silently: a fault in a turn ends one row at most, and the others notice nothing."""

import gc
import logging
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
import torch
from decoded import readers, tables, tiny
from heard import Heard
from plans import costs, rates
from serving import GOOD, check_refused, events, serving, toy, until
from test_engine import alone, config_for

import multidraft
import multidraft as md
from multidraft.autotune.growing_policy import Growing
from multidraft.decoding import state as states
from multidraft.decoding.state import DecodeConfig, Randomness
from multidraft.models.huggingface.kv_cache import TreeCache
from multidraft.models.prefix_models import TableModel
from multidraft.sampling.settings import Sampling
from multidraft.server import Limits, Refused
from multidraft.server.app import build
from multidraft.server.engine import MAX_FAILURES, Engine

HOME = str(Path(multidraft.__file__).parent)
UNTOUCHED = set(
    "send_updates flush recover take_back repeat note notice_progress blame <genexpr>".split()
)  # faults of owners, or while one is dealt with
FILES = ("engine", "batch", "prefill", "request", "prefix_cache", "step", "state")
OUTSIDE = (
    "engine.Engine.__init__",
    "engine.Engine.run",
    "engine.Engine.work",
    "batch.Batch.__init__",
)  # of any turn
LAST = "batch.Batch.clear"  # with which an engine's work is over
ROWS, NEW = 8, 4
ALL = [pytest.param(models, 1, marks=pytest.mark.slow) for models in (tables, tiny)]


class Injected(RuntimeError):
    """A fault."""


@dataclass
class Injection:
    """Raises before the body of the n-th call of a function of ours, of all or of one; counts calls by function."""

    at: int
    function: str | None = None

    def __post_init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.is_done = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if not code.co_filename.startswith(HOME) or code.co_name in UNTOUCHED:
            return
        name = f"{Path(code.co_filename).stem}.{code.co_qualname}"
        if name == LAST:
            return sys.settrace(None)
        self.calls[name] += 1
        count = self.calls[name] if self.function else self.calls.total()
        if count == self.at and self.function in (None, name):
            self.is_done = True
            sys.settrace(None)
            raise Injected(name)


def rows() -> list[Heard]:
    """Prompts of several lengths, some the beginning of others, at two temperatures."""
    prompts = [[0, 3, 1, 4, 2][: 1 + seed % 5] + [seed % 3] * (seed % 4) for seed in range(ROWS)]
    return [Heard(prompt, NEW, seed, sampling=Sampling(0.7 + 0.3 * (seed % 2))) for seed, prompt in enumerate(prompts)]


def run(models: Callable, heard: list[Heard], injection: Injection | None = None, limit: int = ROWS) -> Engine:
    """An engine that works in this thread until all have ended."""
    engine = Engine(*readers(*models()), *config_for("2x1"), Limits(rows=limit, prefill=8))
    engine.batch.add(row.request for row in heard)
    engine.closing = True
    try:
        sys.settrace(injection)
        engine.run()
    finally:
        sys.settrace(None)
    return engine


def calls(models: Callable, limit: int = ROWS) -> Counter[str]:
    """How often each function of ours is called in such a run, after one in which some are called once more."""
    for injection in (Injection(0), Injection(0)):
        run(models, rows(), injection, limit)
    return injection.calls


def check(models: Callable, injection: Injection, limit: int = ROWS, heard: list[Heard] | None = None) -> None:
    """No row hangs; all but one at most have their tokens; what they took is given back."""
    heard, caches, make_cache = heard or rows(), list[weakref.ref](), TreeCache.__init__

    def noted(cache: TreeCache, *arguments: object) -> None:
        make_cache(cache, *arguments)
        caches.append(weakref.ref(cache))

    TreeCache.__init__ = noted  # type: ignore[method-assign]
    try:
        engine = run(models, heard, injection, limit)
    finally:
        TreeCache.__init__ = make_cache  # type: ignore[method-assign]
    assert injection.is_done
    assert engine.fault is None
    batch = engine.batch
    assert (batch.running, batch.state, batch.tokens_in_cache) == ([], None, 0)
    failed = [row for row in heard if row.events[-1].error]
    assert len(failed) <= 1
    assert all(isinstance(row.events[-1].error, Refused) and row.events[-1].error.status == 500 for row in failed)
    assert all(row.events[-1].end for row in heard if row not in failed)
    assert [row.tokens for row in heard if row not in failed] == [
        tokens for row, tokens in zip(heard, expected(models), strict=True) if row not in failed
    ]
    assert engine.faults <= 1
    batch.prefixes.rows.clear()
    gc.collect()
    held = [cache() for cache in caches if cache() is not None]
    assert not any(cache.lengths for cache in held)  # the models that were passed have one that is empty


KNOWN: dict[Callable, list[list[int]]] = {}


def expected(models: Callable) -> list[list[int]]:
    """The tokens of each row alone."""
    if models not in KNOWN:
        KNOWN[models] = alone(models, *rows(), tree="2x1")
    return KNOWN[models]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(("models", "stride"), [(tables, 19), *ALL])
def test_a_fault_at_any_call_of_the_engine_harms_one_row_at_most(models, stride, caplog):
    """In each function of the engine's own files, or some: its first call, or one in the middle."""
    caplog.set_level(logging.CRITICAL + 1)
    functions = [(name, count) for name, count in calls(models).items() if name.split(".")[0] in FILES]
    functions = [(name, count) for name, count in functions if not name.startswith(OUTSIDE)]
    called_in_threes = calls(models, 3)
    assert len(functions) > 40
    assert set(FILES) <= {path.stem for path in Path(HOME).rglob("*.py")}
    for number, (name, count) in enumerate(functions[::stride]):
        is_first = number % 2 == 0
        in_threes = number % 6 == 0 and name in called_in_threes  # not all functions are: prompts may wait for others
        check(models, Injection(1 if is_first else 1 + count // 2, name), 3 if in_threes else ROWS)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("function", ["logprobs.add_logprobs", "metrics.measured_acceptance", "metrics.Info.add"])
def test_what_is_reported_of_a_step_may_fail_when_its_caches_are_written(function, caplog):
    """Nobody has been told its tokens, so they are drawn again with the same numbers."""
    caplog.set_level(logging.CRITICAL + 1)
    check(tables, Injection(3, function))


@pytest.mark.usefixtures("unchecked")
def test_a_first_step_that_fails_is_repeated_without_drafts(caplog):
    """That of two rows whose prompts were read side by side."""
    caplog.set_level(logging.CRITICAL + 1)
    check(tiny, Injection(1, "batch.Batch.step_alone"))


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("models", [tables, tiny])
def test_a_fault_at_any_call_of_anything_harms_one_row_at_most(models, caplog):
    """A hundred calls of all functions of ours."""
    caplog.set_level(logging.CRITICAL + 1)
    for at in range(100, total := calls(models).total(), total // 100):
        check(models, Injection(at))


class Spent(Randomness):
    """Wrong: numbers are not given back."""

    def give_back(self) -> None:
        self.taken.clear()


@pytest.mark.usefixtures("unchecked")
def test_numbers_that_are_not_given_back_are_caught(caplog):
    """The broken twin goes on with other random numbers, so its rows get other tokens than alone."""
    heard = rows()
    for row in heard:
        row.request.random = Spent(row.request.generator)
    with pytest.raises(AssertionError):
        check(tables, Injection(3, "step.emit"), heard=heard)


def test_a_fault_is_logged_once(caplog):
    run(tables, rows(), Injection(2, "verify.verify"))
    assert [record.levelname for record in caplog.records] == ["ERROR"]


def test_a_row_that_makes_every_step_fail_ends_alone(caplog):
    """Whatever it is: here the token that only this row has been asked to continue."""

    def spoilt(prefix, conditional):
        return 1 / 0 if prefix[0] == 4 else conditional(prefix)

    def models() -> tuple:
        target, draft = tables()
        conditional = target.conditional
        target.conditional = lambda prefix: spoilt(prefix, conditional)
        return target, draft

    heard = [Heard([1, 2], 9, 3), Heard([4, 2], 9, 1), Heard([4, 3], 9, 1), Heard([4, 4], 9, 1), Heard([0], 9, 1)]
    engine = run(models, heard)
    assert [bool(row.events[-1].error) for row in heard] == [False, True, True, True, False]
    assert (engine.fault, engine.failures) == (None, 0)
    good = [heard[0], heard[-1]]
    assert [row.tokens for row in good] == alone(tables, *good, tree="2x1")


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("fails", [True, False])
def test_a_draft_model_that_always_fails_is_no_row_s_fault(fails, monkeypatch, caplog):
    """Nor with trees that end with their rows: one token is too few to ask it."""
    caplog.set_level(logging.CRITICAL + 1)
    target, draft = readers(*tiny())
    policy = Growing(32, 4)
    policy.price(rates(0.9), costs(10.0, 0.1, 0.1), 0.1)
    engine = Engine(
        target, draft, DecodeConfig(md.scheme("anchored:lorenz")), policy, Limits(rows=4, tokens_in_cache=999)
    )
    read = type(draft)._read

    def failing_read(self, tokens, parents, scored):
        if scored != "none" and self.model is draft.model and fails:
            raise RuntimeError("broken")
        return read(self, tokens, parents, scored)

    monkeypatch.setattr(type(draft), "_read", failing_read)
    assert engine.answers_a_token() is not fails


def test_where_nothing_is_answered_any_more_the_engine_ends(caplog):
    """Rows that wait hear of it; each has an error of its own, because one that is shared grows as it is raised."""
    heard = rows()
    engine = run(lambda: (TableModel(lambda prefix: 1 / 0, 5), tables()[1]), heard)
    assert isinstance(engine.fault, ZeroDivisionError)
    errors = [row.events[-1].error for row in heard]
    assert Counter(error.status for error in errors) == {500: MAX_FAILURES - 1, 503: ROWS - MAX_FAILURES + 1}
    assert len({id(error) for error in errors}) == ROWS


def test_a_process_whose_engine_has_died_ends_and_says_why(caplog):
    service = toy()
    with serving(lambda: build(service)) as (client, server):
        until(lambda: server.app is not None)
        assert client.get("/health").json() == {"status": "ok", "faults": 0}
        service.engine.target.conditional = lambda prefix: 1 / 0
        headers = {"x-request-id": "mine"}
        check_refused(first := client.post("/v1/completions", json=GOOD, headers=headers), 500)
        assert first.json()["error"]["message"].endswith("(request mine)")
        assert client.get("/health").json()["faults"] > 0
        assert events(client, "/v1/completions", GOOD)[-1]["error"]["code"] in (500, 503)
        until(lambda: server.should_exit)
    assert "the engine has died (ZeroDivisionError: division by zero)" in str(server.fault)


def test_random_numbers_come_again_once_they_are_given_back():
    numbers, twin = (Randomness(torch.Generator().manual_seed(7)) for _ in range(2))
    first = [numbers.take(count) for count in (3, 1, states.RANDOM_BLOCK_NUMBERS, 5)]
    numbers.give_back()
    assert [numbers.take(count) for count in (3, 1, states.RANDOM_BLOCK_NUMBERS, 5)] == first
    assert [twin.take(count) for count in (3, 1, states.RANDOM_BLOCK_NUMBERS, 5)] == first
