"""The bodies of requests, and the sampling that they ask for; `request_fields` says what becomes of every field."""

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Annotated, Any, ClassVar, Literal, cast

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, create_model, model_validator

from multidraft.errors import AdviceError
from multidraft.sampling.grammar import Grammar
from multidraft.sampling.params import SETTINGS, SamplingParams
from multidraft.sampling.params import check as check_setting
from multidraft.sampling.ranges import check_stop_strings, check_tokens
from multidraft.sampling.settings import Sampling
from multidraft.server import Limits
from multidraft.server.request_fields import Route, asks_for_nothing, ignored_fields, with_our_names
from multidraft.server.tools import functions_of

Token = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
PositiveCount = Annotated[int, Field(ge=1, lt=2**31)]
TokenLimit = Annotated[int, Field(ge=-1, lt=2**31)]
ALL_THE_ROOM = -1  # as a number of tokens
LongText = Annotated[str, Field(max_length=2**20)]
FAIL_FAST = Field(fail_fast=True)  # else a list with 100,000 wrong items would take seconds to refuse
TokenList = Annotated[list[Token], FAIL_FAST]
MAX_BIASES = 1024
NO_DEFAULTS: Mapping[str, Any] = {}
STREAM_OPTIONS = ("include_usage", "continuous_usage_stats")
SETTINGS_BY_FIELD = {known.served: name for name, known in SETTINGS.items() if known.served is not None}
SAMPLING_FIELDS: dict[str, Any] = {
    known.served: (known.kind | None, Field(None, description=known.help))
    for known in SETTINGS.values()
    if known.served
}


class OpenBody(BaseModel):
    """A body that takes fields which it does not know, too."""

    model_config = ConfigDict(extra="allow")

    @property
    def sent_fields(self) -> dict[str, Any]:
        """The fields that were sent."""
        sent = [name for name in type(self).model_fields if name in self.model_fields_set]  # others may have any name
        return {name: getattr(self, name) for name in sent} | (self.model_extra or {})


SamplingBody: Any = create_model("SamplingBody", __base__=OpenBody, **SAMPLING_FIELDS)


def as_biases(biases: Any) -> Any:
    """A dictionary, also of llama.cpp's list of pairs, where False forbids; raises if it has too many entries."""
    if isinstance(biases, dict | list) and len(biases) > MAX_BIASES:
        raise ValueError(f"logit_bias names more than {MAX_BIASES} tokens")
    if isinstance(biases, list) and all(isinstance(pair, list) and len(pair) == 2 for pair in biases):
        biases = {token if isinstance(token, int) else str(token): value for token, value in biases}
        return {token: float("-inf") if value is False else value for token, value in biases.items()}
    return biases


Biases = Annotated[dict[Token, float], BeforeValidator(as_biases, json_schema_input_type=dict[Token, float])]


class PromptBody(BaseModel):
    """How a prompt becomes tokens."""

    add_special_tokens: bool | None = Field(None, description="Default: true for completions, false for chats.")
    truncate_prompt_tokens: TokenLimit | None = Field(None, description="Tokens of the prompt; -1: as many as fit.")
    truncation_side: Literal["left", "right"] | None = None

    @property
    def new_tokens(self) -> int | None:
        """The requested number of new tokens, if any."""
        return None


