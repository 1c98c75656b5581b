"""The engine: rows fail alone, long prompts wait, and what has been read before is not read again."""

from collections.abc import Callable

import pytest
import torch
from decoded import readers, tables, tiny
from heads import head_of
from heard import MAX_WAIT_SECONDS, Heard
from tiny import tiny_model
from transformers import LogitsProcessor

import multidraft as md
from multidraft.decoding import prefill
from multidraft.decoding.policy import Outlook, PromptReads, StaticTree, TreePolicy
from multidraft.decoding.prefill import DraftReading, TargetReading
from multidraft.decoding.prefix_cache import KeptRow, KnownPrefix, PrefixCache
from multidraft.decoding.record import StepRecord
from multidraft.decoding.request import Update
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.step import step
from multidraft.decoding.tree import Tree
from multidraft.models.huggingface.weight_marks import ModelMark
from multidraft.models.prefix_models import TableModel
from multidraft.sampling.processors import Processors
from multidraft.sampling.settings import Sampling
from multidraft.server import Limits, Refused
from multidraft.server.engine import Engine

SIZE = 5


def config_for(tree: str = "3x2x1") -> tuple[DecodeConfig, TreePolicy]:
    return DecodeConfig(md.scheme("anchored:lorenz")), StaticTree(Tree.parse(tree))


def ask(server: Engine, *rows: Heard) -> list[Update]:
    """How rows end that are asked for together."""
    server.submit([row.request for row in rows])
    return [row.end() for row in rows]


@pytest.fixture
def engine():
    """Makes engines, which run some rows one after another; and stops them."""
    engines: list[Engine] = []

    def make(models: Callable = tables, *rows: Heard, prefixes: PrefixCache | None = None, **limits: int) -> Engine:
        engines.append(Engine(*readers(*models()), *config_for(), Limits(**limits)))
        if prefixes is not None:
            engines[-1].batch.prefixes, engines[-1].batch.mark = prefixes, ModelMark([])
        engines[-1].start()
        for row in rows:
            assert ask(engines[-1], row)[0].end
        return engines[-1]

    yield make
    for started in engines:
        started.close()


def alone(models: Callable, *heard: Heard, tree: str = "3x2x1") -> list[list[int]]:
    """The tokens of rows that are generated one by one."""
    tokens_of_rows = []
    for request, seed in ((row.request, row.seed) for row in heard):
        settings = dict(temperature=request.sampling.temperature, tree=tree, eos_token_id=list(request.stop.tokens))
        generator = [torch.Generator().manual_seed(seed)]
        rows, _ = md.generate(
            *models(), [request.prompt], max_new_tokens=request.max_new_tokens, generator=generator, **settings
        )
        tokens_of_rows.append(rows[0].tolist())
    return tokens_of_rows


def test_a_long_prompt_is_read_between_the_steps_of_others(engine):
    """Of the short row's tokens many come before the long prompt has been read."""
    long, short, before = Heard([0, 1] * 100, 1), Heard([1], 40), list[int]()
    long.after[0] = lambda: before.append(len(short.tokens))
    ask(engine(prefill=4), short, long)
    assert before[0] > 5


def test_the_events_of_a_step_are_one_message(engine):
    """However many rows there are."""
    server, messages, rows = engine(), list[list](), [Heard([1, token], 9) for token in range(4)]
    server.deliver = lambda message, deliver=server.deliver: (messages.append(message), deliver(message))
    ask(server, *rows)
    assert max(sum(event.step is not None for _, event in message) for message in messages) == 4
    assert len(messages) < sum(len(row.events) for row in rows) / 2


