"""What requests may hold, and what they ask of the engine; what cannot be honoured is refused by name.

Unknown fields are tolerated, because clients send many; what is wrong is found quickly.
"""

from collections.abc import Collection, Sequence
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from transformers import (
    LogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
)

from multidraft.errors import AdviceError
from multidraft.sampling.processors import CountPenalty, LogitBias, Processors
from multidraft.sampling.settings import Sampling, check_biases, check_stops, check_tokens
from multidraft.sampling.settings import check as check_setting
from multidraft.server import Limits

Token = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
Positive = Annotated[int, Field(ge=1, lt=2**31)]
LongText = Annotated[str, Field(max_length=2**20)]
FAST = Field(fail_fast=True)  # a list of a hundred thousand wrong things would take seconds to be refused
Tokens = Annotated[list[Token], FAST]
MOST_BIASES = 1024
CHECKED = {  # fields that the one table of settings checks, by their names there
    name: name
    for name in "temperature top_p top_k min_p presence_penalty frequency_penalty repetition_penalty seed".split()
} | {"min_tokens": "min_new_tokens", "n": "num_return_sequences"}


def few(biases: Any) -> Any:
    """A dictionary that is small enough to be looked at."""
    if isinstance(biases, dict) and len(biases) > MOST_BIASES:
        raise ValueError(f"logit_bias names more than {MOST_BIASES} tokens")
    return biases


Biases = Annotated[dict[Token, float], BeforeValidator(few, json_schema_input_type=dict[Token, float])]


class Sampled(BaseModel):
    """What every request that generates may say."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: Count | None = None
    min_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: Biases | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], FAST] | None = None
    stop_token_ids: Tokens | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    ignore_eos: bool = False
    multidraft: bool = False  # ours: how every token came to be, and the tree of each step
    best_of: int | None = None
    tool_choice: Any = None
    response_format: Any = None

    @property
    def stops(self) -> list[str]:
        """All stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def tops(self) -> int | None:
        """How many of the most likely tokens are listed beside each one; None without log-probabilities."""
        return None

    @property
    def new_tokens(self) -> int | None:
        """The number of new tokens, if it is named."""
        return self.max_tokens

    def streams(self, option: Literal["include_usage", "continuous_usage_stats"]) -> bool:
        """Whether a stream ends with the numbers of tokens; and whether each of its events has them, too."""
        options = self.stream_options or {}
        return bool(options.get("include_usage") and options.get(option))


class CompletionBody(Sampled):
    """A text to continue, or several, as text or as tokens."""

    prompt: LongText | Tokens | Annotated[list[LongText], FAST] | Annotated[list[Tokens], FAST]
    echo: bool | None = None
    logprobs: Count | None = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """One or several, each as text or as tokens."""
        several = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return cast(Any, self.prompt if several else [self.prompt])

    @property
    def tops(self) -> int | None:
        return self.logprobs


class ChatBody(Sampled):
    """A conversation to answer."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: Annotated[list[dict[str, Any]], FAST] | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @property
    def tops(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class TokenizeBody(BaseModel):
    """A text, or a conversation, whose tokens are asked for."""

    prompt: LongText | None = None
    messages: Annotated[list[dict[str, Any]], FAST] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """Tokens whose text is asked for."""

    tokens: Tokens


FORCED = "the form of an answer cannot be forced"
REFUSED = {  # what another server may know, and what would come out wrong if it were passed over
    "suffix": "text is continued, not filled in",
    "use_beam_search": "beam search has no distribution",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
    "logits_processors": "the server runs no code of a client's",
    "chat_template": "the server has its own",
} | dict.fromkeys("guided_json guided_regex guided_choice guided_grammar structured_outputs".split(), FORCED)


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
    after = Processors([MinPLogitsWarper(body.min_p)]) if body.min_p and temperature else None
    top_k = body.top_k if body.top_k and body.top_k > 0 else None
    top_p = None if body.top_p == 1 else body.top_p  # which clients send to say nothing
    return Sampling(temperature, top_k, top_p, Processors(before) if before else None, after)


def check(body: Sampled, limits: Limits, vocabulary: int) -> None:
    """Raise on what is too much, or cannot be honoured."""
    for name, known_as in CHECKED.items():
        value = getattr(body, name)
        if value is not None and not (name == "top_k" and value in (0, -1)):  # as clients say that there is none
            check_setting(known_as, value, name)
    check_stops("stop", body.stops)
    check_biases("logit_bias", body.logit_bias or {}, vocabulary)
    check_tokens("stop_token_ids", body.stop_token_ids or [], vocabulary)
    check_refused(body)
    if len(body.stops) > limits.stops:
        raise AdviceError(f"there are {len(body.stops)} stop strings; give at most {limits.stops}")
    if (body.tops or 0) > limits.logprobs:
        raise AdviceError(f"{body.tops} alternatives are too many; ask for at most {limits.logprobs}")
    if body.min_tokens and body.new_tokens is not None and body.min_tokens > body.new_tokens:
        raise AdviceError(f"min_tokens is {body.min_tokens}, and max_tokens {body.new_tokens}; give fewer, or more")


def check_refused(body: Sampled) -> None:
    """Raise on what is not supported, and on a form that an answer would have to take."""
    given = vars(body) | (body.model_extra or {})
    for name, reason in REFUSED.items():
        if given.get(name) not in (None, False, "", [], {}, 0):
            raise AdviceError(f"{name} is not supported: {reason}; leave it out")
    if body.best_of not in (None, body.choices):
        raise AdviceError("best_of is not supported: all answers are returned; leave it out, and ask for n")
    kind = body.response_format.get("type") if isinstance(body.response_format, dict) else body.response_format
    if kind not in (None, "text"):
        raise AdviceError(f"response_format is not supported but for text: {FORCED}")
    if body.tool_choice not in (None, "none", "auto"):
        raise AdviceError("tool_choice may be none or auto: no answer can be forced to call a tool")
