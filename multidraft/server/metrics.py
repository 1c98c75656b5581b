"""Numbers for Prometheus under vLLM's names, so that dashboards and load generators made for it read them."""

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from multidraft.server.engine import Engine

LABELS = ("model_name", "engine")
SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
HISTOGRAMS = {
    "time_to_first_token_seconds": "From a request's arrival to its first tokens.",
    "inter_token_latency_seconds": "Between two steps' tokens, over the number of tokens that came.",
    "e2e_request_latency_seconds": "From a request's arrival to its end.",
}
GAUGE, COUNTER = GaugeMetricFamily, CounterMetricFamily


class Metrics(Collector):
    """What the engine counts, read when it is asked for, and the times that requests took."""

    def __init__(self, engine: Engine, model: str):
        self.engine, self.labels, registry = engine, {"model_name": model, "engine": "0"}, CollectorRegistry()
        registry.register(self)
        self.seconds = {
            name: Histogram(f"vllm:{name}", what, LABELS, registry=registry, buckets=SECONDS).labels(**self.labels)
            for name, what in HISTOGRAMS.items()
        }
        reasons = (*LABELS, "finished_reason")
        self.success = Counter("vllm:request_success", "Answers that came to an end.", reasons, registry=registry)
        self.registry = registry

    def ended(self, reason: str, seconds: float) -> None:
        """One more answer came to its end, after so many seconds."""
        self.success.labels(**self.labels, finished_reason=reason).inc()
        self.seconds["e2e_request_latency_seconds"].observe(seconds)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self.registry)

    def collect(self) -> Iterator[Metric]:
        """The engine's own numbers, one after another."""
        engine, info = self.engine, self.engine.info
        nodes, usage = info.nodes / max(info.row_passes, 1), engine.tokens_in_cache / engine.limits.tokens_in_cache
        yield self.family(GAUGE, "vllm:num_requests_running", "Rows that decode.", len(engine.running))
        yield self.family(GAUGE, "vllm:num_requests_waiting", "Rows in the queue.", len(engine.waiting))
        yield self.family(GAUGE, "vllm:kv_cache_usage_perc", "The part of the cache that is taken.", usage)
        yield self.family(COUNTER, "vllm:prompt_tokens", "Prompt tokens.", engine.prompt_tokens)
        yield self.family(COUNTER, "vllm:prefix_cache_queries", "Prompt tokens, looked up.", engine.prompt_tokens)
        yield self.family(COUNTER, "vllm:prefix_cache_hits", "Those read before.", engine.reused_tokens)
        yield self.family(COUNTER, "vllm:generation_tokens", "Tokens that were emitted.", info.tokens)
        yield self.family(COUNTER, "vllm:spec_decode_num_drafts", "Rows' steps with drafts.", info.drafts)
        yield self.family(COUNTER, "vllm:spec_decode_num_draft_tokens", "Drafted nodes.", info.nodes)
        yield self.family(COUNTER, "vllm:spec_decode_num_accepted_tokens", "Accepted ones.", info.accepted)
        name, depths = "vllm:spec_decode_num_accepted_tokens_per_pos", info.accepted_at_depth
        yield self.family(COUNTER, name, "Accepted tokens by depth.", *depths, more=("position",))
        yield self.family(GAUGE, "multidraft:acceptance_rate", "Of a step's first token.", info.acceptance_rate)
        name, best = "multidraft:optimal_acceptance_rate", info.optimal_acceptance_rate
        yield self.family(GAUGE, name, "The most that any rule reaches.", best)
        yield self.family(GAUGE, "multidraft:nodes_per_step", "Drafted nodes a row and step.", nodes)

    def family(self, kind: Any, name: str, what: str, *values: float | int, more: tuple[str, ...] = ()) -> Metric:
        """A number, or with `more` labels one at each place."""
        family = kind(name, what, labels=LABELS + more)
        for place, value in enumerate(values):
            family.add_metric([*self.labels.values(), *(str(place) for _ in more)], value)
        return family
