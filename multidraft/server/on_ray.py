"""Numbers of a replica for Ray's own exporter: behind a proxy, `/metrics` would be that of any replica."""

import time
from typing import Any

from ray.serve.metrics import Gauge

from multidraft.server.metrics import Metrics

SECONDS = 5  # between two looks


def mirror(metrics: Metrics, seconds: float | int = SECONDS) -> None:
    """Pass all numbers on, every few seconds, for as long as the process lives."""
    gauges: dict[str, Any] = {}
    while True:
        copy(metrics, gauges)
        time.sleep(seconds)


def copy(metrics: Metrics, gauges: dict[str, Any]) -> None:
    """Each sample as a gauge of its name, with `_` in place of `:`; Serve adds which replica it is."""
    for metric in metrics.registry.collect():
        for sample in metric.samples:
            name = sample.name.replace(":", "_")
            if name not in gauges:
                labels: Any = tuple(sample.labels)  # of any number, which Ray's hint does not say
                gauges[name] = Gauge(name, metric.documentation, labels)
            gauges[name].set(sample.value, tags=dict(sample.labels))