class GenerationBody(SamplingBody, PromptBody):
    """The fields of every request that generates text; those of sampling come from `SamplingParams`."""

    route: ClassVar[Route]

    model: str
    max_tokens: TokenLimit | None = None
    logit_bias: Biases | None = None
    seed: int | None = None
    stop: str | Annotated[list[str], FAIL_FAST] | None = None
    stop_token_ids: TokenList | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    ignore_eos: bool | None = None
    multidraft: bool | None = None  # our extension: each token's kind, and each step's tree
    best_of: int | None = None
    tool_choice: Any = None
    response_format: Any = None
    structured_outputs: Any = Field(None, description="vLLM's form of an answer: json, regex, choice or grammar.")
    guided_json: Any = Field(None, description="A JSON schema, as vLLM had it.")
    guided_regex: Any = Field(None, description="A regular expression, as vLLM had it.")
    guided_choice: Any = Field(None, description="Texts to choose from, as vLLM had it.")
    guided_grammar: Any = Field(None, description="A grammar in Lark's form or in llama.cpp's, as vLLM had it.")
    regex: Any = Field(None, description="A regular expression, as SGLang has it.")
    ebnf: Any = Field(None, description="A grammar, as SGLang has it.")
    json_schema: Any = Field(None, description="A JSON schema, as SGLang and llama.cpp have it.")
    grammar: Any = Field(None, description="A grammar, as llama.cpp has it.")

    @model_validator(mode="before")
    @classmethod
    def rename_fields(cls, body: Any) -> Any:
        """Give fields the names that they have here."""
        return with_our_names(body, cls.route) if isinstance(body, dict) else body

    def ignored_names(self, template: str) -> list[str]:
        """The names of fields that have no effect."""
        unknown = [f"stream_options.{name}" for name in self.stream_options or {} if name not in STREAM_OPTIONS]
        return [*ignored_fields(self.sent_fields, self.route), *unknown]

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

    @property
    def says_token_ids(self) -> bool:
        """Whether the answer has the ids of its tokens, and of the prompt's."""
        return False

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
        return self.max_tokens

    def has_stream_option(self, option: Literal["include_usage", "continuous_usage_stats"]) -> bool:
        """Whether the option is on; `continuous_usage_stats` also needs `include_usage`."""
        options = self.stream_options or {}
        return bool(options.get("include_usage") and options.get(option))


class CompletionBody(GenerationBody):
    """A text to continue, or several, as text or as tokens."""

    route = "completions"

    prompt: LongText | TokenList | Annotated[list[LongText], FAIL_FAST] | Annotated[list[TokenList], FAIL_FAST]
    echo: bool | None = None
    return_token_ids: bool | None = None
    logprobs: Count | None = None

    @property
    def prompts(self) -> Sequence[str | list[int]]:
        """All prompts, each as text or as tokens."""
        is_list = isinstance(self.prompt, list) and self.prompt and not isinstance(self.prompt[0], int)
        return cast(Any, self.prompt if is_list else [self.prompt])

    @property
    def num_logprobs(self) -> int | None:
        return self.logprobs

    @property
    def says_token_ids(self) -> bool:
        return bool(self.return_token_ids)


