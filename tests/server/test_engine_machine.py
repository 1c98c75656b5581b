"""An engine's life at random, in every mood of its policy: resting, probing, timing, drafting, and changing its mind.

Rows come in bursts, some with a seed, share prefixes, are cancelled, and end. Greedily each gets the tokens that it
gets alone.
"""

from collections.abc import Callable, Collection

import pytest
import torch
from decoded import readers
from heads import head_of
from heard import Heard
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule
from lives import run_lives
from marks import slow_but
from plans import costs, profile, rates
from tiny import VOCABULARY, tiny_model

import multidraft as md
from multidraft.autotune.auto_policy import Auto
from multidraft.autotune.plans import Profile
from multidraft.decoding.batch import Batch
from multidraft.decoding.policy import Outlook, Plan, PromptReads, StaticTree, TreePolicy
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.tree import TokenTree, Tree
from multidraft.models.ensemble import LookupThenModel
from multidraft.models.ngram import Lookup
from multidraft.models.user_models import as_reader
from multidraft.sampling.settings import Sampling
from multidraft.server import Limits
from multidraft.server.engine import Engine

MAX_ROWS, MAX_NEW, STEPS_OF_LIFE, SIZE = 33, 9, 25, 20
ENOUGH_LIVES = 50  # to meet what is broken: the first that does ends a test
MANY = 40  # rows of one life, after which there are no more bursts
SEEDS = st.integers(0, 2**32 - 1)


class Moody(StaticTree):
    """A fixed tree, and steps in which nothing is drafted: whenever somebody says so."""

    rests = False

    def plan(self, trees: list[TokenTree], depth: int) -> Plan:
        """Nothing while it rests."""
        return Plan([[] for _ in trees]) if self.rests else super().plan(trees, depth)

    def begin(self, rows: int, prompt_reads: PromptReads | None = None) -> Outlook:
        """Whether it rests."""
        return Outlook(self.rests)


def auto(known: Profile, budget: float = 0.0) -> Auto:
    """Probes that come soon."""
    policy = Auto(known, 0.0, budget=budget)
    policy.probes.pauses.default_factory = lambda: 3
    return policy


POLICIES: dict[str, Callable[[], TreePolicy]] = {
    "a fixed tree that rests at times": lambda: Moody(Tree.parse("2x1x1")),
    "auto where drafts pay": lambda: auto(
        profile(by_rows={1: costs(level=0.1), 8: costs(level=0.1)}, true_rates=rates(0.9))
    ),
    "auto where drafts do not pay": lambda: auto(
        profile(by_rows={1: costs(1.0, 0.5, 0.05)}, true_rates=rates(0.1), spent=1.0), budget=1.0
    ),
    "auto of a new pair": lambda: auto(Profile({}), budget=1e9),
}
DRAFTERS: dict[str, Callable] = {
    "a model": lambda: tiny_model("gpt2"),
    "a head": lambda: head_of("eagle3"),
    "look-ups, then a model": lambda: LookupThenModel([Lookup(VOCABULARY), as_reader(tiny_model("gpt2"))]),
}


@torch.no_grad()
def greedily(prompts: list[list[int]]) -> list[list[int]]:
    """The target's own tokens, read from the beginning for each of them."""
    texts, rows = [list(prompt) for prompt in prompts], torch.arange(len(prompts))
    for _ in range(MAX_NEW):
        padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
        last = tiny_model("llama")(padded, use_cache=False).logits[rows, [len(text) - 1 for text in texts]]
        for text, token in zip(texts, last.argmax(-1).tolist(), strict=True):
            text.append(token)
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts, strict=True)]


