"""What a request asks for, as the engine takes it; what cannot be honoured is refused by name."""

from collections.abc import Collection
from typing import Any

import torch
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
)

from multidraft.errors import AdviceError
from multidraft.sampling.processors import CountPenalty, LogitBias, Processors
from multidraft.sampling.settings import Sampling
from multidraft.sampling.settings_table import check_biases, check_tokens
from multidraft.server.bodies import Sampled
from multidraft.server.limits import Limits

FORCED = "the form of an answer cannot be forced"
REFUSED = {  # what another server may know, and what would come out wrong if it were passed over
    "suffix": "text is continued, not filled in",
    "use_beam_search": "beam search has no distribution",
    "guided_json": FORCED,
    "guided_regex": FORCED,
    "guided_choice": FORCED,
    "guided_grammar": FORCED,
    "structured_outputs": FORCED,
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
    "logits_processors": "the server runs no code of a client's",
    "chat_template": "the server has its own",
}


def sampling_of(
    body: Sampled, prompt_length: int, ends: Collection[int] = (), device: torch.device | str = "cpu"
) -> Sampling:
    """The law that an answer is drawn from."""
    before: list[LogitsProcessor] = []
    if body.repetition_penalty not in (None, 1):
        before.append(RepetitionPenaltyLogitsProcessor(float(body.repetition_penalty or 1)))
    if body.logit_bias:
        before.append(LogitBias(dict(body.logit_bias)))
    if body.presence_penalty or body.frequency_penalty:
        before.append(CountPenalty(body.presence_penalty or 0, body.frequency_penalty or 0, prompt_length))
    if body.min_tokens and ends:
        before.append(MinNewTokensLengthLogitsProcessor(prompt_length, body.min_tokens, sorted(ends), str(device)))
    temperature = 1.0 if body.temperature is None else body.temperature
    after = [MinPLogitsWarper(body.min_p)] if body.min_p and temperature else []
    top_k = body.top_k if body.top_k and body.top_k > 0 else None
    top_p = None if body.top_p == 1 else body.top_p  # which clients send to say nothing
    return Sampling(temperature, top_k, top_p, own(before), own(after))


def own(processors: list[Any]) -> Processors | None:
    """A row's own processors, if there are any."""
    return Processors(processors) if processors else None


def check(body: Sampled, limits: Limits, vocabulary: int) -> None:
    """Raise on what is too much, or cannot be honoured."""
    given = vars(body) | (body.model_extra or {})
    for name, reason in REFUSED.items():
        if given.get(name) not in (None, False, "", [], {}, 0):
            raise AdviceError(f"{name} is not supported: {reason}; leave it out")
    if body.best_of not in (None, body.choices):
        raise AdviceError("best_of is not supported: all answers are returned; leave it out, and ask for n")
    if len(body.stops) > limits.stops:
        raise AdviceError(f"there are {len(body.stops)} stop strings; give at most {limits.stops}")
    check_biases("logit_bias", body.logit_bias or {}, vocabulary)
    check_tokens("stop_token_ids", body.stop_token_ids or [], vocabulary)
    if (body.tops or 0) > limits.logprobs:
        raise AdviceError(f"{body.tops} alternatives are too many; ask for at most {limits.logprobs}")
    if body.min_tokens and body.new_tokens is not None and body.min_tokens > body.new_tokens:
        raise AdviceError(f"min_tokens is {body.min_tokens}, and max_tokens {body.new_tokens}; give fewer, or more")
    check_form(body)


def check_form(body: Sampled) -> None:
    """Raise where an answer would have to take a form that nobody can promise."""
    kind = body.response_format.get("type") if isinstance(body.response_format, dict) else body.response_format
    if kind not in (None, "text"):
        raise AdviceError(f"response_format is not supported but for text: {FORCED}")
    if body.tool_choice not in (None, "none", "auto"):
        raise AdviceError("tool_choice may be none or auto: no answer can be forced to call a tool")
