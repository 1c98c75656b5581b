"""The public way in: continue prompts with a pair of models, called by itself or by transformers' `model.generate`."""

import copy
import inspect
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor, LogitsProcessorList, PreTrainedModel, StoppingCriteria
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.modeling_outputs import ModelOutput

from multidraft.autotune.controller import auto
from multidraft.autotune.plans import MeasuredPair
from multidraft.decoding.loop import Stopping, Stream, Streamer, after, as_stream, from_criteria, loop, stop_strings
from multidraft.decoding.metrics import Info
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.prefill import compile_steps, start, warm_up
from multidraft.decoding.record import Clock, Logprob
from multidraft.decoding.state import check_generators
from multidraft.decoding.trace import Tell, Trace
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError
from multidraft.generation import SCHEME, TREE, TUNE_BUDGET
from multidraft.generation import inputs as given
from multidraft.generation.inputs import Options, Prompts, as_lists, vocabulary_of
from multidraft.models import compat
from multidraft.models.ensemble import SideBySide
from multidraft.models.huggingface import Model, answers_prompts
from multidraft.sampling import generation_config as configs
from multidraft.sampling.generation_config import samplings_from
from multidraft.sampling.processors import before_warpers, check_known, check_pure, for_row, is_bound
from multidraft.sampling.settings import check_biases
from multidraft.verification.scheme import Scheme

OURS = "attention_mask use_cache logits_to_keep num_logits_to_keep cache_position synced_gpus".split()  # or of no use


@overload
def generate(
    target_model: Model, draft_model: Model | Sequence[Model] | None, inputs: Prompts, /, **settings: Any
) -> tuple[list[Int[Tensor, " new"]], Info]: ...


@overload
def generate(
    model: PreTrainedModel, input_ids: Int[Tensor, "batch length"], /, **settings: Any
) -> Int[Tensor, "batch longer"] | ModelOutput: ...


