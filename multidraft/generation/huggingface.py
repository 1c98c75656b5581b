"""The way in by `model.generate(..., custom_generate=multidraft.generate)`: transformers prepares, we decode."""

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessor, StoppingCriteria
from transformers.generation import GenerateDecoderOnlyOutput

from multidraft.decoding.loop import Streamer
from multidraft.decoding.metrics import Info
from multidraft.decoding.record import Logprob
from multidraft.decoding.stopping import Stopping, from_criteria, stop_strings
from multidraft.errors import AdviceError
from multidraft.generation.inputs import as_lists, vocabulary_of
from multidraft.generation.rows import Options, Rows, budgets_of, run
from multidraft.models.huggingface import Model
from multidraft.sampling import generation_config
from multidraft.sampling.processors import before_warpers, check_known, for_row, is_bound

OURS = {"use_cache", "logits_to_keep", "num_logits_to_keep", "cache_position", "synced_gpus"}  # of no use here


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
    generation_config.check(config)
    generation_config.check_values(config, vocabulary_of(model))
    generation_config.check_sequences(config, vocabulary_of(model))
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

    listed = before_warpers(processors, options.processors(input_ids.shape[1]))
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
