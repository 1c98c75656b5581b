"""A row in a batch gets the tokens that it gets alone, whoever reads, drafts and drives, and whichever rows come."""

import math
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import cache, partial
from itertools import product
from typing import Any, NamedTuple

import pytest
import torch
from decoded import readers, tables, tiny
from heads import CASES as HEADS
from heads import head_of
from heard import Heard
from hybrids import hybrid
from test_policies import POLICIES, Nothing, Sometimes
from tiny import VOCABULARY, tiny_model
from transformers import LogitsProcessor, LogitsProcessorList, RepetitionPenaltyLogitsProcessor

import multidraft as md
from multidraft.decoding import batch as batches
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.request import Stop
from multidraft.decoding.state import DecodeConfig, State
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.decoding.walks import WALKS
from multidraft.models.ensemble import LookupThenModel, Mixture, SideBySide
from multidraft.models.huggingface.loading import first_layers
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.ngram import Lookup, NGram
from multidraft.sampling.from_processors import sampling_from
from multidraft.sampling.processors import CountPenalty
from multidraft.sampling.settings import Sampling
from multidraft.server import Limits
from multidraft.server.engine import Engine
from multidraft.zoo import load_pair

# What reads and drafts

DRAFTERS: dict[str, Callable[[], Any]] = {
    "nothing": lambda: None,
    "n-grams": lambda: NGram(VOCABULARY),
    "look-up": lambda: Lookup(VOCABULARY),
    "first layer": lambda: first_layers(tiny_model("llama"), 1),
    "mixture": lambda: Mixture([tiny_model("qwen2"), NGram(VOCABULARY)]),
    "mixture of padded vocabularies": lambda: Mixture([tiny_model("qwen2"), NGram(VOCABULARY + 1)]),
    "copying": lambda: LookupThenModel([Lookup(VOCABULARY), tiny_model("qwen2")]),
    "side by side": lambda: SideBySide([tiny_model("qwen2"), NGram(VOCABULARY), first_layers(tiny_model("llama"), 1)]),
    "head after what was copied": lambda: LookupThenModel([Lookup(VOCABULARY), head_of("eagle3")]),
    "mixed heads": lambda: Mixture([head_of("dflash"), head_of("medusa"), NGram(VOCABULARY)]),
    "heads side by side": lambda: SideBySide([head_of("eagle3"), head_of("dflash")]),
}
embedded = cache(lambda: load_pair()[:2])
GROWING = {**POLICIES, "Nothing": Nothing(1, 2), "Sometimes": Sometimes(2, 4)}
PAIRS: dict[str, Callable[[], tuple]] = {
    "tables": tables,
    "tiny": tiny,
    "padded": lambda: (tiny_model("mistral window"), tiny_model("qwen2", vocab_size=VOCABULARY + 1)),
    "hybrids": lambda: (hybrid("qwen3_5"), hybrid("lfm2")),
    "long": lambda: (tiny_model("llama", max_position_embeddings=512), None),
    **{name: lambda make=make: (tiny_model("llama"), make()) for name, make in DRAFTERS.items()},
    **{name: lambda name=name: (tiny_model("llama"), head_of(name)) for name in HEADS},
    **{policy: embedded for policy in GROWING},
}

# Which rows come


def five(samplings: list[Sampling], counts: Iterable[int] = (6, 14, 10, 3, 8), ends: Iterable[int] = ()) -> list[Heard]:
    """With these settings, numbers of tokens, and tokens that end a text."""
    rows = enumerate(zip(PROMPTS, samplings, counts, strict=True))
    return [Heard(p, count, seed, sampling=own, stop=Stop(frozenset(ends))) for seed, (p, own, count) in rows]


def penalised(processor: LogitsProcessor) -> Sampling:
    return sampling_from(LogitsProcessorList([processor]), greedy=False)


def drawn(lengths: Iterable[int]) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 5, (length,), generator=generator).tolist() for length in lengths]


