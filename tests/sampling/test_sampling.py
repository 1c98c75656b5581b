"""Processors on trees: the exact law with every kind of them, the speed of having none, stops, log-probabilities."""

import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from decoded import roots
from steps import Way, law_of_steps, laws_of_rows
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import (
    GenerationMixin,
    MaxTimeCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)

import multidraft as md
from multidraft.auditing.enumeration import (
    SequenceLaw,
    first_state,
    first_tokens,
    largest_difference,
    step_law,
    target_law,
)
from multidraft.decoding.metrics import Info
from multidraft.decoding.policy import StaticTree
from multidraft.decoding.state import DecodeConfig, State, extend
from multidraft.decoding.tree import Tree
from multidraft.generation.stopping import ends_from_criteria
from multidraft.models.ensemble import SideBySide
from multidraft.models.prefix_models import TableModel, random_table
from multidraft.sampling import generation_config
from multidraft.sampling.drafting import draft_distributions
from multidraft.sampling.from_logits import target_distributions
from multidraft.sampling.from_processors import sampling_from
from multidraft.sampling.generation_config import params_from
from multidraft.sampling.params import SamplingParams
from multidraft.sampling.processors import CountPenalty, LogitBias, Processors
from multidraft.sampling.settings import Sampling

SIZE, EXACT, BIASED = 4, 1e-12, 1e-3
PROMPT = [0, 2, 1]
Pair = tuple[Sampling, Sampling]
TARGET, DRAFT = random_table(SIZE, 3, 1, 2.0), random_table(SIZE, 3, 2, 2.0)


class Zigzag(LogitsProcessor):
    """A user's own: tokens whose parity is that of the whole sequence's sum become likelier."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        same = (input_ids.sum(-1, keepdim=True) + torch.arange(scores.shape[-1])) % 2 == 0
        return scores + 1.5 * same


class Counter(LogitsProcessor):
    """What cannot work: the result depends on the number of calls."""

    calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores + self.calls * torch.arange(scores.shape[-1])


class Neighbour(LogitsProcessor):
    """What cannot work either: a row depends on where it stands in the batch."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.arange(len(scores))[:, None] * torch.arange(scores.shape[-1])


BLIND = {
    "temperature, top-k, top-p": dict(temperature=0.7, top_k=3, top_p=0.9),
    "min-p": dict(min_p=0.3),
    "typical": dict(temperature=0.8, typical_p=0.7),
    "epsilon": dict(epsilon_cutoff=0.15),
    "eta": dict(eta_cutoff=0.2, top_p=0.95),
    "renormalised": dict(renormalize_logits=True, temperature=1.3),
    "suppressed": dict(suppress_tokens=[1], remove_invalid_values=True),
}
if "top_h" in generation_config.fields():
    BLIND["top-h"] = dict(temperature=1.2, top_h=0.6, top_k=3)
LOOKING_BACK = {
    "repetition": dict(repetition_penalty=1.7, temperature=0.8, top_k=3),
    "no repeated 2-grams": dict(no_repeat_ngram_size=2),
    "bad words": dict(bad_words_ids=[[2], [1, 3]]),
    "sequence bias": dict(sequence_bias={(1,): 1.0, (0, 3): 2.0}),
    "minimum": dict(min_new_tokens=2, eos_token_id=[3]),
    "forced end": dict(forced_eos_token_id=2, max_length=5),
    "growing end": dict(exponential_decay_length_penalty=(0, 1.4), eos_token_id=[1, 2]),
    "suppressed at first": dict(begin_suppress_tokens=[0, 2]),
    "prompt repeated": dict(encoder_repetition_penalty=1.6),
    "no 2-grams of the prompt": dict(encoder_no_repeat_ngram_size=2),
    "watermark": dict(watermarking_config=dict(bias=1.5, greenlist_ratio=0.5), top_k=3),
}


def sigma_bound(scores: Tensor) -> Tensor:
    """The lowest logit that top-n-sigma of 1 keeps, a line at a time."""
    lines = (line[line.isfinite()] for line in scores)
    return torch.stack([line.max() - line.std(correction=0) for line in lines])[:, None]


