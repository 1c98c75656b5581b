"""What `generate` takes beyond transformers' settings; and rows as though each were alone, from settings to a run."""

import copy
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria

from multidraft.autotune.controller import Auto, Limits, auto
from multidraft.autotune.plans import Subject
from multidraft.decoding.loop import Stopping, Stream, Streamer, as_stream, loop, stop_strings
from multidraft.decoding.metrics import Info
from multidraft.decoding.prefill import compile_steps, start, warm_up
from multidraft.decoding.record import Clock
from multidraft.decoding.state import DecodeConfig, check_generators
from multidraft.decoding.trace import Tell, Trace
from multidraft.errors import AdviceError, shown
from multidraft.generation.inputs import Prompts, as_lists, lengths, vocabulary_of
from multidraft.models import compat
from multidraft.models.compat import home
from multidraft.models.huggingface import Model, answers_prompts
from multidraft.sampling import generation_config as configs
from multidraft.sampling.generation_config import samplings_from
from multidraft.sampling.processors import CountPenalty, LogitBias, check_known, check_pure, for_row, is_bound
from multidraft.sampling.settings import Sampling, check_all, check_biases


@dataclass(frozen=True)
class Changed:
    """What `generate` changes of laws beyond transformers' settings."""

    for_draft: dict[str, Any]  # settings that the draft model has of its own, by name; None for the target's
    penalties: dict[str, Any]
    logit_bias: Mapping[int, float | int]

    def processors(self, prompt_length: int) -> list[LogitsProcessor]:
        """Biases and penalties that transformers does not have."""
        result: list[LogitsProcessor] = [LogitBias(dict(self.logit_bias))] if self.logit_bias else []
        presence, frequency = self.penalties.values()
        if presence or frequency:
            result.append(CountPenalty(presence, frequency, prompt_length))
        return result

    def for_drafts(self, sampling: list[Sampling]) -> list[Sampling]:
        """The settings of every row, of which the draft model has its own where they are given."""
        given = {name: value for name, value in self.for_draft.items() if value is not None}
        made = {each: replace(each, for_draft=replace(each, **given)) if given else each for each in sampling}
        return [made[each] for each in sampling]


@dataclass(frozen=True)
class Options:
    """What `generate` takes beyond transformers' settings."""

    config: DecodeConfig
    limits: Limits | None  # of trees that are chosen while decoding, in place of the configuration's
    plan_file: Path | None  # where what they are chosen by was measured; None: what is kept, or is measured now
    tune_budget: float | int  # seconds that may be spent on timing trees
    changed: Changed
    stop: str | Sequence[str] | None
    stop_tokenizer: Any
    generator: torch.Generator | list[torch.Generator] | None
    stream: Stream | Streamer | None
    trace: Tell | None

    def __post_init__(self) -> None:
        own = {f"draft_{name}": value for name, value in self.changed.for_draft.items()}
        check_all(own | self.changed.penalties | {"tune_budget": self.tune_budget})
        check_biases("logit_bias", self.changed.logit_bias)
        configs.check_stop(self.stop, self.stop_tokenizer)
        if self.config.synchronise and not torch.cuda.is_available():
            raise AdviceError("synchronise=True waits for a GPU, and there is none here; leave it out")
        if self.stream is not None and not callable(self.stream) and not isinstance(self.stream, Streamer):
            raise AdviceError(f"stream is {shown(self.stream)}; pass a streamer, or a function stream(row, emitted)")


def check_callables(trace: Any, processors: Any, criteria: Any) -> None:
    """Raise unless what is to be called can be."""
    if trace is not None and not callable(trace):
        raise AdviceError(f"trace is {shown(trace)}; pass a function trace(record)")
    for name, listed in (("logits_processor", processors), ("stopping_criteria", criteria)):
        if listed is not None and not (isinstance(listed, Sequence) and all(map(callable, listed))):
            raise AdviceError(f"{name} is {shown(listed)}; pass a list of functions of (input_ids, scores)")


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
    ends = configs.ends_of(getattr(target, "generation_config", None), set())
    config = configs.configuration(config, changes, ends)
    prompts = [prompt for prompt in as_lists(inputs) for _ in range(config.num_return_sequences or 1)]
    wanted = [configs.new_tokens(config, len(prompt)) for prompt in prompts]
    budgets = budgets_of(target, draft, prompts, wanted, options)
    configs.check_values(config, vocabulary_of(target))
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
    check_biases("logit_bias", options.changed.logit_bias, vocabulary_of(target))
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
            mine = [*for_row(extra, row), *options.changed.processors(len(prompt))]
            built = compat.logits_processors(own, prompt, vocabulary, mine, device)
            check_known(built)
            made[key] = for_row(built, 0)
        result.append(made[key])
    configs.check_sequences(config, vocabulary)  # whose kinds transformers has checked by now
    return result


def run(target: Model, draft: Model | None, rows: Rows, options: Options) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Decode; a row that cannot go on raises its error once the others are done."""
    prompts, stopping, seen = rows.prompts, rows.stopping, [list(prompt) for prompt in rows.stopping.prompts]
    check_pure(rows.processors[0], torch.tensor(seen[0], device=stopping.device), vocabulary_of(target))
    sampling = options.changed.for_drafts(samplings_from(rows.processors, rows.greedy))
    config = options.config
    if draft is not None and options.limits is not None:
        config = replace(config, policy=choosing(target, draft, options, rows, sampling[0]))
    warm_up(config, stopping.device)
    if config.compile:
        compile_steps(config, [target, draft], prompts, stopping.budgets)
    info, trace = Info(), Trace(options.trace) if options.trace is not None else None
    longest = max(len(prompt) + budget for prompt, budget in zip(prompts, stopping.budgets, strict=True))
    with torch.inference_mode(), ExitStack() as end, info.whole(), as_stream(options.stream, seen) as stream:
        if isinstance(config.policy, Auto) and config.policy is not options.config.policy:
            end.callback(config.policy.finish)  # which keeps what was measured, however the run ends
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
        fault = info.faults[min(info.faults)]
        fault.tokens, fault.info = rows_of_tokens, info
        raise fault
    return rows_of_tokens, info


def choosing(target: Model, draft: Model, options: Options, rows: Rows, sampling: Sampling) -> Auto:
    """What chooses trees while it decodes."""
    subject = Subject(target, draft, options.config.scheme, options.config.walk)
    policy = auto(subject, sampling.temperature, options.limits, options.plan_file, options.tune_budget)
    policy.foresee(len(rows.prompts), sum(map(len, rows.prompts)), sum(rows.stopping.budgets))
    return policy
