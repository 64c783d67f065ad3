"""What the server counts, in Prometheus' text format, and its recent latencies for `/status`."""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
from prometheus_client import Counter
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from loomrl.system.http.service_metrics import PrometheusMetrics
from loomrl.types import FloatArray, Json

_BUCKETS = (25e-6, 50e-6, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 1e-1, 1.0)
_RECENT = 8_192


class Durations(Collector):
    """A histogram that costs a tenth of the library's for each value: it is put into the library's form when asked."""

    def __init__(self, name: str, text: str, buckets: Sequence[float]) -> None:
        """`buckets` are upper bounds in seconds, rising; a last one without a bound is added."""
        self._name, self._text, self._buckets = name, text, buckets
        self._counts, self._total = [0] * (len(buckets) + 1), 0.0

    def observe(self, seconds: Iterable[float]) -> None:
        """Count each of these durations, in seconds, in its bucket of the histogram."""
        for one in seconds:
            self._counts[bisect_left(self._buckets, one)] += 1
            self._total += one

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The histogram as Prometheus has it, one family: each bucket holds what is at most its bound."""
        bounds = [*map(repr, self._buckets), "+Inf"]
        buckets = list(zip(bounds, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._total)


class ServerMetrics(PrometheusMetrics):
    """What a policy server counts, and how long its requests take."""

    def __init__(self, policy: str) -> None:
        super().__init__()
        self._decisions = self.counter("decisions", "Decisions answered", ["policy", "version", "by"])
        self._prevented = self.counter(
            "prevented",
            "Actions the shield did not allow, by what, and whether a fallback acted",
            ["version", "by", "fallback"],
        )
        self.limited = self.counter("rate_limited", "Requests refused by the rate limit")
        self.feedback = self.counter("feedback", "Feedback recorded")
        self._monitors = self.new_gauge(
            "monitor_evidence",
            "Share of the evidence that takes a version out of service; 1 does",
            ["version", "monitor"],
        )
        self._seconds = Durations("loomrl_request_seconds", "Server time per request", _BUCKETS)
        self.registry.register(self._seconds)
        self._policy = policy
        self._children: dict[tuple[str, str], Counter] = {}
        self._recent = np.zeros(_RECENT)  # ring of the last requests' seconds
        self.num_requests = 0

    def count_decisions(self, version: str, by: str, count: int) -> None:
        """Count decisions of a version by who made them, as `DecisionBatch.decided_by` names them."""
        child = self._children.get((version, by))
        if child is None:
            child = self._children[version, by] = self._decisions.labels(self._policy, version, by)
        child.inc(count)

    def count_prevented(self, version: str, by: str, fallback: str | None) -> None:
        """Count one action of a version that a shield did not allow: `by` is what forbade it, `fallback` what acted
        instead, None for nothing else.
        """
        self._prevented.labels(version, by, fallback or "none").inc()

    def observe(self, seconds: Sequence[float]) -> None:
        """Keep the server time of requests that were answered together."""
        self._seconds.observe(seconds)
        for one in seconds:
            self._recent[self.num_requests % _RECENT] = one
            self.num_requests += 1

    def latency_seconds(self) -> dict[str, float] | None:
        """The quantiles `p50` and `p99` of the last requests' server times, in seconds; None before the first."""
        recent = self._recent[: min(self.num_requests, _RECENT)]
        if not recent.size:
            return None
        p50, p99 = np.quantile(recent, (0.5, 0.99))
        return {"p50": float(p50), "p99": float(p99)}

    def latencies_seconds(self, after: int) -> FloatArray:
        """Server times (N,) of the requests after the first `after` ones, as far as they are kept."""
        end = self.num_requests  # grows meanwhile
        return self._recent.take(np.arange(max(after, end - _RECENT), end), mode="wrap")

    def counts(self) -> Json:
        """All counters since the server started, as JSON values."""
        return {
            "requests": self.num_requests,
            "decisions": _counts(self._decisions, "version", "by"),
            "prevented": _counts(self._prevented, "version", "by"),
            "problems": _counts(self._problems, "status"),
            "limited": _counts(self.limited),
            "feedback": _counts(self.feedback),
        }

    def show_monitors(self, versions: dict[str, Any]) -> None:
        """Show the evidence of all monitors, as `Guardian.shown` has it."""
        self._monitors.clear()
        for version, found in versions.items():
            for name, monitor in found["monitors"].items():
                self._monitors.labels(version, name).set(monitor["e_value"] / monitor["threshold"])


def _counts(counter: Counter, *labels: str) -> Any:
    """A counter as one number, or by its labels, the first outermost; sums over the others."""
    (family,) = counter.collect()
    found: Any = {} if labels else 0
    for sample in family.samples:
        if sample.name.endswith("_total"):
            found = _add(found, [sample.labels[label] for label in labels], int(sample.value))
    return found


def _add(found: Any, keys: list[str], count: int) -> Any:
    if not keys:
        return found + count
    first, *rest = keys
    found[first] = _add(found.get(first, {} if rest else 0), rest, count)
    return found
