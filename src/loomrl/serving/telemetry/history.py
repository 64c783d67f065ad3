"""What a server counted in the last minutes, second by second: a page that is opened now shows what came before."""

import time
from collections import Counter, deque
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from loomrl.serving.telemetry.metrics import ServerMetrics
from loomrl.types import FloatArray, Json

if TYPE_CHECKING:
    from loomrl.serving.mirror.process import Shadow

NUM_POINTS = 600  # one a second


class History:
    """What was counted between one call of `take` and the next, for the last `NUM_POINTS` of them. Points of several
    servers may be added up, and so may their latencies.
    """

    def __init__(self, metrics: ServerMetrics, shadow: "Shadow") -> None:
        self._metrics, self._shadow = metrics, shadow
        self._points: deque[Json] = deque(maxlen=NUM_POINTS)
        self._before, self._at = self.counts(), time.monotonic()

    def counts(self) -> Json:
        """What was counted since the server started, as JSON values; what challengers did, since the first of them."""
        state = self._shadow.state
        told = {"mirrored": state.num_mirrored, "dropped": state.num_dropped, "errors": state.num_errors}
        compared = {version: asdict(found) for version, found in self._shadow.compared.items()}
        return {**self._metrics.counts(), "shadow": told, "compared": compared}

    def take(self) -> None:
        """Add the point of the time since the last one; what did not change is left out of it."""
        counts, now = self.counts(), time.monotonic()
        latencies = self._metrics.latencies_seconds(self._before["requests"])
        point = {"time": time.time(), "seconds": now - self._at, "latency_us": _histogram(latencies)}
        self._points.append({**point, **(_difference(counts, self._before) or {})})
        self._before, self._at = counts, now

    def after(self, moment: float) -> list[Json]:
        """The points later than a time (seconds since 1970), oldest first."""
        return [point for point in self._points.copy() if point["time"] > moment]


def _difference(now: Any, before: Any) -> Any:
    """How far counters, nested alike, have come; None where they have not."""
    if not isinstance(now, dict):
        return (now - (before or 0)) or None
    found = {name: _difference(value, (before or {}).get(name)) for name, value in now.items()}
    return {name: value for name, value in found.items() if value is not None} or None


def _histogram(seconds: FloatArray) -> dict[int, int]:
    """How often each latency came, in microseconds with two significant digits."""
    microseconds = np.maximum(seconds * 1e6, 1.0)
    unit = 10.0 ** np.maximum(np.floor(np.log10(microseconds)) - 1.0, 0.0)
    return dict(Counter((np.rint(microseconds / unit) * unit).astype(int).tolist()))