def many() -> list[Heard]:
    prompts = enumerate(drawn([1, 9, 2, 30, 3, 3, 14, 1, 5, 50, 4]))
    own = [dict(sampling=Sampling(temperature), stop=Stop(frozenset([3]))) for temperature in (1, 0.7, 0)]
    return [Heard(prompt, 3 + 5 * (row % 4), row, **own[row % 3]) for row, prompt in prompts]


PROMPTS = [[0, 1], [2, 3, 1, 0], [4], [3, 4, 2, 3, 4, 2, 3, 4], [1]]
PENALTIES = penalised(RepetitionPenaltyLogitsProcessor(1.7)), penalised(CountPenalty(1.5, 0.5, len(PROMPTS[4])))
LIMITED = [Sampling(0.7, top_p=0.9), Sampling(1.5, top_k=3)]
ORDERS = [(20, 10), (10, 20), (9, 30, 8, 31), (400, 8, 9), (8, 400, 9)]
ROWS: dict[str, Callable[[], list[Heard]]] = {
    "alike": lambda: five([Sampling()] * 5),
    "softmax": lambda: five([Sampling(0), Sampling(0.5), Sampling(1), Sampling(1.5), LIMITED[1]]),
    "any": lambda: five([Sampling(0), PENALTIES[0], *LIMITED, PENALTIES[1]]),
    "ending": lambda: five([Sampling()] * 5, [24] * 5, range(0, VOCABULARY, 7)),
    "ending in 3": lambda: five([Sampling()] * 5, [20] * 5, [3]),
    "greedy": lambda: five([Sampling(0)] * 5, [12] * 5),
    "many": many,
    **{str(lengths): lambda it=lengths: [Heard(p, 6, sampling=Sampling(0)) for p in drawn(it)] for lengths in ORDERS},
}

# Who drives


class Case(NamedTuple):
    driver: str
    pair: str
    rows: str
    scheme: str = "anchored:lorenz"
    walk: str = "deferred"

    def parts(self) -> tuple:
        """The readers, the configuration and the policy."""
        target, draft = readers(*PAIRS[self.pair]())
        tree = StaticTree(NO_DRAFTS if draft is None else Tree.parse("3x2x1"))
        return target, draft, DecodeConfig(md.scheme(self.scheme), self.walk, measure=0), GROWING.get(self.pair, tree)


def batch(parts: tuple, rows: list[Heard], max_num_seqs: float = math.inf, budget: float = math.inf) -> None:
    """Two rows come every other step; so many decode at a time; prompts are read in pieces of so many tokens."""
    sizes, coming = [0], list(rows)
    running = batches.Batch(*parts, max_num_seqs, on_record=lambda record, of_step: sizes.append(len(of_step)))
    while coming or running.requests:
        running.add(row.request for row in coming[:2])
        del coming[:2]
        for _ in range(2):
            running.step(budget)
    assert max(sizes) <= max_num_seqs


def engine(parts: tuple, rows: list[Heard]) -> None:
    """Every other row comes when the one before it has a token, beside some that are cancelled; few fit at a time."""
    cancelled = [Heard([1, 2], 12) for _ in range(3)]
    with closing(Engine(*parts, Limits(rows=3, prefill=8))) as server:
        for row, follower in zip(rows[::2], rows[1::2], strict=False):
            row.after[0] = lambda request=follower.request: server.submit([request])
        for count, row in enumerate(cancelled):
            row.after[count] = lambda request=row.request: setattr(request, "cancelled", True)
        server.start()
        server.submit([row.request for row in (rows[0], *cancelled, *rows[2::2])])
        assert all(row.end().end for row in rows)


def generate(case: Case, rows: list[Heard]) -> list[list[int]]:
    """Rows whose settings are those of the first."""
    first, (target, draft) = rows[0].request, PAIRS[case.pair]()
    tokens, _ = md.generate(
        target, draft, [row.request.prompt for row in rows], generator=[row.request.generator for row in rows],
        max_new_tokens=first.max_new_tokens, eos_token_id=list(first.stop.tokens),
        temperature=first.sampling.temperature, scheme=case.scheme, walk=case.walk, tree=case.parts()[-1],
    )  # fmt: skip
    return [row.tolist() for row in tokens]


