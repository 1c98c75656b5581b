"""Steps are interrupted, thousands of tokens pass: no row notices, and no memory is left behind."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from decoded import Way, readers, start, tables, tiny
from memory import live_bytes
from tiny import NO_IDS, ROTARY, tiny_model
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessorList, PreTrainedModel, RepetitionPenaltyLogitsProcessor

import multidraft as md
from multidraft.decoding.logprobs import add_logprobs
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.record import Emitted
from multidraft.decoding.state import DecodeConfig, State, extend, gather
from multidraft.decoding.step import step
from multidraft.decoding.tree import NO_DRAFTS, Tree
from multidraft.models.huggingface.kv_cache import Block, BufferLayer, Storage, TreeCache
from multidraft.models.huggingface.masks import CausalLM
from multidraft.models.prefix_models import answers_prompts
from multidraft.sampling.from_logits import target_distributions
from multidraft.sampling.from_processors import sampling_from
from multidraft.sampling.settings import Sampling

PROMPTS = [[0, 1], [2, 3, 1, 0], [4], [3, 3, 2, 1, 0, 1, 2], [1]]
LONGEST = 64
Models = Callable[[], tuple]
PADDED = lambda: (tiny_model("mistral window"), tiny_model("qwen2", vocab_size=62))  # noqa: E731
ALONE = lambda: (tiny_model("llama"), None)  # noqa: E731


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def begin(models: Models, prompts: list[list[int]], way: Way, sampling: Sampling = Sampling()) -> State:  # noqa: B008
    target, draft = readers(*models())
    settings, random = [sampling] * len(prompts), [generator(row) for row in range(len(prompts))]
    return start(prompts, target, draft, way, settings, LONGEST, random, whole=answers_prompts(target))


def config_of(models: Models, scheme: str, walk: str, **settings: Any) -> Way:
    tree = NO_DRAFTS if models is ALONE else Tree.parse("3x2x1")
    return DecodeConfig(md.scheme(scheme), walk, measure=0, **settings), StaticTree(tree)


def test_misuse_gets_advice():
    way = config_of(tiny, "iid:lorenz", "deferred")
    state = begin(tiny, PROMPTS[:2], way)
    newer, _ = step(state, *way)
    for use in (lambda: step(state, *way), lambda: gather(state, [0]), lambda: extend(state, newer)):
        with pytest.raises(md.AdviceError, match=r"this state has been used.*go on from the newest one"):
            use()
    newer, other = (begin(models, PROMPTS[:1], way) for models in (tiny, PADDED))
    with pytest.raises(md.AdviceError, match="rows of two different models cannot share a batch"):
        extend(newer, other)
    with pytest.raises(md.AdviceError, match="start both with the same models"):
        extend(begin(tiny, PROMPTS[:1], way), begin(ALONE, PROMPTS[:1], way))


# Settings of each row's own


def test_rows_with_settings_of_their_own_get_their_log_probabilities():
    """Greedy and warm rows beside each other: each entry is under the row's own distribution, with its own number."""
    way = config_of(tables, "iid:lorenz", "deferred")
    penalised = sampling_from(LogitsProcessorList([RepetitionPenaltyLogitsProcessor(1.7)]), greedy=False)
    state = extend(begin(tables, PROMPTS[:1], way, penalised), begin(tables, PROMPTS[1:2], way, Sampling(0.5)))
    for number, row in enumerate(state.rows):
        row.num_logprobs = 1 + number
    _, record = step(state, *way)
    add_logprobs(record)
    table = tables()[0].conditional
    for row, emitted in enumerate(record.emitted):
        sampling, sequence = state.rows[row].sampling, PROMPTS[row]
        for token, entry in zip(emitted.tokens, emitted.logprobs, strict=True):
            prefixes = [torch.tensor(sequence)] if sampling.looks_back else None
            (law,), _ = target_distributions(table(tuple(sequence)).log()[None], sampling, prefixes)
            assert entry.logprob == pytest.approx(float(law[token].log()))
            assert [value for _, value in entry.top] == pytest.approx(law.log().topk(1 + row).values.tolist())
            sequence = [*sequence, token]


# Interruptions

COUNT = 5  # tokens a row


def set_alarm(patch: pytest.MonkeyPatch, owner: type, name: str, after: int) -> None:
    """The n-th call raises KeyboardInterrupt."""
    plainly, calls = getattr(owner, name), itertools.count(1)

    def watched(*arguments, **settings):
        if next(calls) == after:
            raise KeyboardInterrupt
        return plainly(*arguments, **settings)

    patch.setattr(owner, name, watched)


PLACES = {
    BufferLayer: ["update"],
    Block: ["move", "move_rows", "_hold", "resize"],
    Storage: ["reserve", "gather"],
    CausalLM: ["forward", "commit", "gather"],
    TreeCache: ["append", "masks", "_drop_pending", "_move"],
}


