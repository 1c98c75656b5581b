"""The settings of `multidraft serve`, and replicas on Ray; `application` is for `serve deploy`.

A replica runs the same app behind Ray Serve's proxies. It receives only the settings, and loads the models itself.
"""

import re
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.executors import check_address, connect, gpus_per_worker
from multidraft.cli.imports import IMPORTED_MODULES, import_modules
from multidraft.cli.models import Loader, default_pair, load, parse
from multidraft.cli.prompts import note_open_answers
from multidraft.errors import AdviceError, optional
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

    from multidraft.autotune.controller import Limits as TreeLimits
    from multidraft.decoding.state import DecodeConfig
    from multidraft.server.service import Metrics, Service

APP_NAME = "multidraft"
ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#@]+")
METRICS_SECONDS = 5  # between two exports
SWITCH_SECONDS = 0.001  # the event loop waits so long for a computing thread, several times per request
ReadyCallback = Callable[[int], None]  # gets the port


@dataclass(frozen=True)
class Serving(o.DraftingOptions, o.ModelOptions):
    """The settings of `multidraft serve`; models are given by name."""

    names: tuple[str, ...] = ()  # of the model in requests; empty for the target's
    api_key: str | None = None
    allowed_origins: tuple[str, ...] = ()  # sites whose pages may use the server
    template: str | None = None
    limits: Limits = field(default_factory=Limits)
    threads: int | None = None  # on the CPU; None for torch's default

    @property
    def served_names(self) -> list[str]:
        """The model's names in requests."""
        return list(self.names) or [default_pair(self.target, self.draft)[0]]

    def check(self) -> None:
        """Raise on settings that cannot work, before anything is loaded."""
        if not all(name.strip() for name in self.names):
            raise AdviceError("a served name is empty; give some text, or leave it out for the target's name")
        if self.api_key is not None and not self.api_key.strip():
            raise AdviceError("the API key is empty; set one, or drop the option")
        for origin in self.allowed_origins:
            if not ORIGIN.fullmatch(origin):
                raise AdviceError(
                    f"the allowed origin {origin!r} is none; write scheme and host, as https://example.org, or *"
                )
        self.configured()

    def configured(self) -> "tuple[DecodeConfig, TreeLimits | None, Path | None]":
        """The decoding configuration; for trees chosen while decoding also their limits and the plan's file."""
        from multidraft.generation.inputs import resolve_config

        draft = default_pair(self.target, self.draft, Loader(self.engine).heads_pay)[1]
        return resolve_config(self.scheme, self.tree, self.walk, self.plan, len(parse(draft)))

    def app(self) -> "FastAPI":
        """Load the models and build the app; call it in a thread that ends.

        OpenMP keeps helper threads for every thread that has computed. If there are more of them than processors, the
        engine's helpers sleep instead of spinning between tasks, which makes them much slower.
        """
        import gc
        import sys

        from multidraft.server.app import build

        app = build(self.service())
        gc.collect()
        gc.freeze()  # else collections during large bodies would stop all threads to scan the loaded modules
        sys.setswitchinterval(SWITCH_SECONDS)
        return app

    def service(self) -> "Service":
        """Load the models and build the service; with `--tree auto` the trees follow the number of rows."""
        import torch

        from multidraft.autotune.controller import auto
        from multidraft.autotune.plans import MeasuredPair
        from multidraft.sampling.generation_config import defaults_note, model_defaults
        from multidraft.server.engine import Engine
        from multidraft.server.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # for threads that start later, such as the engine's
        target, draft, tokenizer = load(self.target, self.draft, Loader(self.engine, self.trust))
        if self.template is not None:
            tokenizer.chat_template = self.template
        if not tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        note_open_answers(tokenizer)
        if line := defaults_note(model_defaults(target)):
            terminal.note(line)
        config, limits, plan = self.configured()
        if limits is not None and draft is not None:
            subject = MeasuredPair(target, draft, config.scheme, config.walk)
            config = replace(config, policy=auto(subject, 1.0, limits, plan, self.tune_budget))
        engine = Engine(target, draft, config, self.limits)
        return Service(engine, tokenizer, self.served_names, self.api_key, self.allowed_origins)


def application(settings: dict[str, Any]) -> "Application":
    """The application for a file's `args`: fields of `Serving`, `limits`, `replicas`, `most_replicas` and `gpus`."""
    settings = dict(settings)
    min_replicas, gpus = settings.pop("replicas", 1), settings.pop("gpus", 0)
    max_replicas = settings.pop("most_replicas", min_replicas)
    try:
        serving = Serving(**settings | {"limits": Limits(**settings.get("limits", {}))})
    except TypeError as error:
        raise AdviceError(f"args: {error}; docs/serving.md lists the settings") from None
    serving.check()
    return deployment(serving, min_replicas, max_replicas, gpus)


def deployment(serving: Serving, min_replicas: int, max_replicas: int, gpus: int) -> "Application":
    """Replicas with one engine each; Ray gives it as many threads as processors.

    An engine is most efficient with many rows, so replicas are added when three quarters of the rows are taken. Other
    requests wait in Serve's queue for the first replica with room.
    """
    from ray import serve

    rows, modules = serving.limits.rows, tuple(IMPORTED_MODULES)
    replicas: Any = serve.deployment(
        serve.ingress(lambda: app_of(serving, modules))(),
        name=APP_NAME,
        ray_actor_options={"num_cpus": serving.threads or 1, "num_gpus": gpus},
        autoscaling_config={
            "min_replicas": min_replicas,
            "max_replicas": max_replicas,
            "target_ongoing_requests": max(rows * 3 // 4, 1),
        },
        max_ongoing_requests=rows + max(rows // 4, 1),
        max_queued_requests=serving.limits.queue,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        graceful_shutdown_timeout_s=serving.limits.drain,
    )
    return replicas.bind()


def app_of(serving: Serving, modules: tuple[str, ...]) -> "FastAPI":
    """Import modules and build the app, in its replica."""
    from multidraft.server.process import in_thread

    import_modules(modules)
    app = in_thread(serving.app).result()
    threading.Thread(target=export_metrics, args=(app.state.service.metrics,), name="metrics", daemon=True).start()
    return app


def export_metrics(metrics: "Metrics") -> None:
    """Export all metrics by Ray while the process lives, because `/metrics` shows only one replica's."""
    from ray.serve.metrics import Gauge

    gauges: dict[str, Any] = {}
    while True:
        for metric in metrics.registry.collect():
            for sample in metric.samples:
                name = sample.name.replace(":", "_")  # Serve adds the replica's label
                if name not in gauges:
                    labels: Any = tuple(sample.labels)  # Ray's type hint is too narrow
                    gauges[name] = Gauge(name, metric.documentation, labels)
                gauges[name].set(sample.value, tags=dict(sample.labels))
        time.sleep(METRICS_SECONDS)


def run_on_ray(
    address: str, serving: Serving, host: str, port: int, min_replicas: int, max_replicas: int, ready: ReadyCallback
) -> None:
    """Serve from replicas until stopped; `ready` is called when requests are taken."""
    from multidraft.server.process import bind_socket

    serving.check()
    serve = optional("ray.serve", "Ray", "ray")
    check_address(address)
    with bind_socket(host, port) as listener:
        port = listener.getsockname()[1]
    gpus = gpus_per_worker(connect(address, show_logs=True))
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(deployment(serving, min_replicas, max_replicas, gpus), name=APP_NAME, route_prefix="/")
        ready(port)
        signal.pause()
    finally:
        serve.delete(APP_NAME)  # and no other application
