"""The bodies of requests, and the sampling settings that they ask for.

Unknown fields are ignored, because clients send many. Known fields that are not supported are refused by name.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Annotated, Any, Literal, cast

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model

from multidraft.errors import AdviceError
from multidraft.sampling.checks import check as check_setting
from multidraft.sampling.grammar import Grammar
from multidraft.sampling.params import SETTINGS, SamplingParams
from multidraft.sampling.ranges import check_stop_strings, check_tokens
from multidraft.sampling.settings import Sampling
from multidraft.server import Limits
from multidraft.server.tools import functions_of

Token = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
PositiveCount = Annotated[int, Field(ge=1, lt=2**31)]
LongText = Annotated[str, Field(max_length=2**20)]
FAIL_FAST = Field(fail_fast=True)  # else a list with 100,000 wrong items would take seconds to refuse
Tokens = Annotated[list[Token], FAIL_FAST]
MAX_BIASES = 1024
SETTINGS_BY_FIELD = {known.served: name for name, known in SETTINGS.items() if known.served is not None}
SAMPLING_FIELDS: dict[str, Any] = {
    known.served: (known.kind | None, Field(None, description=known.help))
    for known in SETTINGS.values()
    if known.served
}
SamplingBody: Any = create_model("SamplingBody", __config__=ConfigDict(extra="allow"), **SAMPLING_FIELDS)


def limit_size(biases: Any) -> Any:
    """Raise if the dictionary has too many entries to check."""
    if isinstance(biases, dict) and len(biases) > MAX_BIASES:
        raise ValueError(f"logit_bias names more than {MAX_BIASES} tokens")
    return biases


Biases = Annotated[dict[Token, float], BeforeValidator(limit_size, json_schema_input_type=dict[Token, float])]


class GenerationBody(SamplingBody):
    """The fields of every request that generates text; those of sampling come from `SamplingParams`."""

    model: str
    max_tokens: Count | None = None
    logit_bias: Biases | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], FAIL_FAST] | None = None
    stop_token_ids: Tokens | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    ignore_eos: bool = False
    multidraft: bool = False  # our extension: each token's kind, and each step's tree
    best_of: int | None = None
    tool_choice: Any = None
    response_format: Any = None
    structured_outputs: Any = Field(None, description="vLLM's form of an answer: json, regex, choice or grammar.")
    guided_json: Any = Field(None, description="A JSON schema, as vLLM had it.")
    guided_regex: Any = Field(None, description="A regular expression, as vLLM had it.")
    guided_choice: Any = Field(None, description="Texts to choose from, as vLLM had it.")
    guided_grammar: Any = Field(None, description="A grammar in Lark's form or in llama.cpp's, as vLLM had it.")

    @property
    def stops(self) -> list[str]:
        """All stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        """The number of answers per prompt."""
        return self.n or 1

    @property
    def num_logprobs(self) -> int | None:
        """How many most likely tokens are listed per token; None without log-probabilities."""
        return None

    @cached_property
    def functions(self) -> dict[str, dict[str, Any]]:
        """The functions that the answer may call: the schema of their arguments by name."""
        return {}

    @property
    def is_single_call(self) -> bool:
        """Whether the answer may call one function only."""
        return False

    @property
    def new_tokens(self) -> int | None:
        """The requested number of new tokens, if any."""
        return self.max_tokens

    def has_stream_option(self, option: Literal["include_usage", "continuous_usage_stats"]) -> bool:
        """Whether the option is on; `continuous_usage_stats` also needs `include_usage`."""
        options = self.stream_options or {}
        return bool(options.get("include_usage") and options.get(option))


class CompletionBody(GenerationBody):
    """A text to continue, or several, as text or as tokens."""

    prompt: LongText | Tokens | Annotated[list[LongText], FAIL_FAST] | Annotated[list[Tokens], FAIL_FAST]
    echo: bool | None = None
    logprobs: Count | None = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """All prompts, each as text or as tokens."""
        is_list = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return cast(Any, self.prompt if is_list else [self.prompt])

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs


class ChatBody(GenerationBody):
    """A conversation to answer."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_tokens: PositiveCount | None = None
    max_completion_tokens: PositiveCount | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    tools: Annotated[list[dict[str, Any]], FAIL_FAST] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    @cached_property
    def functions(self) -> dict[str, dict[str, Any]]:
        return functions_of(self.tools)

    @property
    def is_single_call(self) -> bool:
        return self.parallel_tool_calls is False

    @property
    def num_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def new_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


class TokenizeBody(BaseModel):
    """A text, or a conversation, whose tokens are asked for."""

    prompt: LongText | None = None
    messages: Annotated[list[dict[str, Any]], FAIL_FAST] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """Tokens whose text is asked for."""

    tokens: Tokens


UNSUPPORTED_FIELDS = {  # other servers have them, and ignoring them would give wrong answers
    "suffix": "text is continued, not filled in",
    "use_beam_search": "beam search has no distribution",
    "bad_words": "use logit_bias",
    "allowed_token_ids": "use logit_bias",
    "logits_processors": "the server runs no code of a client's",
    "chat_template": "the server has its own",
}
OFF_VALUES: tuple[Any, ...] = (None, False, "", [], {}, 0)  # values that ask for nothing


def sampling_values(body: GenerationBody) -> dict[str, Any]:
    """The sampling settings that are set, by their names in the body."""
    values = {served: getattr(body, served) for served in SETTINGS_BY_FIELD}
    return {
        served: value
        for served, value in values.items()
        if value is not None and value not in SETTINGS[SETTINGS_BY_FIELD[served]].served_off
    }


def sampling_of(
    body: GenerationBody,
    prompt: Sequence[int],
    vocabulary: int,
    ends: Collection[int],
    device: torch.device,
    grammar: Grammar | None = None,
) -> Sampling:
    """What an answer to a prompt is sampled with."""
    values = {SETTINGS_BY_FIELD[served]: value for served, value in sampling_values(body).items()}
    params = SamplingParams(**values, logit_bias=body.logit_bias, eos_token_id=sorted(ends), grammar=grammar)
    return params.compile(prompt, vocabulary, device)


def check(body: GenerationBody, limits: Limits, vocabulary: int) -> None:
    """Raise on values that are out of range or not supported."""
    for served, value in sampling_values(body).items():
        check_setting(SETTINGS_BY_FIELD[served], value, served)
    if body.seed is not None:
        check_setting("seed", body.seed)
    check_setting("logit_bias", body.logit_bias or {}, vocabulary=vocabulary)
    check_stop_strings("stop", body.stops)
    check_tokens("stop_token_ids", body.stop_token_ids or [], vocabulary)
    refuse_unsupported(vars(body) | (body.model_extra or {}), UNSUPPORTED_FIELDS)
    if body.best_of not in (None, body.choices):
        raise AdviceError("best_of is not supported: all answers are returned; leave it out, and set n")
    if len(body.stops) > limits.stops:
        raise AdviceError(f"there are {len(body.stops)} stop strings; give at most {limits.stops}")
    if (body.num_logprobs or 0) > limits.logprobs:
        raise AdviceError(f"{body.num_logprobs} alternatives are too many; ask for at most {limits.logprobs}")
    if body.min_tokens and body.new_tokens is not None and body.min_tokens > body.new_tokens:
        raise AdviceError(f"min_tokens is {body.min_tokens}, above max_tokens {body.new_tokens}; lower it")


def refuse_unsupported(
    fields: Mapping[str, Any],
    reasons: Mapping[str, str],
    harmless: Mapping[str, Collection[Any]] = MappingProxyType({}),
) -> None:
    """Raise on a field that is not supported, unless its value asks for nothing, or is one of its harmless values."""
    for name, reason in reasons.items():
        if fields.get(name) not in (*OFF_VALUES, *harmless.get(name, ())):
            raise AdviceError(f"{name} is not supported: {reason}; leave it out")
