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
        self._scores = counter("scored_groups", "Groups with scores")
        self._score_sum = Gauge(
            "score_sum", "Sum of the groups' mean scores", registry=self._registry, namespace="loomrl", subsystem="hub"
        )
        self._problems = counter("problems", "Requests refused, by status", ["status"])
        self._seconds = Histogram(
            "request_seconds",
            "Server time of requests that post groups or take batches",
            registry=self._registry,
            namespace="loomrl",
            subsystem="hub",
            buckets=_SECONDS,
        )

    def observe_group(self, size: int, mean_score: float | None) -> None:
        """Count one group that was taken."""
        self.groups.inc()
        self.sequences.inc(size)
        if mean_score is not None:
            self._scores.inc()
            self._score_sum.inc(mean_score)

    def observe(self, seconds: float) -> None:
        """Keep one request's server time."""
        self._seconds.observe(seconds)

    def count_problem(self, status: int) -> None:
        """Count one refused request."""
        self._problems.labels(str(status)).inc()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a value that is read when somebody looks."""
        Gauge(name, text, registry=self._registry, namespace="loomrl", subsystem="hub").set_function(value)

    def counts(self) -> dict[str, float]:
        """All counters and sums since the start, by name."""
        samples = (sample for metric in self._registry.collect() for sample in metric.samples)
        wanted = ("_total", "score_sum")
        return {
            sample.name.removeprefix("loomrl_hub_").removesuffix("_total"): sample.value
            for sample in samples
            if sample.name.endswith(wanted) and not sample.labels
        }

    def text(self) -> bytes:
        """Everything in the text exposition format 0.0.4."""
        return generate_latest(self._registry)
