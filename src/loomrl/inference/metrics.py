"""What a served engine counts, in Prometheus' text format."""

from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from loomrl.inference.engine import Completion

_SECONDS = (2.5e-3, 1e-2, 2.5e-2, 1e-1, 2.5e-1, 1.0, 5.0, 30.0)


class Metrics:
    """One set per server, in a registry of its own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        counter = partial(Counter, registry=self._registry, namespace="loomrl", subsystem="engine")
        self._gauge = partial(Gauge, registry=self._registry, namespace="loomrl", subsystem="engine")
        self._completions = counter("completions", "Completions, by what ended them", ["finish_reason"])
        self._tokens = counter("tokens", "Tokens of completions")
        self._updates = counter("updates", "Weight updates, by whether they are served", ["outcome"])
        self._problems = counter("problems", "Requests refused, by status", ["status"])
        self._seconds = Histogram(
            "request_seconds",
            "Time of requests for completions",
            registry=self._registry,
            namespace="loomrl",
            subsystem="engine",
            buckets=_SECONDS,
        )

    def observe_completion(self, completion: Completion) -> None:
        """Count one."""
        self._completions.labels(completion.finish_reason).inc()
        self._tokens.inc(len(completion.token_ids))

    def observe(self, seconds: float) -> None:
        """Keep one request's time."""
        self._seconds.observe(seconds)

    def count_update(self, is_served: bool) -> None:
        """Count one update of weights."""
        self._updates.labels("served" if is_served else "refused").inc()

    def count_problem(self, status: int) -> None:
        """Count one refused request."""
        self._problems.labels(str(status)).inc()

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a value that is read when somebody looks."""
        self._gauge(name, text).set_function(value)

    def text(self) -> bytes:
        """Everything in the text exposition format 0.0.4."""
        return generate_latest(self._registry)