class WithinSigma(LogitsProcessor):
    """What `top_n_sigma=1` does, written in another way."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.masked_fill(scores < sigma_bound(scores), -torch.inf)


class BelowSigma(LogitsProcessor):
    """The biased twin of top-n-sigma: it measures from the mean instead of from the largest logit."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        shift = scores.amax(-1, keepdim=True) - scores.mean(-1, keepdim=True)
        return scores.masked_fill(scores < sigma_bound(scores) - shift, -torch.inf)


OWN = {  # settings that transformers lacks, and processors that do the same
    "a user's own": ({}, [Zigzag()]),
    "presence and frequency": (
        dict(presence_penalty=0.8, frequency_penalty=0.5),
        [CountPenalty(0.8, 0.5, len(PROMPT))],
    ),
    "logit bias": (dict(logit_bias={1: 0.9, 3: -2.0}), [LogitBias({1: 0.9, 3: -2.0})]),
    "top-n-sigma": (dict(top_n_sigma=1), [WithinSigma()]),
}
KINDS = [*BLIND, *LOOKING_BACK, *OWN]
COMMIT = ("iid:lorenz", "2x1", "commit")
SEEING = [*LOOKING_BACK, "a user's own", "presence and frequency"]


def configuration(kind: str) -> GenerationConfig:
    return GenerationConfig(do_sample=True, **(dict(top_k=None) | (BLIND | LOOKING_BACK).get(kind, {})))


def built_by_transformers(config: GenerationConfig, prompt: list[int], vocabulary: int, extra: list) -> Any:
    """What transformers' `generate` would run for one prompt, in its order; `config` lists all end-of-text tokens."""
    ends, builder = config.eos_token_id, GenerationMixin()
    builder.config = SimpleNamespace(is_encoder_decoder=False, vocab_size=vocabulary)  # of a model; any target will do
    builder.config.get_text_config = lambda **_: builder.config
    config._eos_token_tensor = torch.tensor(ends) if ends else None
    return builder._get_logits_processor(
        config,
        input_ids_seq_length=len(prompt),
        encoder_input_ids=torch.tensor([prompt]),
        logits_processor=LogitsProcessorList(extra),
        device=torch.device("cpu"),
    )


def processors(kind: str) -> LogitsProcessorList:
    """The list that transformers builds."""
    _, extra = OWN.get(kind, ({}, []))
    return built_by_transformers(configuration(kind), PROMPT, SIZE, extra)


def sampling(kind: str) -> Sampling:
    """What the settings are compiled to; a user's processors are extra."""
    settings, equivalent = OWN.get(kind, ({}, []))
    extra = () if settings else equivalent
    return params_from(configuration(kind), settings, set()).compile(PROMPT, SIZE, torch.device("cpu"), extra)


def reference(kind: str) -> Callable[[tuple[int, ...]], Tensor]:
    """The processed target after new tokens, by transformers' own code on the whole sequence."""
    listed = processors(kind)

    @cache
    def conditional(tokens: tuple[int, ...]) -> Tensor:
        sequence = (*PROMPT, *tokens)
        return listed(torch.tensor([sequence]), TARGET(sequence).log()[None]).softmax(-1)[0]

    return conditional


def config(scheme: str = "anchored:lorenz", tree: str = "2x1", walk: str = "deferred") -> Way:
    return DecodeConfig(md.scheme(scheme), walk), StaticTree(Tree.parse(tree))


def models() -> tuple[TableModel, TableModel]:
    return TableModel(TARGET, SIZE), TableModel(DRAFT, SIZE)


def off(law: SequenceLaw, kind: str, depth: int) -> float:
    """How far the law of the first tokens is from the processed target."""
    conditional = reference(kind)
    return largest_difference(first_tokens(law, conditional, depth), target_law(conditional, depth))


def error(kind: str, row_sampling: Sampling, way: Way) -> float:
    """How far one step is from the processed target."""
    return off(step_law(*models(), PROMPT, *way, row_sampling).law, kind, way[1].limits.shape.depth + 1)


def law_at(logits: Tensor, row_sampling: Sampling, sequence: tuple[int, ...] | list[int] = ()) -> Tensor:
    """The target's law from one line of logits."""
    return target_distributions(
        logits[None], row_sampling, [torch.tensor(sequence)] if row_sampling.looks_back else None
    )[0][0]


