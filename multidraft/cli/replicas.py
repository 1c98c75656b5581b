"""The server on Ray: the same app in every replica, behind Ray Serve's proxies; `application` is for `serve deploy`."""

import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.metrics import Gauge

from multidraft.cli.crews import join, one_gpu
from multidraft.cli.serving import Serving
from multidraft.errors import AdviceError
from multidraft.server.limits import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

    from multidraft.server.metrics import Metrics

NAME = "multidraft"
SECONDS = 5  # between two looks at the numbers
Ready = Callable[[int], None]  # is told the port


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
    rows = serving.limits.rows
    made: Any = serve.deployment(
        serve.ingress(lambda: app_of(serving))(),
        name=NAME,
        ray_actor_options={"num_cpus": serving.threads or 1, "num_gpus": gpus},
        autoscaling_config={
            "min_replicas": least,
            "max_replicas": most,
            "target_ongoing_requests": max(rows * 3 // 4, 1),
        },
        max_ongoing_requests=rows + max(rows // 4, 1),
        max_queued_requests=serving.limits.queue,
        backpressure_config={"status_code": 429, "retry_after_s": 1},
        graceful_shutdown_timeout_s=serving.limits.drain,
    )
    return made.bind()


def app_of(serving: Serving) -> "FastAPI":
    """The app, in the replica that it is for."""
    from multidraft.server.process import apart

    app = apart(serving.app).result()
    threading.Thread(target=mirror, args=(app.state.service.metrics,), name="metrics", daemon=True).start()
    return app


def mirror(metrics: "Metrics") -> None:
    """Pass all numbers on to Ray's exporter, for as long as the process lives: `/metrics` is that of any replica."""
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


def run(address: str, serving: Serving, host: str, port: int, least: int, most: int, ready: Ready) -> None:
    """Serve until stopped; `ready` is called when requests are taken."""
    from multidraft.server.process import bound

    with bound(host, port) as listener:
        port = listener.getsockname()[1]
    gpus = one_gpu(join(address, heard=True))
    serve.start(http_options={"host": host, "port": port})
    try:
        serve.run(deployment(serving, least, most, gpus), name=NAME, route_prefix="/")
        ready(port)
        signal.pause()
    finally:
        serve.delete(NAME)  # and nothing of others on the same cluster
