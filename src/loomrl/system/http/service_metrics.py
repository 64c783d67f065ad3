"""What servers count, in Prometheus' text format."""

from collections.abc import Callable, Sequence
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest


class PrometheusMetrics:
    """The Prometheus metrics of one server, in a registry of their own; a subclass adds what its server counts.

    `service` is what names begin with, behind `loomrl_`; empty: nothing.
    """

    def __init__(self, service: str = "") -> None:
        self.registry = CollectorRegistry()
        self.counter = partial(Counter, registry=self.registry, namespace="loomrl", subsystem=service)
        self.new_gauge = partial(Gauge, registry=self.registry, namespace="loomrl", subsystem=service)
        self._problems = self.counter("problems", "Requests refused, by status", ["status"])

    def count_problem(self, status: int) -> None:
        """Count one request that was refused with this HTTP status."""
        self._problems.labels(str(status)).inc()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Add a gauge, `loomrl_SERVICE_NAME`, with `text` as its help; `value` is called whenever metrics are read.

        Raises:
            ValueError: when there is a metric of this name.
        """
        self.new_gauge(name, text).set_function(value)

    def text(self) -> bytes:
        """All metrics in Prometheus' text exposition format 0.0.4."""
        return generate_latest(self.registry)


class ServiceMetrics(PrometheusMetrics):
    """What a hub and a served engine both count.

    Args:
        service: what names begin with, behind `loomrl_`.
        timed: help of the histogram `request_seconds`: what takes the time that `observe` is told.
        buckets: upper bounds of those times, in seconds.
    """

    def __init__(self, service: str, timed: str, buckets: Sequence[float]) -> None:
        super().__init__(service)
        self._seconds = Histogram(
            "request_seconds",
            timed,
            registry=self.registry,
            namespace="loomrl",
            subsystem=service,
            buckets=buckets,
        )

    def observe(self, seconds: float) -> None:
        """Count one request that took so many seconds, in the histogram of times."""
        self._seconds.observe(seconds)