class Conversation(PromptBody):
    """What a chat template is given."""

    messages: Any = None
    tools: Annotated[list[dict[str, Any]], FAIL_FAST] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | float | None = None
    documents: Annotated[list[dict[str, Any]], FAIL_FAST] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

    @property
    def shown_tools(self) -> list[dict[str, Any]] | None:
        """The tools that the template is given."""
        return self.tools if self.tools and self.tool_choice != "none" else None

    def template_settings(self, template: str) -> dict[str, Any]:
        """The keywords of the template; raises AdviceError on those that contradict each other, or have no effect."""
        if self.continue_final_message and self.add_generation_prompt:
            raise AdviceError("continue_final_message and add_generation_prompt exclude each other; leave one out")
        if self.documents and "documents" not in variables_of(template):
            raise AdviceError("documents is not supported: the chat template does not read it; leave it out")
        settings: dict[str, Any] = {"documents": self.documents} if self.documents else {}
        if self.reasoning_effort is not None:
            settings["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            settings["enable_thinking"] = False
        settings |= self.chat_template_kwargs or {}
        settings |= {"tools": self.shown_tools} if self.shown_tools else {}
        if self.continue_final_message:
            return settings | {"continue_final_message": True, "add_generation_prompt": False}
        return settings | {"add_generation_prompt": self.add_generation_prompt is not False}

    def unread_settings(self, template: str) -> list[str]:
        """The names of settings that the template does not read."""
        known = variables_of(template)
        unread = [f"chat_template_kwargs.{name}" for name in self.chat_template_kwargs or {} if name not in known]
        readers = {"reasoning_effort", *["enable_thinking"] * (self.reasoning_effort == "none")}
        if self.reasoning_effort is not None and not readers & known:
            unread.append("reasoning_effort")
        if self.add_generation_prompt is False and "add_generation_prompt" not in known:
            unread.append("add_generation_prompt")
        return unread


@lru_cache(8)
def variables_of(template: str) -> frozenset[str]:
    """The variables that a chat template reads; names that it gives to parts of them are not among them."""
    from jinja2 import TemplateError, meta
    from transformers.utils.chat_template_utils import _compile_jinja_template  # which knows tags of its own

    try:
        environment = _compile_jinja_template(template).environment
        return frozenset(meta.find_undeclared_variables(environment.parse(template)))
    except TemplateError as error:
        raise AdviceError(f"the chat template cannot be read: {error}; have the server use another one") from None


class ChatBody(Conversation, GenerationBody):
    """A conversation to answer."""

    route = "chat"

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: TokenLimit | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    parallel_tool_calls: bool | None = None

    def ignored_names(self, template: str) -> list[str]:
        return [*super().ignored_names(template), *self.unread_settings(template)]

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
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens


class TokenizeBody(Conversation):
    """A text, or a conversation, whose tokens are asked for: those that an answer to it would begin with."""

    model_config = ConfigDict(extra="allow")

    model: str | None = None
    prompt: LongText | None = None
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)] | None = None
    return_token_strs: bool | None = None

    def ignored_names(self, template: str) -> list[str]:
        """The names of fields that have no effect; raises AdviceError on one that would change a prompt."""
        unread = dict(self.model_extra or {})
        ignored_fields(unread, "chat")  # raises on one that is refused
        if self.messages is None:  # nothing is rendered
            others = Conversation.model_fields.keys() - PromptBody.model_fields.keys()
            unread |= {name: getattr(self, name) for name in Conversation.model_fields if name in others}
        names = [name for name, value in unread.items() if not asks_for_nothing(name, value, unread)]
        return names if self.messages is None else [*names, *self.unread_settings(template)]


class DetokenizeBody(BaseModel):
    """Tokens whose text is asked for."""

    tokens: TokenList


def sampling_values(body: GenerationBody, defaults: Mapping[str, Any] = NO_DEFAULTS) -> dict[str, Any]:
    """The sampling settings that are set, by their names in the body; `defaults` for those that it lacks."""
    values = {served: getattr(body, served) for served in SETTINGS_BY_FIELD}
    values = {served: defaults.get(served) if value is None else value for served, value in values.items()}
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
    defaults: Mapping[str, Any] = NO_DEFAULTS,
) -> Sampling:
    """What an answer to a prompt is sampled with; `defaults` where the body says nothing."""
    values = {SETTINGS_BY_FIELD[served]: value for served, value in sampling_values(body, defaults).items()}
    params = SamplingParams(**values, logit_bias=body.logit_bias, eos_token_id=sorted(ends), grammar=grammar)
    return params.compile(prompt, vocabulary, device)


def check(body: GenerationBody, limits: Limits, vocabulary: int) -> None:
    """Raise on fields and values that are out of range or not supported."""
    ignored_fields(body.sent_fields, body.route)  # raises on one that is refused
    for served, value in sampling_values(body).items():
        check_setting(SETTINGS_BY_FIELD[served], value, served)
    if body.seed is not None:
        check_setting("seed", body.seed)
    check_setting("logit_bias", body.logit_bias or {}, vocabulary=vocabulary)
    check_stop_strings("stop", body.stops)
    check_tokens("stop_token_ids", body.stop_token_ids or [], vocabulary)
    if body.num_logprobs is None and getattr(body, "top_logprobs", None):
        raise AdviceError("top_logprobs needs logprobs; set logprobs to true, or leave top_logprobs out")
    if body.best_of not in (None, body.choices):
        raise AdviceError("best_of is not supported: all answers are returned; leave it out, and set n")
    if len(body.stops) > limits.stops:
        raise AdviceError(f"there are {len(body.stops)} stop strings; give at most {limits.stops}")
    if (body.num_logprobs or 0) > limits.logprobs:
        raise AdviceError(f"{body.num_logprobs} alternatives are too many; ask for at most {limits.logprobs}")
