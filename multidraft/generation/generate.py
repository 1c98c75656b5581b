"""The public way in: continue prompts with a pair of models, called by itself or by transformers' `model.generate`."""

import inspect
import math
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, LogitsProcessor
from transformers.generation import GenerateDecoderOnlyOutput, MaxLengthCriteria
from transformers.modeling_outputs import ModelOutput

from multidraft.autotune.auto_policy import auto
from multidraft.autotune.plans import MeasuredPair
from multidraft.decoding.batch import Batch
from multidraft.decoding.metrics import Info
from multidraft.decoding.policy import PromptReads, TreePolicy
from multidraft.decoding.record import Logprob
from multidraft.decoding.request import Request, Stop
from multidraft.decoding.state import check_generators, generators_for
from multidraft.decoding.trace import TraceWriter
from multidraft.decoding.warm_up import compile_steps, warm_up
from multidraft.errors import AdviceError
from multidraft.generation import inputs as user_inputs
from multidraft.generation.inputs import Prompts, as_lists
from multidraft.generation.keywords import Options, signature_with_keywords
from multidraft.generation.stopping import Ends, after, ends_from_criteria, stops_by_row
from multidraft.generation.streaming import as_stream
from multidraft.generation.text import text_ends
from multidraft.machine import is_busy, warn_of_spinning
from multidraft.models.ensemble import SideBySide
from multidraft.models.huggingface import compat
from multidraft.models.huggingface.pass_check import DEPENDENCE_NOTE, depends_on_pass
from multidraft.models.reader import Reader
from multidraft.models.user_models import HuggingFaceModel, Model, as_model, as_reader
from multidraft.sampling import generation_config as configs
from multidraft.sampling.from_processors import before_warpers
from multidraft.sampling.param_fields import PromptContext
from multidraft.sampling.params import SamplingParams
from multidraft.sampling.processors import check_pure, for_row, is_bound
from multidraft.sampling.row_faults import RowFault
from multidraft.sampling.settings import Sampling

MAX_PROMPT_TOKENS_BESIDE_ROWS = 512  # that are read between two steps of rows that decode
IGNORED_MODEL_INPUTS = (  # which decoding sets itself, or which are of no use
    "attention_mask use_cache logits_to_keep num_logits_to_keep cache_position synced_gpus".split()
)


@overload
def generate(
    target_model: Model, draft_model: Model | Sequence[Model] | None, inputs: Prompts, /, **settings: Any
) -> tuple[list[Int[Tensor, " new"]], Info]: ...


@overload
def generate(
    model: HuggingFaceModel, input_ids: Int[Tensor, "batch length"], /, **settings: Any
) -> Int[Tensor, "batch longer"] | ModelOutput: ...


