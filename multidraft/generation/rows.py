"""Rows as though each were alone: their processors, their ends, and the run."""

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria

from multidraft.autotune.controller import Auto, auto
from multidraft.autotune.identity import Subject
from multidraft.decoding.clock import Clock
from multidraft.decoding.loop import loop
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import start
from multidraft.decoding.randomness import check_generators
from multidraft.decoding.state import DecodeConfig
from multidraft.decoding.stopping import Stopping, stop_strings
from multidraft.decoding.streams import as_stream
from multidraft.decoding.trace import Trace
from multidraft.decoding.warming import compile_steps, warm_up
from multidraft.generation.inputs import (
    Prompts,
    lengths,
    vocabulary_of,
)
from multidraft.generation.options import Options
from multidraft.generation.prompts import as_lists
from multidraft.models import compat
from multidraft.models.huggingface import Model, answers_prompts, home
from multidraft.sampling import generation_config
from multidraft.sampling.from_processors import samplings_from
from multidraft.sampling.gate import RowFault
from multidraft.sampling.processors import check_known, check_pure, for_row, is_bound
from multidraft.sampling.settings import Sampling
from multidraft.sampling.settings_table import check_biases


@dataclass(frozen=True)
class Rows:
    """What is to be decoded, however `generate` was called.

    Processors and criteria see `stopping.prompts` in place of the prompts, which is the same but for padding.
    """

    prompts: list[list[int]]
    processors: list[LogitsProcessorList]  # of each prompt
    greedy: bool
    stopping: Stopping


def generate_rows(
    target: Model,
    draft: Model | None,
    inputs: Prompts,
    options: Options,
    config: GenerationConfig | None,
    processors: list[LogitsProcessor],
    criteria: list[StoppingCriteria],
    changes: dict[str, Any],
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Every row as though it were alone: its processors know nothing of padding or of other prompts' lengths."""
    ends = generation_config.ends_of(getattr(target, "generation_config", None), set())
    config = generation_config.configuration(config, changes, ends)
    prompts = [prompt for prompt in as_lists(inputs) for _ in range(config.num_return_sequences or 1)]
    wanted = [generation_config.new_tokens(config, len(prompt)) for prompt in prompts]
    budgets = budgets_of(target, draft, prompts, wanted, options)
    generation_config.check_values(config, vocabulary_of(target))
    device = home(target) if isinstance(target, PreTrainedModel) else target.device
    stopping = Stopping(
        budgets,
        ends=set(config.eos_token_id or ()),
        criteria=[*criteria, *stop_strings(options.stop or config.stop_strings, options.stop_tokenizer)],
        prompts=prompts,
        deadline=time.time() + config.max_time if config.max_time else float("inf"),
        device=device,
    )
    lists = row_processors(config, prompts, budgets, vocabulary_of(target), options, processors, device)
    return run(target, draft, Rows(prompts, lists, not config.do_sample, stopping), options)


def budgets_of(
    target: Model, draft: Model | None, prompts: list[list[int]], wanted: list[int], options: Options
) -> list[int]:
    """How many new tokens each prompt may get; raises AdviceError where prompts do not fit the models or generators."""
    check_generators(options.generator, len(prompts))
    check_biases("logit_bias", options.logit_bias, vocabulary_of(target))
    limits = lengths(prompts, target, draft, wanted)
    return [limit - len(prompt) for limit, prompt in zip(limits, prompts, strict=True)]


def row_processors(
    config: GenerationConfig,
    prompts: list[list[int]],
    budgets: list[int],
    vocabulary: int,
    options: Options,
    extra: list[LogitsProcessor],
    device: torch.device,
) -> list[LogitsProcessorList]:
    """The processors of each prompt; prompts for which they are the same share them."""
    made: dict[tuple, LogitsProcessorList] = {}
    by_prompt = {config.encoder_repetition_penalty, config.encoder_no_repeat_ngram_size} - {None, 0, 1.0}
    differ, result = bool(by_prompt) or any(map(is_bound, extra)), []
    for row, (prompt, budget) in enumerate(zip(prompts, budgets, strict=True)):
        key = (len(prompt), budget, row if differ else None)
        if key not in made:
            own = copy.copy(config)
            own.max_length = len(prompt) + budget
            mine = [*for_row(extra, row), *options.processors(len(prompt))]
            built = compat.logits_processors(own, prompt, vocabulary, mine, device)
            check_known(built)
            made[key] = for_row(built, 0)
        result.append(made[key])
    generation_config.check_sequences(config, vocabulary)  # whose kinds transformers has checked by now
    return result


def run(
    target: Model,
    draft: Model | None,
    rows: Rows,
    options: Options,
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Decode; a row that cannot go on raises its error once the others are done."""
    prompts, stopping, seen = rows.prompts, rows.stopping, [list(prompt) for prompt in rows.stopping.prompts]
    check_pure(rows.processors[0], torch.tensor(seen[0], device=stopping.device), vocabulary_of(target))
    sampling = options.for_drafts(samplings_from(rows.processors, rows.greedy))
    config, policy = steered(target, draft, options, rows, sampling[0])
    warm_up(config, stopping.device)
    if config.compile:
        compile_steps(config, [target, draft], prompts, stopping.budgets)
    info, trace = Info(), Trace(options.trace) if options.trace is not None else None
    longest = max(len(prompt) + budget for prompt, budget in zip(prompts, stopping.budgets, strict=True))
    with torch.inference_mode(), finishing(policy), info.whole(), as_stream(options.stream, seen) as stream:
        whole = answers_prompts(target)
        clock = Clock(config.synchronise)
        state = start(prompts, target, draft, config, sampling, longest, options.generator, seen, whole, clock)
        info.add_seconds(clock.seconds)
        if trace is not None:
            trace.begin(config, sampling, prompts)
        tokens = loop(state, config, stopping, stream, info, None if trace is None else trace.add)
    if trace is not None:
        trace.end(tokens)
    rows_of_tokens = [torch.tensor(row, dtype=torch.int64) for row in tokens]
    if info.faults:
        raise first_fault(info, rows_of_tokens)
    return rows_of_tokens, info


def first_fault(info: Info, tokens: list[Tensor]) -> RowFault:
    """The error of the first row that could not go on, with what all rows have come to, and how the run went."""
    fault = info.faults[min(info.faults)]
    fault.tokens, fault.info = tokens, info
    return fault


def steered(
    target: Model, draft: Model | None, options: Options, rows: Rows, sampling: Sampling
) -> tuple[DecodeConfig, Auto | None]:
    """The configuration; where trees are to be chosen while decoding, with what chooses them."""
    config = options.config
    if draft is None or options.limits is None:
        return config, None
    subject = Subject(target, draft, config.scheme, config.walk)
    policy = auto(subject, sampling.temperature, options.limits, options.plan_file, options.tune_budget)
    policy.foresee(len(rows.prompts), sum(map(len, rows.prompts)), sum(rows.stopping.budgets))
    return replace(config, policy=policy), policy


@contextmanager
def finishing(policy: Auto | None) -> Iterator[None]:
    """Keep what was measured, however the run ends."""
    try:
        yield
    finally:
        if policy is not None:
            policy.finish()
