"""Replicas of `multidraft serve` on Ray; `application` is for `serve deploy`.

A replica runs the same app behind Ray Serve's proxies. It receives only the settings, and loads the models itself.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

from multidraft.cli.imports import IMPORTED_MODULES, import_modules
from multidraft.cli.serving import Serving
from multidraft.errors import AdviceError, optional
from multidraft.server import Limits

if TYPE_CHECKING:
    from fastapi import FastAPI
    from ray.serve import Application

    from multidraft.server.service import Metrics

APP_NAME = "multidraft"
LOCAL = "local"
CONNECT_SECONDS = 5.0  # to wait for a cluster's answer
METRICS_SECONDS = 5  # between two exports
RAY_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",  # no telemetry
    "RAY_worker_niceness": "0",  # the same priority as local processes
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the same devices as local processes
}
ReadyCallback = Callable[[int], None]  # gets the port


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


def connect(address: str, show_logs: bool = False, **local: object) -> ModuleType:
    """Connect to Ray, and return its module; `local` holds the settings of a local Ray."""
    ray = optional("ray", "Ray", "ray")
    if not ray.is_initialized():
        os.environ.update({name: value for name, value in RAY_ENVIRONMENT.items() if name not in os.environ})
        sigterm_handler = signal.getsignal(signal.SIGTERM)
        try:
            ray.init(address, log_to_driver=show_logs, logging_level="error", **local if address == LOCAL else {})
        except Exception as error:  # Ray raises plain Exception if a busy machine starts it too slowly
            reason = str(error).strip().splitlines()[0]
            advice = "try again when less is running here" if address == LOCAL else "check that versions are the same"
            raise AdviceError(f"cannot join Ray at {address!r} ({reason}); {advice}") from None
        signal.signal(signal.SIGTERM, sigterm_handler)  # Ray replaces it
    return ray


def gpus_per_worker(ray: ModuleType) -> int:
    """1 if the cluster has GPUs, else 0."""
    return int(ray.cluster_resources().get("GPU", 0) > 0)


def check_address(address: str) -> None:
    """Raise if nothing answers at a cluster's address; Ray itself would wait for minutes."""
    if address == LOCAL:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError, OverflowError) as error:
        raise AdviceError(
            f"no Ray cluster answers at {address!r} ({error}); give HOST:PORT of `ray start --head`, or --ray local"
        ) from None