WORST = {
    "fails late": lambda ids, scores: scores / (ids.shape[1] <= 4 or 1 // 0),
    "nan": lambda _, scores: scores * torch.nan,
}


@pytest.mark.parametrize("worst", WORST.values(), ids=WORST)
def test_an_exception_in_one_row_ends_it_alone(engine, worst):
    spoils = type("Spoils", (LogitsProcessor,), {"__call__": lambda _, *arguments: worst(*arguments)})()
    bad = Heard([1, 2], 9, sampling=Sampling(before=Processors([spoils])))
    good = Heard([1, 2], 9, seed=3)
    assert [bool(end.error) for end in ask(engine(), good, bad)] == [False, True]
    assert [good.tokens] == alone(tables, good)


def test_rows_take_as_much_room_as_the_longest():
    server = Engine(
        *readers(tiny_model("llama"), None), *config_for(), Limits(tokens_in_cache=160)
    )  # a row needs 34 more
    server.batch.add(Heard([1] * length, 5).request for length in (30, 3, 3))
    while server.batch.admit(99):
        server.batch.running += server.batch.reading.requests
        server.batch.reading = None
    assert (len(server.batch.running), server.batch.tokens_in_cache) == (2, 2 * 69)


@pytest.mark.parametrize(("length", "patience", "end"), [(30, MAX_WAIT_SECONDS, "length"), (10_000, 0, None)])
def test_closing_lets_rows_end_within_its_patience_and_takes_no_more(engine, length, patience, end):
    server, row = engine(), Heard([1], length)
    server.submit([row.request])
    server.close(patience)
    assert (row.events[-1].end, bool(row.events[-1].error)) == (end, end is None)
    assert not server.alive
    with pytest.raises(Refused, match="stopped"):
        server.submit([Heard([1], 1).request])


class Rests(StaticTree):
    """Drafts nothing at present."""

    def begin(self, rows: int, prompt_reads: PromptReads | None = None) -> Outlook:
        return Outlook(model_rests=True)


class NotedReads(StaticTree):
    """Notes what it is told of prompts."""

    def __init__(self):
        super().__init__(Tree.parse("1"))
        self.reads, self.steps = list[PromptReads](), 0

    def begin(self, rows: int, prompt_reads: PromptReads | None = None) -> Outlook:
        self.reads += [prompt_reads] if prompt_reads else []
        return Outlook(plain_seconds=1.0)

    def observe(self, record: StepRecord) -> None:
        self.steps += 1


def test_a_policy_is_told_before_each_step_what_prompts_cost_the_draft_model():
    """Told while prompts waited alone, it took them for free soon after, and drafted at 0.64 of plain speed."""
    policy, row = NotedReads(), Heard([0, 3, 1, 4, 2], 40)
    server = Engine(*readers(*tables()), config_for()[0], policy, Limits())
    server.start()
    assert ask(server, row)[0].end
    server.close()
    assert len(policy.reads) >= policy.steps > 9
    assert all(read.tokens > 0 for read in policy.reads[1:])
    assert server.outlook.plain_seconds == 1.0


def test_while_nothing_is_drafted_the_draft_model_need_not_read_a_prompt():
    """What it has not read is as good as read: with drafts that begin later, the law's own tokens come."""
    emitted_tokens = list[int]()
    heard = Heard([0, 3, 1, 4, 2], 9)
    reading = TargetReading([heard.request], *readers(*tiny()), capacity=99, scores_last=True)
    reading.advance(9)
    state = reading.state()
    is_over = DraftReading([heard.request], state, is_repeated=False).is_over(Rests(Tree.parse("2x1")), 1)
    assert (reading.is_over, is_over, state.rows[0].unread) == (True, True, [0, 3, 1, 4])
    with torch.inference_mode():
        while len(emitted_tokens) < 9:
            state, record = step(state, *config_for("2x1"))
            emitted_tokens += record.emitted[0].tokens
    assert [emitted_tokens[:9]] == alone(tiny, heard, tree="2x1")


# What has been read before is not read again

PROMPT = [0, 3, 1, 4, 2, 2, 0, 1, 3, 3, 4, 1]


@pytest.fixture
def read(monkeypatch) -> list[int]:
    """The sizes of all pieces of prompts that the target and the draft model read."""
    sizes: list[int] = []

    def counting(model, pieces, scored, read=prefill.read):
        sizes.append(sum(map(len, pieces)))
        return read(model, pieces, scored)

    monkeypatch.setattr(prefill, "read", counting)
    return sizes


def everything(models, prompt: list[int]) -> int:
    """What both read of a prompt: all but its last token; where a pass has a price that one as well."""
    return 2 * (len(prompt) - (models is tables))


@pytest.mark.parametrize("models", [tables, tiny])
def test_the_next_turn_reads_only_what_is_new(engine, read, models):
    server = engine(models, first := Heard(PROMPT, 9, 1))
    assert sum(read) == everything(models, PROMPT)
    read.clear()
    second = Heard([*PROMPT, *first.tokens, 2, 0, 4], 8, 2)
    assert ask(server, second)[0].end
    num_read = sum(read)
    assert [first.tokens, second.tokens] == alone(models, first, second)
    lag = num_read - (everything(models, second.request.prompt) - 2 * server.batch.reused_tokens)  # of the draft model
    assert 0 <= lag <= 1
    assert num_read / 2 <= 3 + 4  # what is new, and of the tokens before it a step's at most: one is never read


@pytest.mark.parametrize("models", [tables, tiny])
def test_next_turns_of_several_rows_are_read_side_by_side(engine, read, models):
    """Beside them one that begins: none of its tokens are known."""
    first = [Heard([row, *PROMPT[row:]], 5, row) for row in range(3)]
    server = engine(models, *first)
    then = [Heard([*row.request.prompt, *row.tokens, 4], 6, seed) for seed, row in enumerate(first, 5)]
    then.append(Heard([SIZE - 1, 4], 6, 9))
    read.clear()
    ask(server, *then)
    assert len(read) <= 3  # of the target one; of the draft model another, where a step's last token was not read
    assert server.batch.reused_tokens >= sum(len(row.request.prompt) + len(row.tokens) - 1 for row in first)
    assert [row.tokens for row in (*first, *then)] == alone(models, *first, *then)


def differing(place: int) -> Heard:
    """A prompt that differs from the usual one in one token."""
    prompt = [*PROMPT[:place], (PROMPT[place] + 1) % SIZE, *PROMPT[place + 1 :]]
    return Heard(prompt, 8, 3, sampling=Sampling(temperature=0.7))


@pytest.mark.parametrize("models", [tables, tiny])
@pytest.mark.parametrize("place", [1, 5, len(PROMPT) - 1])
def test_nothing_is_reused_beyond_a_token_that_differs(engine, read, models, place):
    server = engine(models, Heard(PROMPT, 4, 1), other := differing(place))
    assert server.batch.reused_tokens == place
    assert sum(read) == 2 * everything(models, PROMPT) - 2 * place
    assert [other.tokens] == alone(models, other)


class TooLong(PrefixCache):
    """Wrong: a token more is reused than is common."""

    def find(self, prompt: list[int]) -> KnownPrefix | None:
        prefix = super().find(prompt)
        return prefix and prefix._replace(length=prefix.length + 1, drafted=prefix.drafted + 1)


def test_the_comparison_catches_what_is_reused_beyond_it(engine):
    """The models remember another token, on which what they say depends."""
    engine(tables, Heard(PROMPT, 4, 1), other := differing(len(PROMPT) - 3), prefixes=TooLong())
    assert [other.tokens] != alone(tables, other)


def test_prompts_that_are_scored_are_read_as_a_whole(engine, read):
    engine(tables, Heard(PROMPT, 1), scored := Heard(PROMPT, 1, num_prompt_logprobs=1))
    assert (sum(read), len(scored.events[0].prompt_logprobs)) == (4 * (len(PROMPT) - 1), len(PROMPT) - 1)


def test_what_is_kept_stays_within_the_caches_bound(engine):
    """Rows have precedence: what they need, the kept ones leave."""
    rows = [Heard([seed % SIZE, seed // SIZE, *PROMPT], 4, seed) for seed in range(8)]
    server = engine(tables, *rows, tokens_in_cache=100)
    server.close(MAX_WAIT_SECONDS)
    assert 30 < server.batch.prefixes.tokens <= 100
    server = engine(tables, Heard(PROMPT, 4), large := Heard([4] * 60, 3), tokens_in_cache=100)
    server.close(MAX_WAIT_SECONDS)
    assert [row.tokens for row in server.batch.prefixes.rows] == [
        ([4] * 60 + large.tokens)[: server.batch.prefixes.tokens]
    ]


class Unkept(TableModel):
    """A model that cannot fork."""

    def new(self, capacity: int) -> "Unkept":
        return Unkept(self.conditional, self.vocabulary)

    def _fork(self, *arguments: object) -> None:
        raise ZeroDivisionError


def test_a_row_that_cannot_be_kept_harms_nobody(engine):
    rows, (target, draft) = [Heard(PROMPT, 4, 1), Heard(PROMPT, 4, 1)], tables()
    unkept = Unkept(target.conditional, target.vocabulary)
    assert engine(lambda: (unkept, draft), *rows).batch.prefixes.rows == []
    assert rows[0].tokens == rows[1].tokens


class Immovable(TableModel):
    """A model whose rows cannot be set aside."""

    def new(self, capacity: int) -> "Immovable":
        return Immovable(self.conditional, self.vocabulary)

    def set_aside(self) -> None:
        raise MemoryError


def test_a_row_that_cannot_be_set_aside_is_forgotten(engine):
    others, (target, draft) = [Heard([4, *PROMPT], 4, 1), Heard([3, *PROMPT], 4, 1)], tables()
    rows = engine(lambda: (Immovable(target.conditional, target.vocabulary), draft), *others).batch.prefixes.rows
    assert [row.tokens[0] for row in rows] in ([3], [4])  # of that which left last
    plain = [Heard([4, *PROMPT], 4, 1), Heard([3, *PROMPT], 4, 1)]
    engine(lambda: (target, draft), *plain)
    assert [row.tokens for row in others] == [row.tokens for row in plain]


def test_the_least_recently_used_leaves_first():
    texts = [1, 2, 3], [2, 2, 2], [3, 1], [1, 2, 3, 4]
    first, second, third, longer = (KeptRow(text, tables()[0], None, 0) for text in texts)
    prefixes = PrefixCache()
    for row in (first, second, third):
        prefixes.put(row)
    assert prefixes.find([1, 2, 4, 4]) == KnownPrefix(first, 2, 0)
    assert prefixes.find([4]) is None
    assert prefixes.rows == [first, second, third]  # looking changes nothing
    prefixes.use([first])
    prefixes.shrink(5)
    assert prefixes.rows == [third, first]
    prefixes.put(longer)
    assert prefixes.rows == [third, longer]  # which the first one is the beginning of


@pytest.mark.parametrize("name", ["eagle3", "dflash", "medusa"])
def test_a_conversation_goes_on_where_its_head_had_been(engine, name):
    """As without a cache of prefixes, whatever part of them is found; prompts are read in pieces."""

    def models() -> tuple:
        return tiny_model("llama"), head_of(name)

    server = engine(models, rows=3, prefill=4)
    first = [Heard(prompt, 8, row) for row, prompt in enumerate(([*PROMPT[:7]], [7], [*range(1, 12)]))]
    ask(server, *first)
    prompts = [*PROMPT[:7], *first[0].tokens, 6, 6], [*PROMPT[:4], 2, 2], [7, *first[1].tokens[:5], 3]
    then = [Heard(prompt, 6, row) for row, prompt in enumerate(prompts)]
    before = server.batch.reused_tokens
    ask(server, *then)
    assert server.batch.reused_tokens > before + 15
    assert [row.tokens for row in (*first, *then)] == alone(models, *first, *then)
