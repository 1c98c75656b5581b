"""Numbers for Prometheus under vLLM's names, so that dashboards and load generators made for it read them."""

from collections.abc import Iterator

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
Numbers = list[tuple[str, str, float | int]]  # names, what they are, and their values


class Metrics:
    """What the engine counts, read when it is asked for, and the times that requests took."""

    def __init__(self, engine: Engine, model: str):
        self.labels = {"model_name": model, "engine": "0"}
        self.registry = CollectorRegistry()
        self.registry.register(FromEngine(engine, list(self.labels.values())))
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


class FromEngine(Collector):
    """The engine's own numbers."""

    def __init__(self, engine: Engine, labels: list[str]):
        self.engine, self.labels = engine, labels

    def collect(self) -> Iterator[Metric]:
        """One metric after another."""
        families = [(GaugeMetricFamily, self.gauges()), (CounterMetricFamily, self.counters())]
        for name, what, value, kind in ((*found, kind) for kind, numbers in families for found in numbers):
            family = kind(name, what, labels=LABELS)
            family.add_metric(self.labels, value)
            yield family
        name, what = "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by depth."
        family = CounterMetricFamily(name, what, labels=(*LABELS, "position"))
        for position, count in enumerate(self.engine.info.accepted_at_depth):
            family.add_metric([*self.labels, str(position)], count)
        yield family

    def gauges(self) -> Numbers:
        """What goes up and down."""
        engine, info = self.engine, self.engine.info
        usage = engine.tokens_in_cache / engine.limits.tokens_in_cache
        return [
            ("vllm:num_requests_running", "Rows that decode.", len(engine.running)),
            ("vllm:num_requests_waiting", "Rows in the queue.", len(engine.waiting)),
            ("vllm:kv_cache_usage_perc", "The part of the cache that is taken, 1 for all.", usage),
            ("multidraft:acceptance_rate", "That a step's first token is a drafted one.", info.acceptance_rate),
            ("multidraft:optimal_acceptance_rate", "The most that any rule reaches.", info.optimal_acceptance_rate),
            ("multidraft:nodes_per_step", "Drafted nodes a row and step.", info.nodes / max(info.row_passes, 1)),
        ]

    def counters(self) -> Numbers:
        """What only goes up."""
        info = self.engine.info
        return [
            ("vllm:prompt_tokens", "Prompt tokens that were read.", self.engine.prompt_tokens),
            ("vllm:prefix_cache_queries", "Prompt tokens that were looked up.", self.engine.prompt_tokens),
            ("vllm:prefix_cache_hits", "Those that had been read before.", self.engine.reused_tokens),
            ("vllm:generation_tokens", "Tokens that were emitted.", info.tokens),
            ("vllm:spec_decode_num_drafts", "Rows' steps with drafts.", info.drafts),
            ("vllm:spec_decode_num_draft_tokens", "Drafted nodes.", info.nodes),
            ("vllm:spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.", info.accepted),
        ]
