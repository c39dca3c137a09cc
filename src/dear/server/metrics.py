"""Counters and times of the server, in Prometheus' text format."""

from collections.abc import Callable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_METHODS = ("GET", "HEAD", "POST")


class Metrics:
    """Figures of one server; `waiting` counts the images accepted and not yet answered."""

    def __init__(self, waiting: Callable[[], float]) -> None:
        self._registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        labels = ("method", "path")
        self._requests = Counter("dear_requests", "Answered requests", (*labels, "status"), registry=registry)
        self._seconds = Histogram(
            "dear_request_seconds",
            "From the head of a request to the end of its response",
            labels,
            buckets=_SECONDS,
            registry=registry,
        )
        self._batch = Histogram(
            "dear_batch_images",
            "Images that went through the model together",
            buckets=(1, 2, 4, 8, 16, 32),
            registry=registry,
        )
        self._model = Counter("dear_model_seconds", "Time in which the model worked on images", registry=registry)
        gauge = Gauge("dear_waiting_images", "Images accepted and not yet answered", registry=registry)
        gauge.set_function(waiting)

    def answered(self, method: str, path: str | None, status: int, seconds: float) -> None:
        """`path` None: no such address; all of these share one label, or their number would be unlimited.

        `status` 0: the client left before it could be answered.
        """
        labels = (method if method in _METHODS else "other", path or "other")
        self._requests.labels(*labels, status or "none").inc()
        self._seconds.labels(*labels).observe(seconds)

    def batch(self, images: int, seconds: float) -> None:
        self._batch.observe(images)
        self._model.inc(seconds)

    def text(self) -> bytes:
        return generate_latest(self._registry)
