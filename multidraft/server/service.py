"""What all requests share: the engine, the tokenizer, the model's name, the limits."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any

from multidraft.errors import AdviceError
from multidraft.generation.conversations import written
from multidraft.generation.inputs import context_of, lengths, vocabulary_of
from multidraft.sampling.generation_config import ends_of
from multidraft.server.bodies import ChatBody, CompletionBody, Sampled
from multidraft.server.engine import Engine
from multidraft.server.job import Event, Job
from multidraft.server.limits import Limits
from multidraft.server.metrics import Metrics
from multidraft.server.settings import check, generator_of, sampling_of, tops

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"  # where a tokenizer has no template
Hear = Callable[[int, Event], object]  # a choice's number, and what has become of it


@dataclass
class Service:
    """A model that answers, under a name."""

    engine: Engine
    tokenizer: "PreTrainedTokenizerBase"
    name: str
    limits: Limits = field(default_factory=Limits)
    api_key: str | None = None

    @cached_property
    def metrics(self) -> Metrics:
        """Numbers for Prometheus."""
        return Metrics(self.engine, self.name)

    @cached_property
    def vocabulary(self) -> int:
        """The target's tokens."""
        return vocabulary_of(self.engine.target)

    @cached_property
    def context(self) -> int | None:
        """The longest sequence that both models can read."""
        models = [model for model in (self.engine.target, self.engine.draft) if model is not None]
        return min((c for c in map(context_of, models) if c is not None), default=None)

    @cached_property
    def ends(self) -> set[int]:
        """Tokens that end an answer."""
        return set(ends_of(getattr(self.engine.target, "generation_config", None), set()) or ())

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; the start of text where there are none."""
        tokens = self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        start = self.tokenizer.bos_token_id
        return list(tokens) or ([start] if special and start is not None else [])

    def prompts(self, body: CompletionBody) -> list[list[int]]:
        """The prompts of a completion as tokens, whatever form they came in."""
        given: list[Any] = body.prompt if isinstance(body.prompt, list) else [body.prompt]
        if given and isinstance(given[0], int):
            given = [given]
        self.check_choices(len(given) * body.choices)
        prompts = [self.encode(prompt) if isinstance(prompt, str) else prompt for prompt in given]
        if not prompts or not all(prompts):
            raise AdviceError("a prompt is empty; give it some text, or at least one token")
        return prompts

    def check_choices(self, count: int) -> None:
        """Raise where a request asks for too many answers."""
        if count > self.limits.choices:
            raise AdviceError(f"{count} answers are too many for a request; ask for at most {self.limits.choices}")

    def conversation(self, body: ChatBody) -> list[int]:
        """The prompt of a chat as tokens."""
        tools = body.tools if body.tool_choice != "none" else None
        own = body.chat_template_kwargs or {}
        if taken := own.keys() & signature(self.tokenizer.apply_chat_template).parameters.keys():
            raise AdviceError(f"chat_template_kwargs may not hold {min(taken)}; leave it out")
        return self.written(body.messages, **own | ({"tools": tools} if tools else {}))

    @property
    def template(self) -> str:
        """The tokenizer's chat template, or the plain one."""
        return self.tokenizer.get_chat_template() if self.tokenizer.chat_template else PLAIN

    def written(self, messages: list[dict[str, Any]], **settings: Any) -> list[int]:
        """Messages in the form of the chat template."""
        given = [message | {"content": content_of(message)} for message in messages]
        tokens = written(self.tokenizer, given, **settings | {"chat_template": self.template})
        if not tokens:
            raise AdviceError("the conversation is empty; say something in it")
        return tokens

    def jobs(self, body: Sampled, prompts: list[list[int]], new_tokens: int, hear: Hear) -> list[Job]:
        """A row for each answer to each prompt."""
        check(body, self.limits, self.vocabulary)
        self.check_choices(len(prompts) * body.choices)
        target, draft = self.engine.target, self.engine.draft
        longest = lengths(prompts, target, draft, [new_tokens] * len(prompts))
        jobs = []
        for number, (prompt, length) in enumerate(zip(prompts, longest, strict=True)):
            for index in range(number * body.choices, (number + 1) * body.choices):
                jobs.append(self.job(body, prompt, length - len(prompt), index, hear))
        return jobs

    def job(self, body: Sampled, prompt: list[int], new_tokens: int, index: int, hear: Hear) -> Job:
        """One answer's row."""
        echoes = isinstance(body, CompletionBody) and body.echo
        return Job(
            prompt,
            new_tokens,
            lambda event: hear(index, event),
            sampling_of(body, len(prompt)),
            generator_of(body.seed, index),
            set() if body.ignore_eos else self.ends,
            logprobs=tops(body),
            prompt_logprobs=tops(body) if echoes else None,
        )


def content_of(message: dict[str, Any]) -> str | None:
    """A message's text, which may come in parts."""
    content = message.get("content")
    if not isinstance(message.get("role"), str) or not isinstance(content, str | list | None):
        raise AdviceError('a message needs a role and a content, such as {"role": "user", "content": "Hello"}')
    if not isinstance(content, list):
        return content or ""
    return "".join(map(text_of, content))


def text_of(part: Any) -> str:
    """A part of a message."""
    text = part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part
    if not isinstance(text, str):
        raise AdviceError("a message has a part that is no text; this model reads text alone")
    return text
