"""What requests may hold. Unknown fields are tolerated, because clients send many."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

Penalty = Annotated[float, Field(ge=-2, le=2, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Token = Annotated[int, Field(ge=0, lt=2**31)]
LongText = Annotated[str, Field(max_length=2**20)]
SEEDS = 2**63


class StreamOptions(BaseModel):
    """Whether a stream says how many tokens there were: at its end, or in every event."""

    include_usage: bool = False
    continuous_usage_stats: bool = False


class Sampled(BaseModel):
    """What every request that generates may say."""

    model_config = ConfigDict(extra="allow")

    model: str
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] | None = None
    logit_bias: dict[Token, Annotated[float, Field(ge=-100, le=100, allow_inf_nan=False)]] | None = None
    seed: Annotated[int, Field(ge=-SEEDS, lt=SEEDS)] | None = None
    stop: str | list[str] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool = False
    multidraft: bool = False  # ours: how every token came to be, and the tree of each step
    best_of: int | None = None

    @field_validator("stop")
    @classmethod
    def no_empty_stops(cls, stop: str | list[str] | None) -> str | list[str] | None:
        """An empty text would end every answer at once."""
        listed = [stop] if isinstance(stop, str) else stop or []
        if any(not 0 < len(text) <= 1000 for text in listed):
            raise ValueError("stop strings have 1 to 1000 characters")
        return stop

    @property
    def stops(self) -> list[str]:
        """All stop strings."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    @property
    def choices(self) -> int:
        """Answers to each prompt."""
        return self.n or 1

    @property
    def usage_at_end(self) -> bool:
        """Whether the stream ends with the numbers of tokens."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def usage_always(self) -> bool:
        """Whether every event of the stream has them."""
        return self.usage_at_end and self.stream_options is not None and self.stream_options.continuous_usage_stats


class CompletionBody(Sampled):
    """A text to continue, or several, as text or as tokens."""

    prompt: LongText | list[Token] | list[LongText] | list[list[Token]]
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0)] | None = None
    suffix: Any = None


class ChatBody(Sampled):
    """A conversation to answer."""

    messages: Annotated[list[dict[str, Any]], Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    response_format: Any = None
    chat_template_kwargs: dict[str, Any] | None = None


class TokenizeBody(BaseModel):
    """A text, or a conversation, whose tokens are asked for."""

    prompt: LongText | None = None
    messages: list[dict[str, Any]] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool = True
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """Tokens whose text is asked for."""

    tokens: list[Token]