PIECES = [(1, math.inf), (3, math.inf), (3, 4), (8, 1), (math.inf, 7)]
PARTLY = {f"{rows} rows, pieces of {size}": partial(batch, max_num_seqs=rows, budget=size) for rows, size in PIECES}
DRIVERS: dict[str, Callable[..., None]] = {"batch": batch, "engine": engine, **PARTLY}


@torch.inference_mode()
def together(case: Case, rows: list[Heard]) -> list[list[int]]:
    if case.driver == "generate":
        return generate(case, rows)
    DRIVERS[case.driver](case.parts(), rows)
    return [row.request.tokens for row in rows]


@cache
@torch.inference_mode()
def alone(*case: str) -> list[list[int]]:
    """The tokens of each row alone; those of a greedy one are the target's own."""
    target, draft, config, policy = Case("batch", *case).parts()
    for row in (rows := ROWS[case[1]]()):
        is_greedy = row.request.sampling.temperature == 0
        batch((target, None, config, StaticTree(NO_DRAFTS)) if is_greedy else (target, draft, config, policy), [row])
    return [row.request.tokens for row in rows]


SCHEMES, SEVERAL = ["anchored:lorenz", "iid:lorenz", "top:naive"], "distinct:recursive_rejection"
BATCHED = [*product(["tables"], SCHEMES), *zip(["padded", "tiny", "n-grams"], SCHEMES, strict=True)]
CASES = [
    *(Case("batch", pair, rows, scheme, walk)
      for (pair, scheme), rows, walk in product(BATCHED, ["alike", "softmax", "any"], WALKS)),
    *(Case(driver, pair, "many") for driver, pair in product(["engine", *PARTLY], ["tables", "tiny", "eagle3"])),
    *(Case("generate", pair, rows, SEVERAL if "side" in pair else SCHEMES[0])
      for pair, rows in [("tables", "ending in 3"), ("hybrids", "ending"), *product(DRAFTERS, ["ending", "greedy"]),
                         *product(HEADS, ["greedy"])]),
    *(Case("generate", "long", str(lengths)) for lengths in ORDERS),
    *(Case("generate", policy, "greedy") for policy in GROWING),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=", ".join)
def test_a_row_in_a_batch_gets_the_tokens_that_it_gets_alone(case: Case) -> None:
    """In float32 too: products of other batch sizes round otherwise, but hardly ever move a draw."""
    expected = alone(*case[1:])
    assert together(case, ROWS[case.rows]()) == expected
    assert "ending" not in case.rows or len(set(map(len, expected))) > 1


def rows_that_swap_places(*states: State, extend: Callable = batches.extend) -> State:
    state = extend(*states)
    state.rows.reverse()
    return state


def caches_that_swap_places(self: CausalLM, other: CausalLM, extend: Callable = CausalLM.extend) -> None:
    extend(self, other)
    self.gather(list(reversed(range(len(self.cache.lengths)))))


@pytest.mark.parametrize(("owner", "swapped", "case"), [
    (batches, rows_that_swap_places, Case("3 rows, pieces of inf", "tables", "many")),
    (batches, rows_that_swap_places, Case("generate", "long", "(10, 20)")),
    (batches, rows_that_swap_places, Case("engine", "tables", "many")),
    (CausalLM, caches_that_swap_places, Case("batch", "tiny", "alike")),
])  # fmt: skip
def test_rows_that_swap_places_are_caught(owner: object, swapped: Callable, case: Case, monkeypatch) -> None:
    expected = alone(*case[1:])
    monkeypatch.setattr(owner, "extend", swapped)
    assert together(case, ROWS[case.rows]()) != expected


@pytest.mark.parametrize("rows", ["softmax", "any"])
@pytest.mark.parametrize("pair", ["tables", "tiny"])
def test_rows_that_swap_settings_are_caught(pair: str, rows: str) -> None:
    case, swapped = Case("batch", pair, rows, "iid:lorenz"), ROWS[rows]()
    for row, other in zip(swapped, ROWS[rows]()[1:], strict=False):
        row.request.sampling = other.request.sampling
    tokens, expected = together(case, swapped), alone(*case[1:])
    assert all(tokens[row] != expected[row] for row in range(3))  # the longest
