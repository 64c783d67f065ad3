"""What a hub counts, in Prometheus' text format."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0, 5.0)


class Metrics:
    """One set per hub, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry, namespace="loomrl", subsystem="hub")
        self.groups = counter("groups", "Groups taken")
        self.sequences = counter("sequences", "Sequences of groups taken")
        self.rejected = counter("rejected", "Groups that were refused")
        self.repeated = counter("repeated", "Requests that came again and were answered as before")
        self.delivered = counter("delivered", "Groups handed to trainers")
        self.redelivered = counter("redelivered", "Batches handed out again, for nobody acknowledged them in time")
        self._problems = counter("problems", "Requests refused, by status", ["status"])
        self._seconds = Histogram(
            "request_seconds",
            "Server time of requests that post groups or take batches",
            registry=self._registry,
            namespace="loomrl",
            subsystem="hub",
            buckets=_SECONDS,
        )
        self.score_sum = 0.0
        self.num_scored = 0

    def observe_group(self, size: int, mean_score: float | None) -> None:
        """Count one group that was taken."""
        self.groups.inc()
        self.sequences.inc(size)
        if mean_score is not None:
            self.score_sum += mean_score
            self.num_scored += 1

    def observe(self, seconds: float) -> None:
        """Keep one request's server time."""
        self._seconds.observe(seconds)

    def count_problem(self, status: int) -> None:
        """Count one refused request."""
        self._problems.labels(str(status)).inc()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a value that is read when somebody looks."""
        Gauge(name, text, registry=self._registry, namespace="loomrl", subsystem="hub").set_function(value)

    def text(self) -> bytes:
        """Everything in the text exposition format 0.0.4."""
        return generate_latest(self._registry)