@pytest.mark.parametrize(("kind", "way"), [*((kind, ()) for kind in KINDS), ("repetition", COMMIT), ("min-p", COMMIT)])
def test_one_step_has_the_processed_target_s_law(kind, way):
    assert error(kind, sampling(kind), config(*way)) <= EXACT


class Rooted(LogitsProcessor):
    """The biased twin of a processor: every node is processed as though nothing had come after the root."""

    def __init__(self, processor: LogitsProcessor):
        self.processor = processor

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return self.processor(input_ids[:, : len(PROMPT)], scores)


@pytest.mark.parametrize("kind", [kind for kind in SEEING if kind != "prompt repeated"])  # it looks at nothing else
def test_processing_with_the_root_s_sequence_is_caught(kind):
    right = sampling(kind)
    parts = [
        part and Processors([Rooted(processor) for processor in part.listed]) for part in (right.before, right.after)
    ]
    assert error(kind, replace(right, before=parts[0], after=parts[1]), config()) > BIASED


def test_a_list_that_transformers_has_built_amounts_to_the_same():
    """As `model.generate` passes it to a custom function."""
    for kind in KINDS:
        logits, sequence = TARGET(tuple(PROMPT)).log(), (*PROMPT, 3, 3)
        laws = [
            law_at(logits, row_sampling, sequence)
            for row_sampling in (sampling(kind), sampling_from(processors(kind), greedy=False))
        ]
        assert torch.allclose(*laws, atol=EXACT), kind


def test_a_user_s_processor_replaces_that_of_a_setting_of_the_same_class():
    """And comes before the watermark, as in transformers, also where no warper stands between them."""
    user = [RepetitionPenaltyLogitsProcessor(3.0), Zigzag()]
    settings = dict(repetition_penalty=1.2, no_repeat_ngram_size=2, watermarking_config=dict(bias=1.5))
    config = GenerationConfig(do_sample=True, top_k=None, **settings)
    listed = built_by_transformers(config, PROMPT, SIZE, user)
    compiled = params_from(config, {}, set()).compile(PROMPT, SIZE, torch.device("cpu"), user)
    assert [type(part) for part in compiled.before.listed] == [type(part) for part in listed]
    logits = TARGET(tuple(PROMPT)).log()
    laws = [law_at(logits, part, PROMPT) for part in (compiled, sampling_from(listed, greedy=False))]
    assert torch.allclose(*laws, atol=EXACT)


def test_top_n_sigma_that_measures_from_the_mean_is_caught():
    """The biased twin."""
    biased = SamplingParams().compile(PROMPT, SIZE, torch.device("cpu"), [BelowSigma()])
    assert error("top-n-sigma", biased, config()) > BIASED


def test_top_n_sigma_keeps_the_same_tokens_at_every_temperature_and_overlooks_forbidden_ones():
    logits = torch.tensor([5.0, 4.0, 3.0, 0.0, -torch.inf])  # deviation of the finite ones: sqrt(3.5), nearly 1.87
    for n, count in ((0.5, 1), (0.6, 2), (1, 2), (1.1, 3), (2.6, 3), (2.7, 4), (100, 4), (0, 4), (-1, 4)):
        for temperature in (0.1, 1, 3):
            compiled = SamplingParams(top_n_sigma=n, temperature=temperature).compile([1], 5, torch.device("cpu"))
            assert int((law_at(logits, compiled) > 0).sum()) == count
    for off in (dict(top_n_sigma=0), dict(top_n_sigma=-1), dict(top_n_sigma=2, temperature=0)):
        assert SamplingParams(**off).compile([1], 5, torch.device("cpu")).before is None


@pytest.mark.parametrize("kind", ["a user's own", "minimum"])
def test_two_steps_have_the_processed_target_s_law(kind):
    """The second step's sequences begin with what the first emitted."""
    way = config("iid:lorenz", "1")
    law = law_of_steps(first_state(*models(), PROMPT, *way, sampling(kind)), way, 2)
    assert off(law, kind, 4) <= EXACT


