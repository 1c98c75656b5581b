"""What requests may hold. Unknown fields are tolerated, because clients send many; what is wrong is found quickly."""

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from multidraft.sampling.settings_table import check, check_biases, check_stops

Token = Annotated[int, Field(ge=0, lt=2**31)]
Count = Annotated[int, Field(ge=0, lt=2**31)]
LongText = Annotated[str, Field(max_length=2**20)]
FAST = Field(fail_fast=True)  # a list of a hundred thousand wrong things would take seconds to be refused
SEEDS, MOST_BIASES = 2**63, 1024
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
    stop_token_ids: Annotated[list[Token], FAST] | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = None
    ignore_eos: bool = False
    multidraft: bool = False  # ours: how every token came to be, and the tree of each step
    best_of: int | None = None
    tool_choice: Any = None
    response_format: Any = None

    @model_validator(mode="after")
    def in_range(self) -> "Sampled":
        """The same body, if the table allows what is in it; 0 and -1 are how clients say that there is no top_k."""
        for name, known_as in CHECKED.items():
            value = getattr(self, name)
            if value is not None and not (name == "top_k" and value in (0, -1)):
                check(known_as, value, name)
        check_biases("logit_bias", self.logit_bias or {})
        check_stops("stop", self.stops)
        return self

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

    prompt: (
        LongText
        | Annotated[list[Token], FAST]
        | Annotated[list[LongText], FAST]
        | Annotated[list[Annotated[list[Token], FAST]], FAST]
    )
    echo: bool | None = None
    logprobs: Count | None = None
    suffix: Any = None

    @property
    def tops(self) -> int | None:
        return self.logprobs


class ChatBody(Sampled):
    """A conversation to answer."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1, fail_fast=True)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
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

    tokens: Annotated[list[Token], FAST]
