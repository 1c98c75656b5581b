"""What all requests share: the engine, the tokenizer, the model's names, the limits, and numbers for Prometheus.

The numbers have vLLM's names, so that dashboards and load generators made for it read them.
"""

import asyncio
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

import torch
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from multidraft.errors import AdviceError
from multidraft.generation.inputs import context_of, lengths, vocabulary_of
from multidraft.generation.text import written
from multidraft.sampling.generation_config import ends_of
from multidraft.server import CLOSED, Refused
from multidraft.server.bodies import ChatBody, CompletionBody, Sampled, check, sampling_of
from multidraft.server.engine import Engine
from multidraft.server.rows import Event, Job, Told, hear_all

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLAIN = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"  # where a tokenizer has no template
SEEDS_APART = 1_000_003  # so that no answer of one seed is another answer of the next
COMPLETION = 16  # new tokens of a completion that names no number, as in OpenAI's API
WIDEST = 64  # characters of a token; a longer text than so many for each token of the context cannot fit
LABELS = ("model_name", "engine")
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first tokens.",
    "inter_token_latency_seconds": "Between two steps' tokens, over the number of tokens that came.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
}
Result = TypeVar("Result")


class Metrics(Collector):
    """What the engine counts, read when it is asked for, and the times that requests took."""

    def __init__(self, engine: Engine, model: str):
        self.engine, self.labels, self.registry = engine, {"model_name": model, "engine": "0"}, CollectorRegistry()
        self.registry.register(self)
        self.seconds = {
            name: Histogram(f"vllm:{name}", what, LABELS, registry=self.registry, buckets=SECONDS).labels(**self.labels)
            for name, what in HISTOGRAMS.items()
        }
        reasons = (*LABELS, "finished_reason")
        self.success = Counter("vllm:request_success", "Answers that came to an end.", reasons, registry=self.registry)

    def ended(self, reason: str, seconds: float) -> None:
        """One more answer came to its end, after so many seconds."""
        self.success.labels(**self.labels, finished_reason=reason).inc()
        self.seconds["e2e_request_latency_seconds"].observe(seconds)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """The engine's own numbers, one after another."""
        engine, info, gauge, counter = self.engine, self.engine.info, GaugeMetricFamily, CounterMetricFamily
        usage = engine.tokens_in_cache / engine.limits.tokens_in_cache
        for kind, name, what, value in (
            (gauge, "vllm:num_requests_running", "Rows that decode.", len(engine.running)),
            (gauge, "vllm:num_requests_waiting", "Rows in the queue.", len(engine.waiting)),
            (gauge, "vllm:kv_cache_usage_perc", "The part of the cache that is taken.", usage),
            (counter, "vllm:prompt_tokens", "Prompt tokens.", engine.prompt_tokens),
            (counter, "vllm:prefix_cache_queries", "Prompt tokens, looked up.", engine.prompt_tokens),
            (counter, "vllm:prefix_cache_hits", "Those read before.", engine.reused_tokens),
            (counter, "vllm:generation_tokens", "Tokens that were emitted.", info.tokens),
            (counter, "vllm:spec_decode_num_drafts", "Rows' steps with drafts.", info.drafts),
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
            family = kind(name, what, labels=LABELS)
            family.add_metric([*self.labels.values()], value)
            yield family
        name, depths = "vllm:spec_decode_num_accepted_tokens_per_pos", (*LABELS, "position")
        family = counter(name, "Accepted tokens by depth.", labels=depths)
        for place, count in enumerate(info.accepted_at_depth):
            family.add_metric([*self.labels.values(), str(place)], count)
        yield family


class Service:
    """A model that answers under its names, of which answers bear the first."""

    loop: asyncio.AbstractEventLoop  # in which the app runs

    def __init__(
        self, engine: Engine, tokenizer: "PreTrainedTokenizerBase", names: list[str], api_key: str | None = None
    ):
        self.engine, self.tokenizer, self.metrics = engine, tokenizer, Metrics(engine, names[0])
        self.names, self.limits, self.api_key = names, engine.limits, api_key
        self.queues: WeakSet[asyncio.Queue[tuple[int, Event]]] = WeakSet()  # of events, of answers under way
        self.workers = ThreadPoolExecutor(1)  # two would keep the event loop waiting longer, and gain nothing
        self.vocabulary = vocabulary_of(engine.target)
        self.ends = set(ends_of(getattr(engine.target, "generation_config", None), set()))  # which end an answer
        contexts = [self.limits.context, context_of(engine.target, engine.draft)]
        self.context = min((context for context in contexts if context is not None), default=None)  # of a sequence

    def begin(self) -> None:
        """Take requests, in this event loop."""
        self.loop, self.engine.deliver = asyncio.get_running_loop(), self.deliver
        self.engine.start()

    def deliver(self, told: Told) -> None:
        """Take what a turn of the engine has to tell, in its thread, to the loop's: one message for all rows."""
        try:
            self.loop.call_soon_threadsafe(hear_all, told)
        except RuntimeError:  # the loop is closed, so nobody hears anything any more
            for job, _ in told:
                job.cancelled = True

    def end(self) -> None:
        """Let all answers that are under way end with an error that says so."""
        for events in list(self.queues):
            events.put_nowait((0, Event(error=Refused(*CLOSED))))

    def close(self) -> None:
        """Take no more; the engine's thread ends."""
        self.workers.shutdown(wait=False, cancel_futures=True)
        self.engine.close(self.limits.drain)

    async def aside(self, call: Callable[..., Result], *values: Any) -> Result:
        """What a call returns, in a thread beside the event loop's, which others need."""
        if self.engine.closing:
            raise Refused(*CLOSED)
        return await asyncio.get_running_loop().run_in_executor(self.workers, call, *values)

    @property
    def template(self) -> str:
        """The tokenizer's chat template, or the plain one."""
        return self.tokenizer.get_chat_template() if self.tokenizer.chat_template else PLAIN

    def fitting(self, text: str) -> str:
        """The text, unless it is so long that counting its tokens is not worth the time."""
        if self.context is not None and len(text) > WIDEST * self.context:
            raise AdviceError(
                f"a text of {len(text)} characters is too long for a context of {self.context} tokens; shorten it"
            )
        return text

    def encode(self, text: str, special: bool = True) -> list[int]:
        """The tokens of a text; the start of text where there are none."""
        tokens = self.tokenizer(text, add_special_tokens=special, verbose=False)["input_ids"]
        start = self.tokenizer.bos_token_id
        return list(tokens) or ([start] if special and start is not None else [])

    def written(self, messages: list[dict[str, Any]], **settings: Any) -> list[int]:
        """Messages in the form of the chat template."""
        given = [message | {"content": self.fitting(text_of(message))} for message in messages]
        tokens = written(self.tokenizer, given, **settings | {"chat_template": self.template})
        if not tokens:
            raise AdviceError("the conversation is empty; say something in it")
        return tokens

    def conversation(self, body: ChatBody) -> list[int]:
        """The prompt of a chat as tokens."""
        own = body.chat_template_kwargs or {}
        if taken := own.keys() & signature(self.tokenizer.apply_chat_template).parameters.keys():
            raise AdviceError(f"chat_template_kwargs may not hold {min(taken)}; leave it out")
        tools = {"tools": body.tools} if body.tools and body.tool_choice != "none" else {}
        return self.written(body.messages, **own | tools)

    def prompts(self, body: Sampled) -> list[list[int]]:
        """A request's prompts as tokens, whatever form they came in, unless it asks for too many answers."""
        given = body.prompts if isinstance(body, CompletionBody) else [""]
        if (count := len(given) * body.choices) > self.limits.choices:
            raise AdviceError(f"{count} answers are too many for a request; ask for at most {self.limits.choices}")
        if isinstance(body, ChatBody):
            return [self.conversation(body)]
        prompts = [self.encode(self.fitting(prompt)) if isinstance(prompt, str) else prompt for prompt in given]
        if not all(prompts):
            raise AdviceError("a prompt is empty; give it some text, or at least one token")
        return prompts

    def jobs(self, body: Sampled) -> list[Job]:
        """A row for each answer to each prompt; raises AdviceError on what is wrong or too much."""
        check(body, self.limits, self.vocabulary)
        prompts = self.prompts(body)
        lengths(prompts, self.engine.target, self.engine.draft, [0] * len(prompts))  # which checks them
        rows = [(prompt, self.new_tokens(body, prompt)) for prompt in prompts for _ in range(body.choices)]
        return [self.job(body, *row, index) for index, row in enumerate(rows)]

    def new_tokens(self, body: Sampled, prompt: list[int]) -> int:
        """How many a prompt gets: as many as were asked for; otherwise the usual number, as far as there is room."""
        longest = min(self.engine.room, self.context or self.engine.room)
        room = longest - len(prompt)
        usual = self.limits.default_new_tokens if isinstance(body, ChatBody) else COMPLETION
        asked = min(usual, room) if body.new_tokens is None else body.new_tokens
        if asked > room or room < 1:
            raise AdviceError(
                f"{asked} new tokens after a prompt of {len(prompt)} are more than this server has room for, "
                f"{longest} in all; shorten the prompt, or ask for fewer"
            )
        if not asked and not getattr(body, "echo", False):
            raise AdviceError("max_tokens is 0, which only a prompt that is echoed makes sense with; ask for more")
        return asked

    def job(self, body: Sampled, prompt: list[int], new_tokens: int, index: int) -> Job:
        """One answer's row; with a seed its random numbers are the same each time."""
        ends = (set() if body.ignore_eos else self.ends) | set(body.stop_token_ids or ())
        seed = secrets.randbits(62) if body.seed is None else (body.seed * SEEDS_APART + index) % 2**63
        return Job(
            prompt,
            new_tokens,
            sampling=sampling_of(body, len(prompt), ends, self.engine.target.device),
            generator=torch.Generator().manual_seed(seed),
            ends=ends,
            logprobs=body.tops,
            prompt_logprobs=body.tops if getattr(body, "echo", False) else None,
        )


def text_of(message: dict[str, Any]) -> str:
    """A message's text, which may come in parts."""
    content = message.get("content")
    if not isinstance(message.get("role"), str) or not isinstance(content, str | list | None):
        raise AdviceError('a message needs a role and a content, such as {"role": "user", "content": "Hello"}')
    if not isinstance(content, list):
        return content or ""
    parts = [part.get("text") if isinstance(part, dict) and part.get("type") == "text" else part for part in content]
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise AdviceError("a message has a part that is no text; this model reads text alone")
    return "".join(texts)
