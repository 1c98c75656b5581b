"""What has been read before is not read again, and nothing else changes: the tokens are those of a row alone."""

import pytest
from test_engine import PATIENCE, SIZE, Heard, alone, config_for, tables, tiny

from multidraft.models.table import TableModel, random_table
from multidraft.sampling.settings import Sampling
from multidraft.server import rows as parts
from multidraft.server.engine import Engine
from multidraft.server.limits import Limits
from multidraft.server.rows import Ended, Kept, PrefixCache

PROMPT = [0, 3, 1, 4, 2, 2, 0, 1, 3, 3, 4, 1]


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """The sizes of all pieces of prompts that the target and the draft model read."""
    sizes: list[int] = []

    def counting(model, piece, *settings, read=parts.read):
        sizes.append(len(piece))
        return read(model, piece, *settings)

    monkeypatch.setattr(parts, "read", counting)
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
    monkeypatch.setattr(parts, "common", lambda *lists, common=parts.common: common(*lists) + 1)
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