def generate(
    target_model: Model,
    draft_or_prompts: Any,
    inputs: Prompts | None = None,
    /,
    *,
    draft_model: Model | Sequence[Model] | None = None,
    generation_config: GenerationConfig | None = None,
    params: SamplingParams | None = None,
    **keywords: Any,
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
    drawn and decided. `measure=True` compares acceptance with the optimum in thirty steps, then every 16; a number says
    how often. `compile=True` compiles the steps of Hugging Face models, which takes a while and pays in long runs.

    Raises `AdviceError` on bad input. A row whose model or processors give no distribution ends with a `RowFault`; it
    is raised when the other rows are done, and holds their tokens.
    """
    target_model = as_model(target_model, "target")
    drafting_model = user_inputs.as_drafter(draft_model if inputs is None else draft_or_prompts, target_model)
    looks_across = depends_on_pass(as_reader(target_model))
    if looks_across and drafting_model is not None:
        warnings.warn(DEPENDENCE_NOTE, stacklevel=2)
        drafting_model = None
    drafters = 0 if drafting_model is None else 1 + isinstance(drafting_model, SideBySide)
    options = Options.take_from(keywords, drafters=drafters)
    if options.compile:
        user_inputs.check_compiles(target_model, drafting_model)
    target = as_reader(target_model, options.compile)
    target.looks_across = looks_across
    draft = None if drafting_model is None else as_reader(drafting_model, options.compile)
    user_inputs.check_pieces(target, draft)
    if inputs is None:
        check_custom(draft, draft_or_prompts, generation_config, params)
        return generate_sequences(target, draft, draft_or_prompts, options, generation_config, keywords)
    if draft_model is not None:
        raise AdviceError("the draft model comes second: generate(target, draft, inputs)")
    if generation_config is not None and params is not None:
        raise AdviceError("generation_config and params are both given; use one of them")
    ends = text_ends(target, options.stop_tokenizer)
    settings = configs.params_from(generation_config or params, keywords, ends)
    own_config = target.generation_config
    pads = [keywords.get("pad_token_id"), *(getattr(c, "pad_token_id", None) for c in (generation_config, own_config))]
    padding = next((pad for pad in pads if pad is not None and pad not in settings.end_tokens), None)
    return generate_rows(target, draft, as_lists(inputs, padding), options, settings)


generate.__dict__["__signature__"] = signature_with_keywords(inspect.signature(generate))


def generate_rows(
    target: Reader, draft: Reader | None, inputs: list[list[int]], options: Options, params: SamplingParams
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Every row as though it were alone: its processors know nothing of padding or of other prompts' lengths."""
    prompts = [prompt for prompt in inputs for _ in range(params.num_return_sequences or 1)]
    new_tokens = [params.new_tokens(len(prompt)) for prompt in prompts]
    budgets = budgets_of(target, draft, prompts, new_tokens, options, params)
    stop = Stop(frozenset(params.end_tokens), options.stopping_criteria or (), target.device)
    deadline = math.inf if params.max_time is None else after(params.max_time)
    ends = Ends(budgets, stops_by_row(stop, params, options.stop_tokenizer, prompts), prompts, deadline)
    samplings = row_samplings(params, ends, target.vocabulary, options.logits_processor or ())
    return run(target, draft, prompts, samplings, ends, options)


def budgets_of(
    target: Reader,
    draft: Reader | None,
    prompts: list[list[int]],
    new_tokens: list[int],
    options: Options,
    params: SamplingParams,
) -> list[int]:
    """How many new tokens each prompt may get; raises AdviceError where prompts do not fit the models or generators."""
    check_generators(options.generator, len(prompts))
    params.check(target.vocabulary)
    limits = user_inputs.sequence_limits(prompts, target, draft, new_tokens)
    return [limit - len(prompt) for limit, prompt in zip(limits, prompts, strict=True)]


def row_samplings(
    params: SamplingParams, ends: Ends, vocabulary: int, processors: Sequence[LogitsProcessor]
) -> list[Sampling]:
    """The sampling of each prompt; prompts for which it is the same share it."""
    differ = params.reads_prompt or any(map(is_bound, processors))
    compiled: dict[tuple, Sampling] = {}
    samplings = []
    for row, (prompt, budget) in enumerate(zip(ends.padded_prompts, ends.budgets, strict=True)):
        key = (len(prompt), budget, row if differ else None)
        if key not in compiled:
            in_all = replace(params, max_length=len(prompt) + budget)
            compiled[key] = in_all.compile(prompt, vocabulary, ends.device, for_row(processors, row))
        samplings.append(compiled[key])
    return samplings


def run(
    target: Reader,
    draft: Reader | None,
    prompts: list[list[int]],
    sampling: list[Sampling],
    ends: Ends,
    options: Options,
) -> tuple[list[Int[Tensor, " new"]], Info]:
    """Decode; a row that cannot go on raises its error once the others are done.

    Processors and criteria see `ends.padded_prompts` in place of the prompts, which is the same but for padding.
    """
    first_prompt = torch.tensor(ends.padded_prompts[0], device=ends.device)
    check_pure(options.logits_processor or (), first_prompt, target.vocabulary)
    config, policy = options.config, policy_for(target, draft, prompts, sampling[0], ends, options)
    requests = requests_of(prompts, sampling, ends, options)
    warm_up(config, policy.limits, ends.device)
    if options.compile:
        compile_steps(policy.limits, [target, draft], prompts, ends.budgets, options.rows_at_a_time(len(prompts)))
    batch = Batch(target, draft, config, policy, options.rows_at_a_time(len(prompts)))
    info = decode(batch, requests, ends, options)
    rows = [torch.tensor(request.tokens, dtype=torch.int64) for request in requests]
    if info.faults:
        fault = info.faults[min(info.faults)]
        fault.tokens, fault.info = rows, info
        raise fault
    return rows, info


def policy_for(
    target: Reader, draft: Reader | None, prompts: list[list[int]], sampling: Sampling, ends: Ends, options: Options
) -> TreePolicy:
    """The policy of the tree that is given, or of `tree="auto"`."""
    if draft is None or options.limits is None:
        return options.policy
    pair = MeasuredPair(target, draft, options.config.scheme, options.config.walk)
    policy = auto(pair, sampling.temperature, options.limits, options.plan_file, options.tune_budget)
    rows, new_tokens = options.rows_at_a_time(len(prompts)), max(sum(ends.budgets), 1)
    reads = PromptReads(sum(map(len, prompts)) / new_tokens, max(len(prompts) - rows, 1) / new_tokens)
    policy.begin(rows, reads)
    return policy


def requests_of(prompts: list[list[int]], sampling: list[Sampling], ends: Ends, options: Options) -> list[Request]:
    """A request for each prompt."""
    generators = generators_for(options.generator, len(prompts))
    return [
        Request(
            prompt,
            ends.budgets[row],
            sampling[row],
            ends.stops[row],
            generators[row],
            num_logprobs=options.num_logprobs,
            padded_prompt=ends.padded_prompts[row],
            index=row,
        )
        for row, prompt in enumerate(prompts)
    ]


def decode(batch: Batch, requests: list[Request], ends: Ends, options: Options) -> Info:
    """Step until all requests have ended, or time is up, and pass on what happens; an interruption has the info."""
    if is_busy():
        warn_of_spinning()
    info, prompts = batch.info, [request.prompt for request in requests]
    info.finish_reasons = [None] * len(requests)  # what stays so has been cut by time, a fault or an interruption
    if options.num_logprobs is not None:
        info.logprobs = [request.logprobs for request in requests]
    trace = TraceWriter(options.trace) if options.trace is not None else None
    with torch.inference_mode(), ExitStack() as stack, info_of_interruption(info), info.whole():
        stream = stack.enter_context(as_stream(options.stream, ends.padded_prompts))
        stack.callback(batch.policy.finish)  # which keeps what was measured, however the run ends
        if trace is not None:
            trace.begin(batch.config, batch.policy, [request.sampling for request in requests], prompts)
            batch.on_record = lambda record, rows: trace.add(record, [request.index for request in rows])
        batch.add(requests)
        while batch.requests and not (time.monotonic() >= ends.deadline and info.tokens):
            for request, update in batch.step(MAX_PROMPT_TOKENS_BESIDE_ROWS if batch.running else math.inf):
                info.finish_reasons[request.index] = update.end
                if update.error is not None:
                    info.faults[request.index] = cast(RowFault, update.error)
                elif update.step is not None:
                    stream(request.index, update.step.emitted)
    if trace is not None:
        trace.end([request.tokens for request in requests])
    return info


@contextmanager
def info_of_interruption(info: Info) -> Iterator[None]:
    """Give a KeyboardInterrupt what has happened so far, as a RowFault has it."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        vars(interrupt)["info"] = info
        raise


@dataclass
class MultiDraftOutput(GenerateDecoderOnlyOutput):
    """What `return_dict_in_generate=True` returns: also how it went, and log-probabilities if asked for."""

    info: Info | None = None
    logprobs: list[list[Logprob]] | None = None


def check_custom(draft: Reader | None, input_ids: Any, config: GenerationConfig | None, params: Any) -> None:
    """Raise AdviceError unless these are the arguments that `model.generate` passes to a custom function."""
    if config is None or not isinstance(input_ids, Tensor):
        raise AdviceError("call generate(target, draft, inputs), or pass it to model.generate as custom_generate")
    if draft is None:
        raise AdviceError(
            "no draft model has arrived; pass it as draft_model, because transformers keeps assistant_model to itself, "
            "or leave out custom_generate"
        )
    if params is not None:
        raise AdviceError("params are for generate(target, draft, inputs); pass model.generate the settings by name")


def generate_sequences(
    model: Reader,
    draft: Reader | None,
    input_ids: Int[Tensor, "batch length"],
    options: Options,
    config: Any,
    prepared: dict[str, Any],
) -> Int[Tensor, "batch longer"] | MultiDraftOutput:
    """What `generate` would return. As there, processors and criteria see a row with its padding on the left."""
    settings = {name: prepared.pop(name) for name in configs.OWN_SETTINGS if name in prepared}
    params = configs.params_from(config, {"stop_strings": None} | settings, set())  # transformers has seen to those
    if options.num_logprobs is not None and not config.return_dict_in_generate:
        raise AdviceError("logprobs come with return_dict_in_generate=True; set it too")
    mask = prepared.get("attention_mask")
    prompts = as_lists({"input_ids": input_ids, "attention_mask": mask})
    check_prepared(prepared, torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool())
    longest = [c.max_length for c in options.stopping_criteria or () if type(c) is MaxLengthCriteria]  # may be longer
    max_new_tokens = [max(min(longest, default=config.max_length) - input_ids.shape[1], 1)] * len(prompts)
    budgets = budgets_of(model, draft, prompts, max_new_tokens, options, params)
    ends = ends_from_criteria(options.stopping_criteria or (), input_ids.tolist(), budgets, input_ids.device)
    ends = ends._replace(stops=stops_by_row(ends.stops[0], params, options.stop_tokenizer, prompts))
    pad = pad_token(config, ends)
    samplings = prepared_samplings(params, ends, model.vocabulary, options.logits_processor or ())
    measure = options.measure if config.return_dict_in_generate else False
    new_tokens, info = run(model, draft, prompts, samplings, ends, replace(options, measure=measure))
    sequences: Any = torch.cat(
        [input_ids, pad_sequence(new_tokens, batch_first=True, padding_value=pad).to(input_ids)], 1
    )
    if not config.return_dict_in_generate:
        return sequences
    return MultiDraftOutput(sequences=sequences, info=info, logprobs=info.logprobs or None)


def prepared_samplings(
    params: SamplingParams, ends: Ends, vocabulary: int, processors: Sequence[LogitsProcessor]
) -> list[Sampling]:
    """The sampling of each row by the processors that transformers has prepared, with those that it lacks."""
    context = PromptContext(params, ends.padded_prompts[0], vocabulary, ends.device)
    complete = before_warpers(processors, params.processors(context, in_transformers=False))
    if any(map(is_bound, complete)):
        return [params.sampling(complete, row) for row in range(len(ends.padded_prompts))]
    return [params.sampling(complete)] * len(ends.padded_prompts)


def pad_token(config: GenerationConfig, ends: Ends) -> int:
    """What fills up rows that end early; transformers has put an end of text in place of a missing one."""
    pad = getattr(config, "_pad_token_tensor", None)
    may_differ = ends.stops[0].criteria or ends.stops[0] is not ends.stops[-1] or len(set(ends.budgets)) > 1
    if pad is None and len(ends.budgets) > 1 and may_differ:
        raise AdviceError("rows may end at different lengths and nothing fills them up; pass pad_token_id")
    return -1 if pad is None else int(pad)


def check_prepared(prepared: Mapping[str, Any], mask: Bool[Tensor, "batch length"]) -> None:
    """Raise on inputs for the model that cannot be honoured: only token ids and a mask of padding can."""
    positions = (mask.long().cumsum(-1) - 1)[mask]
    for name, value in prepared.items():
        if value is None or value is False or name in IGNORED_MODEL_INPUTS:
            continue
        if name in compat.MEMORIES and value.get_seq_length() == 0:
            continue
        if name == "position_ids" and torch.equal(positions, value.expand_as(mask)[mask]):
            continue
        if name in compat.MEMORIES:
            raise AdviceError(f"{name} hold a beginning that trees cannot go on from; pass the whole prompt")
        raise AdviceError(user_inputs.UNREAD_INPUT.format(name))