@pytest.mark.parametrize(
    ("kind", "draft_settings"),
    [
        ("repetition", dict(temperature=0.4)),
        ("repetition", dict(temperature=0)),
        ("min-p", dict(temperature=2.0, top_k=2)),
        ("temperature, top-k, top-p", dict(top_p=0.5)),
    ],
)
def test_the_draft_model_may_have_settings_of_its_own(kind, draft_settings):
    shared = sampling(kind)
    apart = replace(shared, for_draft=replace(shared, **draft_settings))
    assert error(kind, apart, config()) <= EXACT
    logits, prefix = DRAFT((0,)).log()[None], [torch.tensor(PROMPT)]
    laws = [
        draft_distributions(logits, row_sampling, prefix, drafts=2, vocabulary=SIZE)[0][0]
        for row_sampling in (apart, shared)
    ]
    assert [law.tolist() for law in laws[0]] != [law.tolist() for law in laws[1]]
    assert torch.equal(law_at(logits[0], apart, PROMPT), law_at(logits[0], shared, PROMPT))


def test_a_draft_model_without_the_one_allowed_token_drafts_on():
    """Its distribution of nothing would have been not a number."""
    lacking = TableModel(lambda prefix: torch.tensor([0.5, 0.3, 0.2, 0]), SIZE)
    settings = GenerationConfig(do_sample=True, top_k=None, suppress_tokens=[0, 1, 2])
    listed = built_by_transformers(settings, PROMPT, SIZE, [])
    law = step_law(models()[0], lacking, PROMPT, *config(), sampling_from(listed, greedy=False)).law
    assert law == {(3,): pytest.approx(1)}


@pytest.mark.parametrize("draft_settings", [None, Sampling(), Sampling(0.5)])
def test_a_greedy_target_stays_greedy_whatever_the_draft(draft_settings):
    law = step_law(*models(), PROMPT, *config(), Sampling(0, for_draft=draft_settings)).law
    assert all(
        token == int(TARGET((*PROMPT, *tokens[:i])).argmax()) for tokens in law for i, token in enumerate(tokens)
    )


# Rows side by side, each with settings of its own

SIDE_BY_SIDE = [[0, 2, 1], [3, 1, 1]]
PAIRS = [  # temperatures alone; then one row looks back, or both do
    (Sampling(0.5), Sampling(1.8)),
    (Sampling(0), Sampling(1.2, top_k=3)),
    (Sampling(0), sampling("repetition")),
    (sampling("minimum"), Sampling(0.7, top_p=0.9)),
    (sampling("a user's own"), sampling("presence and frequency")),
    (sampling("min-p"), replace(sampling("repetition"), for_draft=Sampling(0.6))),
]
USUAL, SEVERAL = ("anchored:lorenz", "2x1", "deferred", 1), ("distinct:recursive_rejection", "2x1", "deferred", 1)
TWO_STEPS = ("iid:lorenz", "1", "commit", 2)  # scheme, tree, walk, steps


def joined(samplings: Pair, way: Way) -> State:
    """Two rows that have been started one by one."""
    states = []
    for prompt, row_sampling in zip(SIDE_BY_SIDE, samplings, strict=True):
        target, draft = models()
        drafter = (
            SideBySide([draft, TableModel(random_table(SIZE, 3, 3), SIZE)])
            if way[0].scheme.law.per_draft_distributions
            else draft
        )
        states.append(first_state(target, drafter, prompt, *way, row_sampling))
    return extend(*states)


def errors(samplings: Pair, used_samplings: Pair, way: tuple[str, str, str, int]) -> list[float]:
    """How far two rows with the settings `given` are from the targets of `both`."""
    *names, steps = way
    path, result = config(*names), []
    count = steps * (path[1].limits.shape.depth + 1)
    for prompt, row_sampling, law in zip(
        SIDE_BY_SIDE, samplings, laws_of_rows(joined(used_samplings, path), path, steps), strict=True
    ):

        @cache
        def conditional(
            tokens: tuple[int, ...], prompt: list[int] = prompt, row_sampling: Sampling = row_sampling
        ) -> Tensor:
            sequence = (*prompt, *tokens)
            return law_at(TARGET(sequence).log(), row_sampling, sequence)

        result.append(largest_difference(first_tokens(law, conditional, count), target_law(conditional, count)))
    return result


