"""What a request asks for, as the engine takes it; what cannot be honoured is refused by name."""

import secrets
from typing import Any

import torch
from transformers import LogitsProcessor, LogitsProcessorList, MinPLogitsWarper, RepetitionPenaltyLogitsProcessor

from multidraft.errors import AdviceError
from multidraft.sampling.processors import CountPenalty, LogitBias, Processors
from multidraft.sampling.settings import Sampling
from multidraft.server.bodies import SEEDS, ChatBody, CompletionBody, Sampled
from multidraft.server.guarded import Guarded
from multidraft.server.limits import Limits

SEEDS_APART = 1_000_003  # so that no answer of one seed is another answer of the next
REFUSED = {  # what another server may know, and what would come out wrong if it were passed over
    "suffix": "text is continued, not filled in",
    "use_beam_search": "beam search has no distribution",
    "guided_json": "the form of an answer cannot be forced",
    "guided_regex": "the form of an answer cannot be forced",
    "guided_choice": "the form of an answer cannot be forced",
    "guided_grammar": "the form of an answer cannot be forced",
    "structured_outputs": "the form of an answer cannot be forced",
    "min_tokens": "an answer may end at any token",
    "stop_token_ids": "name stop strings",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
    "logits_processors": "the server runs no code of a client's",
    "chat_template": "the server has its own",
}


def sampling_of(body: Sampled, prompt_length: int) -> Sampling:
    """The law that an answer is drawn from."""
    before: list[LogitsProcessor] = []
    if body.repetition_penalty not in (None, 1):
        before.append(RepetitionPenaltyLogitsProcessor(float(body.repetition_penalty or 1)))
    if body.logit_bias:
        before.append(LogitBias(dict(body.logit_bias)))
    if body.presence_penalty or body.frequency_penalty:
        before.append(CountPenalty(body.presence_penalty or 0, body.frequency_penalty or 0, prompt_length))
    temperature = 1.0 if body.temperature is None else body.temperature
    after = [MinPLogitsWarper(body.min_p)] if body.min_p and temperature else []
    top_k = body.top_k if body.top_k and body.top_k > 0 else None
    top_p = None if body.top_p == 1 else body.top_p  # which clients send to say nothing
    return Sampling(temperature, top_k, top_p, guarded(before), guarded(after))


def guarded(processors: list[Any]) -> Processors | None:
    """A row's own processors, if there are any."""
    return Guarded([LogitsProcessorList(processors)]) if processors else None


def generator_of(seed: int | None, index: int) -> torch.Generator:
    """Random numbers of an answer: with a seed they are the same each time."""
    own = secrets.randbits(62) if seed is None else (seed * SEEDS_APART + index) % SEEDS
    return torch.Generator().manual_seed(own)


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
    if strange := [token for token in body.logit_bias or () if token >= vocabulary]:
        raise AdviceError(f"logit_bias names token {strange[0]}, but the vocabulary is 0 to {vocabulary - 1}")
    if (tops(body) or 0) > limits.logprobs:
        raise AdviceError(f"{tops(body)} alternatives are too many; ask for at most {limits.logprobs}")
    if isinstance(body, ChatBody):
        check_chat(body)


def check_chat(body: ChatBody) -> None:
    """Raise where an answer would have to take a form that nobody can promise."""
    kind = body.response_format.get("type") if isinstance(body.response_format, dict) else body.response_format
    if kind not in (None, "text"):
        raise AdviceError("response_format is not supported but for text: the form of an answer cannot be forced")
    if body.tool_choice not in (None, "none", "auto"):
        raise AdviceError("tool_choice may be none or auto: no answer can be forced to call a tool")


def tops(body: Sampled) -> int | None:
    """How many of the most likely tokens are listed beside each one; None where no log-probabilities are asked for."""
    if isinstance(body, CompletionBody):
        return body.logprobs
    return (body.top_logprobs or 0) if isinstance(body, ChatBody) and body.logprobs else None