class Server:
    """A state that lives on when a step is interrupted."""

    def __init__(self, way: Way):
        self.way = way
        longest = -2 * way[1].limits.max_nodes  # so little room that the caches grow
        random = [generator(row) for row in range(3)]
        self.state = start(PROMPTS[:3], *tiny(), way, [Sampling(0)] * 3, longest, random)
        self.rows, self.done = [0, 1, 2], {row: list[int]() for row in range(3)}

    def run(self, count: int) -> dict[int, list[int]]:
        """Go on until every row has `count` tokens; rows leave when they do."""
        while self.rows:
            next_state, record = step(self.state, *self.way)
            self.state = next_state
            for row, emitted in zip(self.rows, record.emitted, strict=True):
                self.done[row] += emitted.tokens
            going = [i for i, row in enumerate(self.rows) if len(self.done[row]) < count]
            if len(going) < len(self.rows):
                self.state, self.rows = gather(self.state, going), [self.rows[i] for i in going]
        return {row: tokens[:count] for row, tokens in self.done.items()}


@pytest.mark.parametrize("stride", [8, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("unchecked")
@torch.inference_mode()
def test_an_interruption_anywhere_leaves_a_state_usable_or_says_so(stride, monkeypatch):
    """At temperature 0 the right tokens are known whatever random numbers an interrupted step has used up."""
    way = config_of(tiny, "anchored:lorenz", "deferred")
    truth, outcomes = Server(way).run(COUNT), {"went on": 0, "said so": 0}
    for owner, name in [(owner, name) for owner, names in PLACES.items() for name in names]:
        for after in itertools.chain(range(1, 7), itertools.count(8, stride)):  # each of the first calls, then some
            server = Server(way)
            with monkeypatch.context() as patch:
                set_alarm(patch, owner, name, after)
                try:
                    server.run(COUNT)
                    break  # fewer calls than that
                except KeyboardInterrupt:
                    pass
            try:
                assert server.run(COUNT) == truth, (name, after)
                outcomes["went on"] += 1
            except md.AdviceError as error:
                assert "or was interrupted while its caches were written" in str(error)  # noqa: PT017
                outcomes["said so"] += 1
    assert min(outcomes.values()) > 10
    settings = dict(temperature=0, max_new_tokens=COUNT, tree=way[1])
    rows, _ = md.generate(*tiny(), PROMPTS[:3], **settings)  # the users' models are as they were
    assert [row.tolist() for row in rows] == list(truth.values())


# Memory


@pytest.fixture(scope="module")
def long_model() -> PreTrainedModel:
    config = transformers.LlamaConfig(**{**ROTARY, "max_position_embeddings": 20_000, "num_hidden_layers": 1}, **NO_IDS)
    torch.manual_seed(5)
    return AutoModelForCausalLM.from_config(config).eval()


def growth_of_a_long_one(model: PreTrainedModel, tokens: int, leak: list[Tensor] | None = None) -> int:
    """How many bytes more are alive after a generation's last tenth than after its first."""
    seen, steps = 0, [tokens // 10, tokens]
    sizes: list[int] = []

    def watch(row: int, emitted: Emitted) -> None:
        nonlocal seen
        seen += len(emitted.tokens)
        if leak is not None:
            leak.append(torch.zeros(1_000))
        if seen >= steps[len(sizes)]:
            sizes.append(live_bytes())

    md.generate(model, model, [[1, 2, 3]], tree="2x1x1", max_new_tokens=tokens, generator=generator(0), stream=watch)
    return sizes[1] - sizes[0]


def growth_of_short_ones(model: PreTrainedModel, count: int, leak: list[Tensor] | None = None) -> int:
    sizes = []
    for run in range(count):
        md.generate(model, model, [[1, 2], [3]], tree="2x1", max_new_tokens=4, generator=generator(run))
        if leak is not None:
            leak.append(torch.zeros(1_000))
        if run in (count // 10, count - 1):
            sizes.append(live_bytes())
    return sizes[1] - sizes[0]


GROWTH = 4_000  # bytes: what a step holds varies with its tree; a tensor of one number is 64 of them


@pytest.mark.parametrize("tokens", [150, pytest.param(10_000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_a_long_generation(long_model, tokens):
    assert growth_of_a_long_one(long_model, tokens) < GROWTH


@pytest.mark.parametrize("count", [20, pytest.param(1_000, marks=pytest.mark.slow)])
def test_memory_is_flat_over_many_short_generations(long_model, count):
    assert growth_of_short_ones(long_model, count) < GROWTH


def test_a_leak_is_seen(long_model):
    leak: list[Tensor] = []
    assert growth_of_a_long_one(long_model, 40, leak) > 2 * GROWTH
    assert growth_of_short_ones(long_model, 12, leak) > 2 * GROWTH