@pytest.mark.parametrize(
    ("samplings", "way"),
    [*((samplings, USUAL) for samplings in PAIRS), (PAIRS[2], SEVERAL), (PAIRS[5], SEVERAL), (PAIRS[3], TWO_STEPS)],
)
def test_rows_side_by_side_have_each_their_own_law(samplings, way):
    assert max(errors(samplings, samplings, way)) <= EXACT


@pytest.mark.parametrize("samplings", PAIRS[1:4])
def test_swapped_settings_are_caught(samplings):
    """The biased twin."""
    assert min(errors(samplings, samplings[::-1], USUAL)) > BIASED


def test_all_lines_at_once_agree_with_every_line_by_itself():
    rows = [Sampling(0.5), Sampling(0), Sampling(1.3, top_k=2), Sampling(0.5)]
    logits = torch.randn(4, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    alone = [law_at(line, row_sampling) for line, row_sampling in zip(logits, rows, strict=True)]
    together = [target.probabilities for target in roots(logits, rows).at([(row, 0) for row in range(4)])]
    assert torch.equal(torch.stack(together), torch.stack(alone))


def test_numbers_take_the_fast_way_and_agree_with_transformers():
    logits = torch.randn(50, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for setting in (dict(temperature=0.7, top_k=40, top_p=0.8), dict(top_p=0.3), dict(temperature=1.9, top_k=7),
                    dict(min_p=0.1), dict(temperature=1.5, top_k=40, top_p=0.9, min_p=0.3)):  # fmt: skip
        config = GenerationConfig(do_sample=True, **(dict(top_k=None) | setting))
        listed = built_by_transformers(config, PROMPT, 300, [])
        fast = sampling_from(listed, greedy=False)
        assert fast == Sampling(**setting)
        assert torch.allclose(target_distributions(logits, fast)[0], listed(None, logits).softmax(-1), atol=EXACT)


UNUSUAL_WARPERS: list[list[LogitsProcessor]] = [
    [TopPLogitsWarper(0.1, min_tokens_to_keep=2)],
    [MinPLogitsWarper(0.9, min_tokens_to_keep=2)],
    [TopPLogitsWarper(0.0)],
    [TopKLogitsWarper(5, filter_value=-5.0)],
    [TemperatureLogitsWarper(2.0), TopPLogitsWarper(0.7, filter_value=0.0)],
    [MinPLogitsWarper(0.2, filter_value=-2.0)],
    [TemperatureLogitsWarper(0.5), TemperatureLogitsWarper(100.0)],
    [TopPLogitsWarper(1.0), TemperatureLogitsWarper(100.0)],
]


@pytest.mark.parametrize("listed", UNUSUAL_WARPERS, ids=lambda listed: "+".join(type(w).__name__ for w in listed))
def test_unusual_warpers_leave_what_they_leave_in_transformers(listed: list[LogitsProcessor]) -> None:
    """Of logits that do not sum to one, in float32, in which small probabilities vanish."""
    chance = torch.Generator().manual_seed(3)
    logits = torch.cat([torch.linspace(-200, 0, 50)[None], 3 * torch.randn(4, 50, generator=chance)])
    expected = LogitsProcessorList(listed)(None, logits).softmax(-1)
    assert torch.allclose(target_distributions(logits, sampling_from(listed, greedy=False))[0], expected, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_sequences_are_kept_only_for_processors_that_look_at_them(kind):
    state = first_state(*models(), PROMPT, *config(), sampling(kind))
    assert (state.rows[0].prefix is not None) == (kind in SEEING)


def test_processors_of_other_rows_and_lengths():
    """Each row has its own: the minimum counts from each prompt's end, and a constraint knows its row."""
    prompts = [[0, 2, 1], [3], [1, 1]]
    allowed = PrefixConstrainedLogitsProcessor(lambda row, _: [row, 3], 1)
    rows, _ = md.generate(*models(), prompts, tree="2x1", max_new_tokens=6, eos_token_id=3, min_new_tokens=4,
                          logits_processor=[allowed])  # fmt: skip
    for row, tokens in enumerate(rows):
        assert len(tokens) >= 5
        assert set(tokens[:-1].tolist()) == {row}


def run(**changes) -> tuple[list[list[int]], Info]:
    keywords = dict(tree="2x2x1", generator=torch.Generator().manual_seed(5), max_new_tokens=24) | changes
    keywords = {name: value for name, value in keywords.items() if value is not None}
    prompts = keywords.pop("prompts", [PROMPT, [3]])
    rows, info = md.generate(*models(), prompts, **keywords)
    return [row.tolist() for row in rows], info


def test_settings_by_name_and_as_params_give_the_same_tokens():
    settings = dict(top_n_sigma=1.5, temperature=0.9, presence_penalty=0.5, draft_temperature=0.7, max_new_tokens=12)
    by_name = run(**settings)[0]
    assert run(params=SamplingParams(**settings), max_new_tokens=None)[0] == by_name
    others = SamplingParams(**settings | {"top_n_sigma": 0.1})
    assert run(params=others, top_n_sigma=1.5, max_new_tokens=None)[0] == by_name
    assert run(**settings | {"top_n_sigma": None})[0] != by_name


def test_log_probabilities():
    """With as many of the likeliest as were asked for; test_hugging_face compares more of them."""
    rows, info = run(logprobs=2, eos_token_id=3, presence_penalty=2.0, top_k=3)
    penalty = CountPenalty(2.0, 0, len(PROMPT))
    for position, (token, entry) in enumerate(zip(rows[0], info.logprobs[0], strict=True)):
        sequence = (*PROMPT, *rows[0][:position])
        scores = penalty(torch.tensor([sequence]), TARGET(sequence).log()[None])[0]
        expected = law_at(scores, Sampling(top_k=3)).log()
        best = expected.topk(2)
        assert entry.logprob == pytest.approx(float(expected[token]))
        assert [token for token, _ in entry.top] == best.indices.tolist()
        assert [value for _, value in entry.top] == pytest.approx(best.values.tolist())
    assert run(logprobs=True)[1].logprobs[0][0].top == ()
    assert run()[1].logprobs == []


def test_length_and_time_limits():
    assert [len(row) for row in run(max_length=9, max_new_tokens=None, eos_token_id=[])[0]] == [6, 8]
    assert [len(row) for row in run(max_length=9, max_new_tokens=3, eos_token_id=[])[0]] == [3, 3]
    short = GenerationConfig(max_new_tokens=2, do_sample=False)
    assert run(generation_config=short, max_new_tokens=None)[0] == [row[:2] for row in run(temperature=0)[0]]
    for seconds in (0, 1e-9):
        tokens, info = run(max_time=seconds, max_new_tokens=50, logits_processor=[Zigzag()])
        assert 1 <= min(map(len, tokens)) <= max(map(len, tokens)) <= 4, "the pass that the time ends in, and no more"
        assert info.target_passes <= 1


def test_a_deadline_does_not_move_with_the_clock_on_the_wall(monkeypatch):
    """Which may be set while a run goes on, also backwards: here by a day at every look."""
    days = itertools.count(time.time(), 86_400)
    monkeypatch.setattr(time, "time", lambda: next(days))
    assert [len(row) for row in run(max_time=1000, eos_token_id=[])[0]] == [24, 24]


def test_the_deadline_of_a_criterion_counts_from_its_own_beginning():
    """Which transformers takes from the clock on the wall, and a user may set."""
    now = time.time()
    for began, left in ((now, 60), (now - 50, 10), (now - 70, -10)):
        ends = ends_from_criteria([MaxTimeCriteria(60, began)], [[0]], [5], torch.device("cpu"))
        assert ends.deadline - time.monotonic() == pytest.approx(left, abs=5)


def test_a_length_that_is_given_counts_though_it_is_the_default_of_an_older_transformers(monkeypatch):
    """Version 4 says 20 where nothing was asked for. That cannot be told from 20 in a whole configuration."""
    fields = generation_config.fields() | {"max_length": 20}
    monkeypatch.setattr(generation_config, "fields", lambda: fields)
    assert [len(row) for row in run(max_length=20, max_new_tokens=None, eos_token_id=[])[0]] == [17, 19]
    for base, settings, count in (
        (GenerationConfig(max_length=20), {}, 128),
        (GenerationConfig(max_length=20), {"max_length": 20}, 17),
        (GenerationConfig(max_length=21), {}, 18),
        (None, {}, 128),
    ):
        assert generation_config.params_from(base, settings, set()).new_tokens(3) == count


CHANGED = {  # a value other than the default for every refused field
    "num_beams": 2, "num_beam_groups": 2, "diversity_penalty": 0.5, "constraints": [1], "force_words_ids": [[1]],
    "penalty_alpha": 0.6, "dola_layers": "high", "low_memory": True, "guidance_scale": 1.5, "token_healing": True,
    "use_cache": False, "cache_implementation": "quantized", "output_attentions": True, "output_hidden_states": True,
    "output_scores": True, "output_logits": True, "use_mtp": True, "is_assistant": True, "prompt_lookup_num_tokens": 3,
    "assistant_early_exit": 2, "assistant_ensemble_weight": 0.5, "speculation_type": "dflash",
    "continuous_batching_config": {},
}  # fmt: skip


def test_every_field_of_the_configuration_is_accounted_for():
    kinds = [
        generation_config.HONOURED_SETTINGS,
        generation_config.IGNORED_SETTINGS,
        set(generation_config.REFUSED_SETTINGS),
    ]
    assert set(generation_config.fields()) <= generation_config.KNOWN_SETTINGS
    assert set(CHANGED) == kinds[-1]
    assert sum(map(len, kinds)) == len(generation_config.KNOWN_SETTINGS)


def test_what_is_refused_is_refused_by_name():
    for name in set(CHANGED) & set(generation_config.fields()):  # of this version of transformers
        with pytest.raises(md.AdviceError, match=f"{name}=.* is not supported by multi-draft decoding; "):
            run(**{name: CHANGED[name]})


def test_a_field_that_nobody_knows_yet_is_refused_once_it_is_set(monkeypatch):
    monkeypatch.setattr(generation_config, "fields", lambda: vars(GenerationConfig()) | {"flux": None})
    run(max_new_tokens=1)
    with pytest.raises(md.AdviceError, match=r"flux=0\.5 is not supported"):
        run(flux=0.5)


MARK = SynthIDTextWatermarkLogitsProcessor(2, [1], 8, 0, 4, "cpu")


@pytest.mark.parametrize(
    ("changes", "advice"),
    [
        (dict(temperatur=1), "unknown setting 'temperatur'; did you mean 'temperature'"),
        (dict(tokenizer=1), "unknown setting 'tokenizer'; did you mean 'stop_tokenizer'"),
        (dict(seed=1), r"unknown setting 'seed'; did you mean 'generator=torch.Generator\(\).manual_seed\(1\)'"),
        (dict(watermarking_config=dict(bia=1.5)), r"watermarking_config is .*bia.*; change it, or leave it out"),
        (dict(watermarking_config=dict(greenlist_ratio=2)), "watermarking_config is .*; change it, or leave it out"),
        (dict(stop="x"), "stop strings need the tokenizer; pass it as stop_tokenizer"),
        (dict(logits_processor=[Counter()]), "Counter keeps a state between calls or between rows"),
        (dict(logits_processor=[Neighbour()]), "Neighbour keeps a state between calls or between rows"),
        (dict(logits_processor=[MARK]), "SynthIDTextWatermarkLogitsProcessor keeps a state"),
        (dict(suppress_tokens=[0, 1, 2, 3]), "SuppressTokensLogitsProcessor leaves no token"),
        (dict(draft_model=models()[1]), "the draft model comes second"),
        (dict(top_n_sigma=-2), "top_n_sigma is -2; use a number from 0 to 100, or -1 for off"),
        (dict(params=SamplingParams(), generation_config=GenerationConfig()), "params are both given; use one of them"),
        (dict(max_length=2), "max_length 2 leaves nothing after a prompt of 3"),
    ],
)
def test_advice(changes, advice):
    with pytest.raises(md.AdviceError, match=advice):
        run(**({"max_new_tokens": None} | changes))
