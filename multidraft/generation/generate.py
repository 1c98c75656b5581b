"""The public way in: continue prompts with a pair of models, called by itself or by transformers' `model.generate`."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any, overload

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, StoppingCriteria
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.modeling_outputs import ModelOutput

from multidraft.decoding.loop import Stopping, Stream, Streamer, from_criteria, stop_strings
from multidraft.decoding.metrics import Info
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.record import Logprob
from multidraft.decoding.trace import Tell
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError, check_flag
from multidraft.generation import SCHEME, TREE, TUNE_BUDGET
from multidraft.generation import inputs as given
from multidraft.generation.inputs import Prompts, as_lists, counted, vocabulary_of
from multidraft.generation.rows import Changed, Options, Rows, budgets_of, check_callables, generate_rows, run
from multidraft.models.ensemble import Several
from multidraft.models.huggingface import Model
from multidraft.sampling import generation_config as configs
from multidraft.sampling.processors import before_warpers, check_known, for_row, is_bound
from multidraft.verification.scheme import Scheme

OURS = {"use_cache", "logits_to_keep", "num_logits_to_keep", "cache_position", "synced_gpus"}  # of no use here


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

    The first returns the new tokens of every row, and an `Info` on how it went. `inputs` are token ids: a tensor
    (batch, length), a tokenizer's output, or a list of lists. `draft` may be None: then the target decodes alone. It
    may be a draft head's name (`eagle3:FOLDER`; `head` loads one), or a list of models for a scheme of the law
    `distinct`. The second returns what `model.generate` returns. Stop strings are `stop=` and `stop_tokenizer=` there,
    because transformers does not pass its `tokenizer` on.

    **Sampling.** Settings have the names of transformers' `GenerationConfig`: `temperature=1.0` (0 is greedy), `top_k`,
    `min_p`, `repetition_penalty`, `max_new_tokens=128`, `eos_token_id` (the target's own; an empty list for none), and
    so on. They come on top of `generation_config`. What cannot be honoured is refused by name. The draft model has the
    target's settings unless `draft_temperature`, `draft_top_k` or `draft_top_p` say otherwise. With one `generator` a
    run repeats itself. With a list of them, one a row, a row does not depend on its neighbours.

    **Trees.** `tree="auto"` chooses the tree anew every few steps, by what steps of this pair take on this machine.
    That is timed in the first steps of a run, for at most `tune_budget` seconds, and kept; or it is read from the file
    `plan` that `multidraft tune` writes. `"auto,nodes=24,depth=6"` limits the trees
    (docs/auto.md).

    **What comes out.** `stream` is a Hugging Face streamer, or a function `stream(row, emitted)` that is called after
    every step. `logprobs=True` (or the number of alternatives) fills `info.logprobs`. `trace(record)` is told what was
    drawn and decided. `measure=True` compares acceptance with the optimum every 16 steps; a number says how often, and
    False never. `compile=True` compiles the steps of Hugging Face models, which takes a while and pays in long runs.

    Raises `AdviceError` on bad input. A row whose model or processors give no distribution ends with a `RowFault`; it
    is raised when the other rows are done, and holds their tokens.
    """
    given.check_model(target_model, "target")
    draft = given.as_drafter(draft_model if inputs is None else draft_or_prompts, target_model)
    given.check_pieces(target_model, draft)
    check_flag(compile, "compile")
    check_flag(synchronise, "synchronise")
    alternatives = counted(logprobs, 0, None, "logprobs", "True, or the number of alternatives")
    more: dict[str, Any] = dict(logprobs=alternatives, compile=compile, synchronise=synchronise)
    drafters = 0 if draft is None else 1 + isinstance(draft, Several)
    chosen = given.configured(scheme, tree, walk, plan, drafters, measure, **more)
    if compile:
        given.check_compiles(target_model, draft)
    check_callables(trace, logits_processor, stopping_criteria)
    for_draft = dict(temperature=draft_temperature, top_k=draft_top_k, top_p=draft_top_p)
    penalties = dict(presence_penalty=presence_penalty, frequency_penalty=frequency_penalty)
    changed = Changed(for_draft, penalties, logit_bias or {})
    options = Options(*chosen, tune_budget, changed, stop, stop_tokenizer, generator, stream, trace)
    listed: dict[str, Any] = dict(
        config=generation_config, processors=list(logits_processor or ()), criteria=list(stopping_criteria or ())
    )
    if inputs is None:
        return generate_sequences(target_model, draft, draft_or_prompts, options, **listed, prepared=others)
    if draft_model is not None:
        raise AdviceError("the draft model comes second: generate(target, draft, inputs)")
    return generate_rows(target_model, draft, inputs, options, **listed, changes=others)


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
    processors: list[LogitsProcessor],
    criteria: list[StoppingCriteria],
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
    mask = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask
    prompts = as_lists({"input_ids": input_ids, "attention_mask": mask})
    check_prepared(prepared, mask.bool())
    room = [max(config.max_length - input_ids.shape[1], 1)] * len(prompts)
    budgets = budgets_of(model, draft, prompts, room, options)
    criteria = [*criteria, *stop_strings(options.stop, options.stop_tokenizer)]
    stopping = from_criteria(criteria, input_ids.tolist(), budgets, input_ids.device)
    pad = pad_token(config, stopping)

    listed = before_warpers(processors, options.changed.processors(input_ids.shape[1]))
    check_known(listed)
    rows = range(len(prompts))
    lists = [for_row(listed, row) for row in rows] if any(map(is_bound, listed)) else [for_row(listed, 0)] * len(rows)
    measured = options.config.measure if config.return_dict_in_generate else 0
    stream = options.stream or streamer_of_transformers()
    options = replace(options, config=replace(options.config, measure=measured), stream=stream)
    new, info = run(model, draft, Rows(prompts, lists, not config.do_sample, stopping), options)
    sequences: Any = joined(input_ids, new, pad)
    if not config.return_dict_in_generate:
        return sequences
    return MultiDraftOutput(sequences=sequences, info=info, logprobs=info.logprobs or None)


class AfterPrompt:
    """A streamer that already has the prompt."""

    def __init__(self, streamer: Streamer):
        self.streamer, self.has_prompt = streamer, False

    def put(self, value: Tensor) -> None:
        """Pass on all values but the first."""
        if self.has_prompt:
            self.streamer.put(value)
        self.has_prompt = True

    def end(self) -> None:
        """Pass on that there is no more."""
        self.streamer.end()


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
    for name, value in prepared.items():
        if value is None or value is False or name in OURS | {"attention_mask"}:
            continue
        if name == "past_key_values":
            if value.get_seq_length() == 0:
                continue
            raise AdviceError("past_key_values hold a beginning that trees cannot go on from; pass the whole prompt")
        if name == "position_ids" and torch.equal((mask.long().cumsum(-1) - 1)[mask], value.expand_as(mask)[mask]):
            continue
        raise AdviceError(f"{name} is not supported by multi-draft decoding; pass input_ids and attention_mask only")


def joined(input_ids: Int[Tensor, "batch length"], new: list[Tensor], pad: int) -> Int[Tensor, "batch longer"]:
    """Prompts and new tokens, rows that ended early filled up."""
    filled = input_ids.new_full((len(new), max(map(len, new))), pad)
    for row, tokens in enumerate(new):
        filled[row, : len(tokens)] = tokens
    return torch.cat([input_ids, filled], 1)