def generate(
    target_model: Model,
    draft_or_prompts: Any,
    inputs: Prompts | None = None,
    /,
    *,
    draft_model: Model | Sequence[Model] | None = None,
    scheme: str | Scheme = SCHEME,
    tree: str | Tree | TreePolicy = TREE,
    walk: str | Walker = "deferred",
    plan: str | PathLike | None = None,
    tune_budget: float | int = TUNE_BUDGET,
    draft_temperature: float | int | None = None,
    draft_top_k: int | None = None,
    draft_top_p: float | int | None = None,
    presence_penalty: float | int = 0,
    frequency_penalty: float | int = 0,
    logit_bias: Mapping[int, float | int] | None = None,
    stop: str | Sequence[str] | None = None,
    stop_tokenizer: Any = None,
    logprobs: bool | int = False,
    generator: torch.Generator | list[torch.Generator] | None = None,
    stream: Stream | Streamer | None = None,
    trace: Tell | None = None,
    measure: bool | int = True,
    synchronise: bool = False,
    compile: bool = False,
    generation_config: GenerationConfig | None = None,
    logits_processor: Sequence[LogitsProcessor] = (),
    stopping_criteria: Sequence[StoppingCriteria] = (),
    **others: Any,
) -> Any:
    """Continue prompts by multi-draft speculative decoding; the output has exactly the target's distribution.

    There are two ways to call it. docs/generate.md explains every setting.

        tokens, info = generate(target, draft, inputs, temperature=0.7, max_new_tokens=64)
        sequences = model.generate(**inputs, custom_generate=generate, draft_model=draft, max_new_tokens=64)

    The first returns the new tokens of every row, and an `Info` on how it went; the second what `model.generate`
    returns. `inputs` are token ids: a tensor (batch, length), a tokenizer's output, or a list of lists. `draft` may be
    None (the target decodes alone), a draft head's name (`eagle3:FOLDER`; `head` loads one), or a list of models for a
    scheme of the law `distinct`.

    **Sampling.** Settings have the names of transformers' `GenerationConfig`, on top of `generation_config`:
    `temperature=1.0` (0 is greedy), `top_k`, `min_p`, `repetition_penalty`, `max_new_tokens=128`, `eos_token_id` (the
    target's own; an empty list for none), and so on. What cannot be honoured is refused by name. The draft model has
    the target's settings unless `draft_temperature`, `draft_top_k` or `draft_top_p` say otherwise. With one `generator`
    a run repeats itself; with a list of them, one a row, a row does not depend on its neighbours. Stop strings are
    `stop=` and `stop_tokenizer=`, because transformers does not pass its `tokenizer` on.

    **Trees.** `tree="auto"` (with limits: `"auto,nodes=24,depth=6"`) chooses the tree anew every few steps, by what
    steps of this pair take on this machine. That is timed in the first steps of a run, for at most `tune_budget`
    seconds, and kept; or it is read from the file `plan` that `multidraft tune` writes (docs/auto.md).

    **What comes out.** `stream` is a Hugging Face streamer, or a function `stream(row, emitted)` that is called after
    every step. `logprobs=True` (or the number of alternatives) fills `info.logprobs`. `trace(record)` is told what was
    drawn and decided. `measure=True` compares acceptance with the optimum every 16 steps; a number says how often.
    `compile=True` compiles the steps of Hugging Face models, which takes a while and pays in long runs.

    Raises `AdviceError` on bad input. A row whose model or processors give no distribution ends with a `RowFault`; it
    is raised when the other rows are done, and holds their tokens.
    """
    given.check_model(target_model, "target")
    draft = given.as_drafter(draft_model if inputs is None else draft_or_prompts, target_model)
    given.check_pieces(target_model, draft)
    alternatives = given.counted(logprobs, 0, None, "logprobs", "True, or the number of alternatives")
    more: dict[str, Any] = dict(logprobs=alternatives, compile=compile, synchronise=synchronise)
    drafters = 0 if draft is None else 1 + isinstance(draft, SideBySide)
    chosen = given.configured(scheme, tree, walk, plan, drafters, measure, **more)
    if compile:
        given.check_compiles(target_model, draft)
    for_draft = dict(temperature=draft_temperature, top_k=draft_top_k, top_p=draft_top_p)
    penalties = dict(presence_penalty=presence_penalty, frequency_penalty=frequency_penalty)
    called: Any = stop, stop_tokenizer, generator, stream, trace, logits_processor or (), stopping_criteria or ()
    options = Options(*chosen, tune_budget, for_draft, penalties, logit_bias or {}, *called)
    if inputs is None:
        return generate_sequences(target_model, draft, draft_or_prompts, options, generation_config, others)
    if draft_model is not None:
        raise AdviceError("the draft model comes second: generate(target, draft, inputs)")
    return generate_rows(target_model, draft, inputs, options, generation_config, others)


