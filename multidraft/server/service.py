"""What all requests share: the engine, the tokenizer, the model's names, the limits, and Prometheus metrics.

The metrics have vLLM's names, so that its dashboards and load generators can read them.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from multidraft.decoding.batch import Updates
from multidraft.decoding.request import Request, Stop, Update
from multidraft.errors import AdviceError
from multidraft.generation.inputs import sequence_limits
from multidraft.generation.templates import template_of
from multidraft.generation.text import closing_texts, encode_messages, encode_text, text_ends, thinking_of
from multidraft.models.corpus import Corpus
from multidraft.sampling.generation_config import model_defaults
from multidraft.sampling.grammar import Grammar
from multidraft.server import CLOSED_ERROR, Refused
from multidraft.server.engine import Engine, send_updates
from multidraft.server.request_bodies import (
    ALL_THE_ROOM,
    ChatBody,
    CompletionBody,
    Conversation,
    GenerationBody,
    PromptBody,
    check,
    sampling_of,
)
from multidraft.server.structured import grammar_of, has_form
from multidraft.server.tools import with_call_objects

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN_TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"  # for tokenizers without one
RANDOM_SEED = -1  # which other servers take for no seed
SEED_STRIDE = 1_000_003  # answers i and j of different seeds get different streams
DEFAULT_COMPLETION_TOKENS = 16  # as in OpenAI's API
MAX_CHARACTERS_PER_TOKEN = 64  # a text with more of them per token of the context cannot fit
OUR_SETTINGS = "self", "tokenizer", "messages", "special"  # of the functions that render, beside those of transformers
LABELS = ("model_name", "engine")
LATENCY_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first tokens.",
    "inter_token_latency_seconds": "Between two steps' tokens, over the number of tokens that came.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
}
Result = TypeVar("Result")


class Metrics(Collector):
    """The engine's counters, read at each scrape, and histograms of request times."""

    def __init__(self, engine: Engine, model: str):
        self.engine, self.labels, self.registry = engine, {"model_name": model, "engine": "0"}, CollectorRegistry()
        self.registry.register(self)
        self.histograms = {
            name: Histogram(
                f"vllm:{name}", description, LABELS, registry=self.registry, buckets=LATENCY_BUCKETS
            ).labels(**self.labels)
            for name, description in HISTOGRAMS.items()
        }
        reasons = (*LABELS, "finished_reason")
        self.success = Counter("vllm:request_success", "Answers that came to an end.", reasons, registry=self.registry)

    def count_end(self, reason: str, seconds: float) -> None:
        """Count an answer that ended, and observe its seconds."""
        self.success.labels(**self.labels, finished_reason=reason).inc()
        self.histograms["e2e_request_latency_seconds"].observe(seconds)

    def text(self) -> bytes:
        """All metrics in Prometheus's text format."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's metrics."""
        engine, info, gauge, counter = self.engine, self.engine.info, GaugeMetricFamily, CounterMetricFamily
        cache_usage = engine.batch.tokens_in_cache / engine.limits.tokens_in_cache
        for kind, name, description, value in (
            (gauge, "vllm:num_requests_running", "Rows that decode.", len(engine.batch.running)),
            (gauge, "vllm:num_requests_waiting", "Rows in the queue.", engine.num_waiting),
            (gauge, "vllm:kv_cache_usage_perc", "The part of the cache that is taken.", cache_usage),
            (counter, "vllm:prompt_tokens", "Prompt tokens.", engine.batch.prompt_tokens),
            (counter, "vllm:prefix_cache_queries", "Prompt tokens, looked up.", engine.batch.prompt_tokens),
            (counter, "vllm:prefix_cache_hits", "Those read before.", engine.batch.reused_tokens),
            (counter, "vllm:generation_tokens", "Tokens that were emitted.", info.tokens),
            (counter, "vllm:spec_decode_num_drafts", "Rows' steps with drafts.", info.draft_steps),
            (counter, "vllm:spec_decode_num_draft_tokens", "Drafted nodes.", info.nodes),
            (counter, "vllm:spec_decode_num_accepted_tokens", "Accepted ones.", info.accepted),
            (counter, "multidraft:engine_faults", "Faults of the engine that it has gone on from.", engine.faults),
            (gauge, "multidraft:acceptance_rate", "Of a step's first token.", info.acceptance_rate),
            (
                gauge,
                "multidraft:optimal_acceptance_rate",
                "The most that any rule reaches.",
                info.optimal_acceptance_rate,
            ),
            (gauge, "multidraft:nodes_per_step", "Drafted nodes a row and step.", info.nodes / max(info.row_passes, 1)),
        ):
            family = kind(name, description, labels=LABELS)
            family.add_metric([*self.labels.values()], value)
            yield family
        name, depths = "vllm:spec_decode_num_accepted_tokens_per_pos", (*LABELS, "position")
        family = counter(name, "Accepted tokens by depth.", labels=depths)
        for depth, count in enumerate(info.accepted_at_depth):
            family.add_metric([*self.labels.values(), str(depth)], count)
        yield family


