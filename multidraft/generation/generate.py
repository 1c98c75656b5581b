"""The public way in: continue prompts with a pair of models, a scheme and a tree."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, overload

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, PreTrainedModel, StoppingCriteria
from transformers.modeling_outputs import ModelOutput

from multidraft.decoding.loop import Stream, Streamer
from multidraft.decoding.metrics import Info
from multidraft.decoding.policy import TreePolicy
from multidraft.decoding.trace import Tell
from multidraft.decoding.tree import Tree
from multidraft.decoding.walks import Walker
from multidraft.errors import AdviceError, check_flag
from multidraft.generation.defaults import SCHEME, TREE, TUNE_BUDGET
from multidraft.generation.inputs import (
    Prompts,
    as_drafter,
    check_compiles,
    check_model,
    check_pieces,
    configured,
    counted,
)
from multidraft.generation.rows import Options, check_callables, generate_rows
from multidraft.models.ensemble import Several
from multidraft.models.huggingface import Model
from multidraft.verification.scheme import Scheme


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
    check_model(target_model, "target")
    draft = as_drafter(draft_model if inputs is None else draft_or_prompts, target_model)
    check_pieces(target_model, draft)
    check_flag(compile, "compile")
    check_flag(synchronise, "synchronise")
    alternatives = counted(logprobs, 0, None, "logprobs", "True, or the number of alternatives")
    more: dict[str, Any] = dict(logprobs=alternatives, compile=compile, synchronise=synchronise)
    drafters = 0 if draft is None else 1 + isinstance(draft, Several)
    config, limits, file = configured(scheme, tree, walk, plan, drafters, measure, **more)
    if compile:
        check_compiles(target_model, draft)
    check_callables(trace, logits_processor, stopping_criteria)
    options = Options(
        config,
        limits=limits,
        tune_budget=tune_budget,
        trace=trace,
        plan_file=file,
        draft_temperature=draft_temperature,
        draft_top_k=draft_top_k,
        draft_top_p=draft_top_p,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=logit_bias or {},
        stop=stop,
        stop_tokenizer=stop_tokenizer,
        generator=generator,
        stream=stream,
    )
    listed: dict[str, Any] = dict(
        config=generation_config, processors=list(logits_processor or ()), criteria=list(stopping_criteria or ())
    )
    if inputs is None:
        from multidraft.generation.huggingface import generate_sequences

        return generate_sequences(target_model, draft, draft_or_prompts, options, **listed, prepared=others)
    if draft_model is not None:
        raise AdviceError("the draft model comes second: generate(target, draft, inputs)")
    return generate_rows(target_model, draft, inputs, options, **listed, changes=others)