def generate_rows(
    target: Model,
    draft: Model | None,
    inputs: Prompts,
    options: Options,
    config: GenerationConfig | None,
    changes: dict[str, Any],
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Every row as though it were alone: its processors know nothing of padding or of other prompts' lengths."""
    config = configs.configuration(config, changes, configs.ends_of(getattr(target, "generation_config", None), set()))
    prompts = [prompt for prompt in as_lists(inputs) for _ in range(config.num_return_sequences or 1)]
    budgets = budgets_of(target, draft, prompts, [configs.new_tokens(config, len(p)) for p in prompts], options)
    configs.check_values(config, vocabulary_of(target))
    stopping = Stopping(
        budgets,
        ends=set(config.eos_token_id or ()),
        criteria=[*options.criteria, *stop_strings(options.stop or config.stop_strings, options.stop_tokenizer)],
        prompts=prompts,
        deadline=float("inf") if config.max_time is None else after(config.max_time),
        device=compat.home(target),
    )
    lists = row_processors(config, stopping, vocabulary_of(target), options)
    return run(target, draft, prompts, lists, not config.do_sample, stopping, options)


def budgets_of(
    target: Model, draft: Model | None, prompts: list[list[int]], wanted: list[int], options: Options
) -> list[int]:
    """How many new tokens each prompt may get; raises AdviceError where prompts do not fit the models or generators."""
    check_generators(options.generator, len(prompts))
    check_biases("logit_bias", options.logit_bias, vocabulary_of(target))
    limits = given.lengths(prompts, target, draft, wanted)
    return [limit - len(prompt) for limit, prompt in zip(limits, prompts, strict=True)]


def row_processors(
    config: GenerationConfig, stopping: Stopping, vocabulary: int, options: Options
) -> list[LogitsProcessorList]:
    """The processors of each prompt; prompts for which they are the same share them."""
    made: dict[tuple, LogitsProcessorList] = {}
    by_prompt = {config.encoder_repetition_penalty, config.encoder_no_repeat_ngram_size} - {None, 0, 1.0}
    differ, result = bool(by_prompt) or any(map(is_bound, options.processors)), []
    for row, (prompt, budget) in enumerate(zip(stopping.prompts, stopping.budgets, strict=True)):
        key = (len(prompt), budget, row if differ else None)
        if key not in made:
            own = copy.copy(config)
            own.max_length = len(prompt) + budget
            mine = [*for_row(options.processors, row), *options.added(len(prompt))]
            built = compat.logits_processors(own, list(prompt), vocabulary, mine, stopping.device)
            check_known(built)
            made[key] = for_row(built, 0)
        result.append(made[key])
    configs.check_sequences(config, vocabulary)  # whose kinds transformers has checked by now
    return result


def run(
    target: Model,
    draft: Model | None,
    prompts: list[list[int]],
    processors: list[LogitsProcessorList],
    greedy: bool,
    stopping: Stopping,
    options: Options,
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Decode; a row that cannot go on raises its error once the others are done.

    Processors and criteria see `stopping.prompts` in place of the prompts, which is the same but for padding.
    """
    seen, config = [list(prompt) for prompt in stopping.prompts], options.config
    check_pure(processors[0], torch.tensor(seen[0], device=stopping.device), vocabulary_of(target))
    sampling = options.with_drafts_own(samplings_from(processors, greedy))
    policy = None
    if draft is not None and options.limits is not None:
        subject = MeasuredPair(target, draft, config.scheme, config.walk)
        policy = auto(subject, sampling[0].temperature, options.limits, options.plan_file, options.tune_budget)
        policy.plan_run(len(prompts), sum(map(len, prompts)), sum(stopping.budgets))
        config = replace(config, policy=policy)
    warm_up(config, stopping.device)
    if config.compile:
        compile_steps(config, [target, draft], prompts, stopping.budgets)
    info, trace = Info(), Trace(options.trace) if options.trace is not None else None
    longest = max(len(prompt) + budget for prompt, budget in zip(prompts, stopping.budgets, strict=True))
    with torch.inference_mode(), ExitStack() as end, info.whole(), as_stream(options.stream, seen) as stream:
        if policy is not None:
            end.callback(policy.finish)  # which keeps what was measured, however the run ends
        whole, clock = answers_prompts(target), Clock(config.synchronise)
        state = start(prompts, target, draft, config, sampling, longest, options.generator, seen, whole, clock)
        info.add_seconds(clock.seconds)
        if trace is not None:
            trace.begin(config, sampling, prompts)
        tokens = loop(state, config, stopping, stream, info, None if trace is None else trace.add)
    if trace is not None:
        trace.end(tokens)
    rows = [torch.tensor(row, dtype=torch.int64) for row in tokens]
    if info.faults:
        fault = info.faults[min(info.faults)]
        fault.tokens, fault.info = rows, info
        raise fault
    return rows, info


@dataclass
class MultiDraftOutput(GenerateDecoderOnlyOutput):
    """What `return_dict_in_generate=True` returns: also how it went, and log-probabilities if asked for."""

    info: Info | None = None
    logprobs: list[list[Logprob]] | None = None


def generate_sequences(
    model: Model,
    draft: Model | None,
    input_ids: Int[Tensor, "batch length"],
    options: Options,
    config: GenerationConfig | None,
    prepared: Mapping[str, Any],
) -> Int[Tensor, "batch longer"] | MultiDraftOutput:
    """What `generate` would return. As there, processors and criteria see a row with its padding on the left."""
    if config is None or not isinstance(input_ids, Tensor):
        raise AdviceError("call generate(target, draft, inputs), or pass it to model.generate as custom_generate")
    if draft is None:
        raise AdviceError(
            "no draft model has arrived; pass it as draft_model, because transformers keeps assistant_model to itself, "
            "or leave out custom_generate"
        )
    configs.check(config)
    configs.check_values(config, vocabulary_of(model))
    configs.check_sequences(config, vocabulary_of(model))
    if options.config.logprobs is not None and not config.return_dict_in_generate:
        raise AdviceError("logprobs come with return_dict_in_generate=True; set it too")
    mask = prepared.get("attention_mask")
    prompts = as_lists({"input_ids": input_ids, "attention_mask": mask})
    check_prepared(prepared, torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool())
    room = [max(config.max_length - input_ids.shape[1], 1)] * len(prompts)
    budgets = budgets_of(model, draft, prompts, room, options)
    criteria = [*options.criteria, *stop_strings(options.stop, options.stop_tokenizer)]
    stopping = from_criteria(criteria, input_ids.tolist(), budgets, input_ids.device)
    pad = pad_token(config, stopping)

    listed = before_warpers(options.processors, options.added(input_ids.shape[1]))
    check_known(listed)
    if any(map(is_bound, listed)):
        lists = [for_row(listed, row) for row in range(len(prompts))]
    else:
        lists = [for_row(listed, 0)] * len(prompts)
    measured = options.config.measure if config.return_dict_in_generate else 0
    stream = options.stream or streamer_of_transformers()
    options = replace(options, config=replace(options.config, measure=measured), stream=stream)
    new, info = run(model, draft, prompts, lists, not config.do_sample, stopping, options)
    sequences: Any = torch.cat([input_ids, pad_sequence(new, batch_first=True, padding_value=pad).to(input_ids)], 1)
    if not config.return_dict_in_generate:
        return sequences
    return MultiDraftOutput(sequences=sequences, info=info, logprobs=info.logprobs or None)


class AfterPrompt:
    """A streamer that already has the prompt: the one value with rows."""

    def __init__(self, streamer: Streamer):
        self.streamer, self.end = streamer, streamer.end

    def put(self, value: Tensor) -> None:
        if value.ndim < 2:
            self.streamer.put(value)


def streamer_of_transformers() -> Streamer | None:
    """The `streamer` of `model.generate`, which gives it the prompt, and a custom function nothing of it."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__") != "transformers.generation.utils":
        frame = frame.f_back
    streamer = None if frame is None else frame.f_locals.get("streamer")
    return None if streamer is None else AfterPrompt(streamer)


def pad_token(config: GenerationConfig, stopping: Stopping) -> int:
    """What fills up rows that end early; transformers has put an end of text in place of a missing one."""
    pad = getattr(config, "_pad_token_tensor", None)
    if pad is None and len(stopping.budgets) > 1 and (stopping.criteria or len(set(stopping.budgets)) > 1):
        raise AdviceError("rows may end at different lengths and nothing fills them up; pass pad_token_id")
    return -1 if pad is None else int(pad)


def check_prepared(prepared: Mapping[str, Any], mask: Bool[Tensor, "batch length"]) -> None:
    """Raise on inputs for the model that cannot be honoured: only token ids and a mask of padding can."""
    positions = (mask.long().cumsum(-1) - 1)[mask]
    for name, value in prepared.items():
        if value is None or value is False or name in OURS:
            continue
        if name == "past_key_values" and value.get_seq_length() == 0:
            continue
        if name == "position_ids" and torch.equal(positions, value.expand_as(mask)[mask]):
            continue
        if name == "past_key_values":
            raise AdviceError("past_key_values hold a beginning that trees cannot go on from; pass the whole prompt")
        raise AdviceError(f"{name} is not supported by multi-draft decoding; pass input_ids and attention_mask only")
