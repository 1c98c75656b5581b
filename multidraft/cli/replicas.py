"""What `multidraft serve` serves, by an engine here or in replicas on Ray; `application` is for `serve deploy`.

A replica has the same app, behind Ray Serve's proxies. What is served is small enough to be sent to where the models
are loaded.
"""

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from multidraft.cli import options as o
from multidraft.cli import terminal
from multidraft.cli.crews import check_address, join, one_gpu
from multidraft.cli.models import Loader, load, parse, usual
from multidraft.errors import AdviceError, optional
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

    from multidraft.autotune.controller import Limits as TreeLimits
    from multidraft.decoding.state import DecodeConfig
    from multidraft.server.service import Metrics, Service

NAME = "multidraft"
SECONDS = 5  # between two looks at the numbers
SWITCH = 0.001  # seconds that the event loop waits for a thread that computes, several times in each request
Ready = Callable[[int], None]  # is told the port


@dataclass(frozen=True)
class Serving(o.Drafting, o.Named):
    """The settings of `multidraft serve`, of which the models are only named."""

    names: tuple[str, ...] = ()  # of the model in requests; none for the target's own
    api_key: str | None = None
    template: str | None = None
    limits: Limits = field(default_factory=Limits)
    threads: int | None = None  # on the processor; None for as many as torch takes by itself

    @property
    def known_as(self) -> list[str]:
        """The model's names in requests."""
        return list(self.names) or [usual(self.target, self.draft)[0]]

    def check(self) -> None:
        """Raise on what cannot work, before anything is loaded."""
        if not all(name.strip() for name in self.names):
            raise AdviceError("a served name is empty; give some text, or leave it out for the target's name")
        if self.api_key is not None and not self.api_key.strip():
            raise AdviceError("the API key is empty, so nobody could be told from anybody; give some, or leave it out")
        self.configured()

    def configured(self) -> "tuple[DecodeConfig, TreeLimits | None, Path | None]":
        """How to decode; where trees are chosen later, their limits and the plan."""
        from multidraft.generation.inputs import configured

        draft = usual(self.target, self.draft, Loader(self.engine).tells)[1]
        return configured(self.scheme, self.tree, self.walk, self.plan, len(parse(draft)))

    def app(self) -> "FastAPI":
        """The app over the models, which are loaded here and now; call it in a thread that ends.

        OpenMP keeps helpers for every thread that has computed. Where those are more than processors, the engine's own
        hardly wait for their work without sleeping, which costs most of it.
        """
        import gc
        import sys

        from multidraft.server.app import build

        app = build(self.service())
        gc.collect()
        gc.freeze()  # or looking through all that was loaded would stop every thread whenever a body has many parts
        sys.setswitchinterval(SWITCH)
        return app

    def service(self) -> "Service":
        """The service that the app is over; trees are those that the rows under way decide, if that is asked for."""
        import torch

        from multidraft.autotune.controller import auto
        from multidraft.autotune.plans import Subject
        from multidraft.server.engine import Engine
        from multidraft.server.service import Service

        if self.threads is not None:
            torch.set_num_threads(self.threads)  # of the threads that begin from here on, the engine's among them
        target, draft, tokenizer = load(self.target, self.draft, Loader(self.engine, self.trust))
        if self.template is not None:
            tokenizer.chat_template = self.template
        if not tokenizer.chat_template:
            terminal.note("the tokenizer has no chat template: messages are joined by line breaks (--chat-template)")
        config, limits, plan = self.configured()
        if limits is not None and draft is not None:
            subject = Subject(target, draft, config.scheme, config.walk)
            config = replace(config, policy=auto(subject, 1.0, limits, plan, self.tune_budget))
        return Service(Engine(target, draft, config, self.limits), tokenizer, self.known_as, self.api_key)


def application(settings: dict[str, Any]) -> "Application":
    """What `args` of a file name: fields of `Serving`, `limits` with those of `Limits`, and how many replicas."""
    settings = dict(settings)
    least, gpus = settings.pop("replicas", 1), settings.pop("gpus", 0)
    most = settings.pop("most_replicas", least)
    try:
        serving = Serving(**settings | {"limits": Limits(**settings.get("limits", {}))})
    except TypeError as error:
        raise AdviceError(f"args: {error}; docs/serving.md lists what there is") from None
    serving.check()
    return deployment(serving, least, most, gpus)


def deployment(serving: Serving, least: int, most: int, gpus: int) -> "Application":
    """Replicas of an engine each, which computes with as many threads as it has processors: Ray sees to that.

    An engine is at its best with many rows: replicas come when three quarters of them are taken, and what an engine
    cannot begin at once waits in Serve's queue, for whichever has room first.
    """
    from ray import serve

    rows = serving.limits.rows
    busy = max(rows * 3 // 4, 1)
    made: Any = serve.deployment(
        serve.ingress(lambda: app_of(serving))(),
        name=NAME,
        ray_actor_options={"num_cpus": serving.threads or 1, "num_gpus": gpus},
        autoscaling_config={"min_replicas": least, "max_replicas": most, "target_ongoing_requests": busy},
        max_ongoing_requests=rows + max(rows // 4, 1),
        max_queued_requests=serving.limits.queue,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        graceful_shutdown_timeout_s=serving.limits.drain,
    )
    return made.bind()


def app_of(serving: Serving) -> "FastAPI":
    """The app, in the replica that it is for."""
    from multidraft.server.process import in_thread

    app = in_thread(serving.app).result()
    threading.Thread(target=mirror, args=(app.state.service.metrics,), name="metrics", daemon=True).start()
    return app


def mirror(metrics: "Metrics") -> None:
    """Pass all numbers on to Ray's exporter, for as long as the process lives: `/metrics` is that of any replica."""
    from ray.serve.metrics import Gauge

    gauges: dict[str, Any] = {}
    while True:
        for metric in metrics.registry.collect():
            for sample in metric.samples:
                name = sample.name.replace(":", "_")  # Serve adds which replica it is
                if name not in gauges:
                    labels: Any = tuple(sample.labels)  # of any number, which Ray's hint does not say
                    gauges[name] = Gauge(name, metric.documentation, labels)
                gauges[name].set(sample.value, tags=dict(sample.labels))
        time.sleep(SECONDS)


def run_on_ray(address: str, serving: Serving, host: str, port: int, least: int, most: int, ready: Ready) -> None:
    """Serve from replicas until stopped; `ready` is called when requests are taken."""
    from multidraft.server.process import bind_socket

    serving.check()
    serve = optional("ray.serve", "Ray", "ray")
    check_address(address)
    with bind_socket(host, port) as listener:
        port = listener.getsockname()[1]
    gpus = one_gpu(join(address, heard=True))
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(deployment(serving, least, most, gpus), name=NAME, route_prefix="/")
        ready(port)
        signal.pause()
    finally:
        serve.delete(NAME)  # and nothing of others on the same cluster