class TextMemory:
    """The last `size` tokens of each API key's prompts and answers, which only its own requests may copy from."""

    def __init__(self, size: int):
        self.size = size
        self.texts: dict[str, list[list[int]]] = {}  # by key, the latest last
        self.corpora: dict[str, tuple[list[list[int]], Corpus]] = {}  # with the texts that each is made of

    def add(self, key: str, text: list[int]) -> None:
        """Remember a text in place of those that it goes on from, and forget the oldest if there is no room."""
        texts = [old for old in self.texts.get(key, []) if text[: len(old)] != old] + [text[-self.size :]]
        while sum(map(len, texts)) > self.size:
            texts = texts[1:]
        self.texts[key] = texts

    def corpus(self, key: str) -> Corpus | None:
        """The index over a key's texts, which is made when the next request comes."""
        texts = self.texts.get(key, [])
        if texts and (key not in self.corpora or self.corpora[key][0] is not texts):
            self.corpora[key] = texts, Corpus(texts)
        return self.corpora[key][1] if texts else None


class Service:
    """A served model with its names; responses carry the first one."""

    loop: asyncio.AbstractEventLoop  # in which the app runs

    def __init__(
        self,
        engine: Engine,
        tokenizer: "PreTrainedTokenizerBase",
        names: list[str],
        api_keys: Sequence[str] = (),
        allowed_origins: Sequence[str] = (),
    ):
        self.engine, self.tokenizer, self.metrics = engine, tokenizer, Metrics(engine, names[0])
        self.names, self.limits, self.api_keys, self.allowed_origins = names, engine.limits, api_keys, allowed_origins
        self.memory = TextMemory(self.limits.remember)
        self.update_queues: WeakSet[asyncio.Queue[tuple[int, Update]]] = WeakSet()  # one per running request
        self.worker = ThreadPoolExecutor(1)  # a second one would delay the event loop, and gain nothing
        self.vocabulary, self.defaults = engine.target.vocabulary, model_defaults(engine.target)
        contexts = [self.limits.context, engine.target.context]
        self.context = min((context for context in contexts if context is not None), default=None)  # of a sequence

    def begin(self) -> None:
        """Start to take requests in this event loop."""
        self.loop, self.engine.deliver = asyncio.get_running_loop(), self.deliver
        self.engine.start()

    def deliver(self, messages: Updates) -> None:
        """Pass a turn's updates from the engine's thread to the event loop, as one message for all rows."""
        try:
            self.loop.call_soon_threadsafe(send_updates, messages)
        except RuntimeError:  # the loop is closed: nobody listens
            for request, _ in messages:
                request.cancelled = True

    def end_answers(self) -> None:
        """End all running answers with the error CLOSED."""
        for updates in list(self.update_queues):
            updates.put_nowait((0, Update(error=Refused(*CLOSED_ERROR))))

    def close(self) -> None:
        """Take no more requests, and end the engine's thread."""
        self.worker.shutdown(wait=False, cancel_futures=True)
        self.engine.close(self.limits.drain)

    async def in_worker(self, call: Callable[..., Result], *values: Any) -> Result:
        """Run a call in the worker thread, so that it does not block the event loop."""
        if self.engine.closing:
            raise Refused(*CLOSED_ERROR)
        return await asyncio.get_running_loop().run_in_executor(self.worker, call, *values)

    def template_of(self, body: Any) -> str:
        """The chat template of a request's conversation, or the plain one."""
        is_chat = isinstance(body, Conversation) and body.messages is not None
        return (template_of(self.tokenizer, body.shown_tools) if is_chat else None) or PLAIN_TEMPLATE

    def check_text(self, text: str) -> str:
        """Return the text; raise if it is far too long for the context, without tokenising it."""
        if self.context is not None and len(text) > MAX_CHARACTERS_PER_TOKEN * self.context:
            raise AdviceError(
                f"a text of {len(text)} characters is too long for a context of {self.context} tokens; shorten it"
            )
        return text

    @cached_property
    def chat_stops(self) -> list[str]:
        """The strings that end an answer in a chat, of those that the tokenizer has no token for."""
        return closing_texts(self.tokenizer)

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text."""
        return encode_text(self.tokenizer, text, special)

    @cached_property
    def ends(self) -> dict[bool, set[int]]:
        """The tokens that end an answer: of a text that is continued, and (True) in a chat."""
        return {chat: text_ends(self.engine.target, self.tokenizer, chat) for chat in (False, True)}

    def encode_conversation(self, body: Conversation) -> list[int]:
        """The prompt tokens of a conversation, with its template settings and tools."""
        own_settings = signature(self.tokenizer.apply_chat_template).parameters.keys()
        if reserved := (body.chat_template_kwargs or {}).keys() & {*own_settings, *OUR_SETTINGS}:
            raise AdviceError(f"chat_template_kwargs may not hold {min(reserved)}; leave it out")
        template = self.template_of(body)
        settings = body.template_settings(template) | {"chat_template": template}
        messages = [with_call_objects(message) | {"content": self.content_of(message)} for message in body.messages]
        tokens = encode_messages(self.tokenizer, messages, bool(body.add_special_tokens), **settings)
        if not tokens:
            raise AdviceError("the conversation is empty; say something in it")
        return tokens

    def content_of(self, message: dict[str, Any]) -> str | list[dict[str, Any]]:
        """A message's content: a text, or a list of text parts."""
        content = message.get("content")
        if not isinstance(message.get("role"), str) or not isinstance(content, str | list | None):
            raise AdviceError('a message needs a role and a content, such as {"role": "user", "content": "Hello"}')
        if not isinstance(content, list):
            return self.check_text(content or "")
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        for part in parts:
            if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
                raise AdviceError("a message has a part that is not text; send text only")
        self.check_text("".join(part["text"] for part in parts))
        return parts

    def prompts(self, body: GenerationBody) -> list[list[int]]:
        """A request's prompts as tokens; raises if it asks for too many answers."""
        raw_prompts = body.prompts if isinstance(body, CompletionBody) else [""]
        if (count := len(raw_prompts) * body.choices) > self.limits.choices:
            raise AdviceError(f"{count} answers are too many for a request; ask for at most {self.limits.choices}")
        if isinstance(body, ChatBody):
            return [self.truncate(body, self.encode_conversation(body))]
        special = body.add_special_tokens is not False
        prompts = [
            self.encode(self.check_text(prompt), special) if isinstance(prompt, str) else prompt
            for prompt in raw_prompts
        ]
        if not all(prompts):
            raise AdviceError("a prompt is empty; give it some text, or at least one token")
        return [self.truncate(body, prompt) for prompt in prompts]

    def truncate(self, body: PromptBody, prompt: list[int]) -> list[int]:
        """The tokens of a prompt that a request keeps."""
        count = body.truncate_prompt_tokens
        if count == 0:
            raise AdviceError("truncate_prompt_tokens is 0, which leaves no prompt; use a number of tokens, or -1")
        if count == ALL_THE_ROOM:
            count = max(self.max_tokens - max(body.new_tokens or 0, 1), 1)
        if count is None or len(prompt) <= count:
            return prompt
        return prompt[:count] if body.truncation_side == "right" else prompt[-count:]

    @property
    def max_tokens(self) -> int:
        """The most tokens that a prompt and its answer may come to."""
        return min(self.engine.room, self.context or self.engine.room)

    def make_requests(self, body: GenerationBody, owner: str = "") -> list[Request]:
        """One request per answer to each prompt; raises AdviceError on invalid or excessive requests."""
        check(body, self.limits, self.vocabulary)
        has_form(body)  # raises where fields ask for two forms, or tools are none
        prompts = self.prompts(body)
        grammar = grammar_of(body, self.tokenizer, self.thinking(body, prompts[0]))
        sequence_limits(prompts, self.engine.target, self.engine.draft, [0] * len(prompts))  # checks them
        rows = [(prompt, self.new_tokens(body, prompt)) for prompt in prompts for _ in range(body.choices)]
        requests = [self.make_request(body, *row, index, grammar) for index, row in enumerate(rows)]
        for request in requests:  # with a seed the same answer has to come again, whatever is remembered
            request.owner, request.corpus = owner, None if request.is_seeded else self.memory.corpus(owner)
        return requests

    def thinking(self, body: GenerationBody, prompt: list[int]) -> bool | None:
        """Whether an answer goes on with thinking (True), may begin with it (False), or neither (None)."""
        return thinking_of(self.tokenizer, prompt, self.template_of(body)) if isinstance(body, ChatBody) else None

    def new_tokens(self, body: GenerationBody, prompt: list[int]) -> int:
        """The number of new tokens: the requested one, else the default, limited by the room that is left."""
        max_tokens = self.max_tokens
        room = max_tokens - len(prompt)
        default = self.limits.default_new_tokens if isinstance(body, ChatBody) else DEFAULT_COMPLETION_TOKENS
        requested = room if body.new_tokens == ALL_THE_ROOM else body.new_tokens
        count = min(default, room) if requested is None else requested
        if count > room or room < 1:
            raise AdviceError(
                f"{count} new tokens after a prompt of {len(prompt)} are more than this server has room for, "
                f"{max_tokens} in all (--max-tokens-in-cache); shorten the prompt, or ask for fewer"
            )
        if (body.min_tokens or 0) > count:
            raise AdviceError(
                f"min_tokens is {body.min_tokens}, above the {count} new tokens that are asked for; lower it, or raise "
                "max_tokens"
            )
        if not count and not getattr(body, "echo", False):
            raise AdviceError("max_tokens is 0, which needs echo; ask for more tokens")
        return count

    def make_request(
        self, body: GenerationBody, prompt: list[int], new_tokens: int, index: int, grammar: Grammar | None
    ) -> Request:
        """The engine's request for one answer; with a seed its random numbers are reproducible."""
        end_tokens = set() if body.ignore_eos else self.ends[isinstance(body, ChatBody)]
        end_tokens = end_tokens | set(body.stop_token_ids or ())
        has_seed = body.seed is not None and body.seed != RANDOM_SEED
        seed = ((body.seed or 0) * SEED_STRIDE + index) % 2**63 if has_seed else secrets.randbits(62)
        return Request(
            prompt,
            new_tokens,
            sampling=sampling_of(
                body, prompt, self.vocabulary, end_tokens, self.engine.target.device, grammar, self.defaults
            ),
            generator=torch.Generator().manual_seed(seed),
            is_seeded=has_seed,
            stop=Stop(frozenset(end_tokens)),
            num_logprobs=body.num_logprobs,
            num_prompt_logprobs=body.num_logprobs if getattr(body, "echo", False) else None,
        )