class Life(RuleBasedStateMachine):
    """One engine without a thread, and the rows that it has been asked for."""

    policy: Callable[[], TreePolicy]
    draft: Callable

    def __init__(self) -> None:
        super().__init__()
        way = DecodeConfig(md.scheme("anchored:lorenz")), type(self).policy()
        limits = Limits(rows=MAX_ROWS, prefill=16, tokens_in_cache=6000)
        self.engine = Engine(*readers(tiny_model("llama"), type(self).draft()), *way, limits)
        self.rows: list[Heard] = []

    @rule(count=st.one_of(st.integers(1, 3), st.integers(1, MAX_ROWS)), seed=SEEDS, goes_on=st.booleans())
    def come(self, count: int, seed: int, goes_on: bool) -> None:
        """A burst of rows, which may begin as a row that was there before."""
        generator = torch.Generator().manual_seed(seed)
        for _ in range(count if len(self.rows) < MANY else 1):
            length, new_tokens, place = (int(torch.randint(1, end, (1,), generator=generator)) for end in (14, 9, 99))
            prompt = torch.randint(0, SIZE, (length,), generator=generator).tolist()
            if goes_on and self.rows:
                before = self.rows[place % len(self.rows)].request
                prompt = [*before.text[: place % 25], *prompt]
            settings = dict(sampling=Sampling(temperature=0), is_seeded=place % 3 == 0)
            self.rows.append(Heard(prompt, min(new_tokens, MAX_NEW), seed, **settings))
            self.engine.batch.add([self.rows[-1].request])

    @rule(turns=st.integers(1, 6))
    def go_on(self, turns: int) -> None:
        """The engine takes some turns."""
        with torch.inference_mode():
            for _ in range(turns):
                self.engine.turn()

    @rule(seed=SEEDS)
    def cancel(self, seed: int) -> None:
        """Some of the rows that are under way are wanted no more."""
        for place, row in enumerate(row for row in self.rows if not row.request.has_ended):
            row.request.cancelled = row.request.cancelled or (seed >> place % 32) % 4 == 0

    @rule()
    def change_mind(self) -> None:
        """What drafted rests, and what rested drafts or probes."""
        policy = self.engine.policy
        if isinstance(policy, Moody):
            policy.rests = not policy.rests
        elif isinstance(policy, Auto):
            policy.probes.steps_left, policy.probes.rested = 0, 10**6

    def teardown(self) -> None:
        """All come to their ends, as alone."""
        self.engine.closing = True
        self.engine.run()
        assert (self.engine.fault, self.engine.faults) == (None, 0)
        greedy_texts = greedily([row.request.prompt for row in self.rows]) if self.rows else []
        for row, tokens in zip(self.rows, greedy_texts, strict=True):
            expected = tokens[: row.request.max_new_tokens]
            assert row.tokens == (expected[: len(row.tokens)] if row.request.cancelled else expected)


def live(policy: str, drafter: str, lives: int, kind: type[Life] = Life) -> None:
    """So many lives of an engine with such a policy and drafter."""
    run_lives(kind, lives, STEPS_OF_LIFE, policy=POLICIES[policy], draft=DRAFTERS[drafter])


CASES = [(policy, drafter) for policy in POLICIES for drafter in DRAFTERS]


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("policy", "drafter", "lives"),
    slow_but([(*case, 2) for case in CASES[::4]], [(*case, lives) for case in CASES for lives in (2, 60)]),
)
def test_rows_get_their_own_tokens_in_every_mood(policy: str, drafter: str, lives: int) -> None:
    live(policy, drafter, lives)


class Swapping(Batch):
    """Wrong: it forgets which row is which when some leave."""

    def keep_rows(self, going: list[int], faulty: Collection[int] = ()) -> None:
        leave = len(going) < len(self.running)
        super().keep_rows(going, faulty)
        if leave and self.state is not None:
            self.state.rows.reverse()


class SwappingLife(Life):
    """A life with such a batch."""

    def __init__(self) -> None:
        super().__init__()
        engine, limits = self.engine, self.engine.limits
        models = engine.target, engine.draft, engine.config, engine.policy
        engine.batch = Swapping(*models, limits.rows, limits.tokens_in_cache)


@pytest.mark.slow
@pytest.mark.usefixtures("unchecked")
def test_rows_that_swap_places_are_caught() -> None:
    with pytest.raises(AssertionError):
        live("auto where drafts pay", "a model", ENOUGH_LIVES, SwappingLife)
