"""What a served engine counts, in Prometheus' text format."""

from loomrl.language.inference.engine import Completion
from loomrl.system.http.service_metrics import ServiceMetrics

_SECONDS = (2.5e-3, 1e-2, 2.5e-2, 1e-1, 2.5e-1, 1.0, 5.0, 30.0)


class EngineMetrics(ServiceMetrics):
    """Prometheus metrics of an inference engine: completions, their tokens, weight updates and request times."""

    def __init__(self) -> None:
        super().__init__("engine", "Time of requests for completions", _SECONDS)
        self._completions = self.counter("completions", "Completions, by what ended them", ["finish_reason"])
        self._tokens = self.counter("tokens", "Tokens of completions")
        self._updates = self.counter("updates", "Weight updates, by whether they are served", ["outcome"])

    def observe_completion(self, completion: Completion) -> None:
        """Add one completion to the counters, under its finish reason, with the number of its tokens."""
        self._completions.labels(completion.finish_reason).inc()
        self._tokens.inc(len(completion.token_ids))

    def count_update(self, is_served: bool) -> None:
        """Add one weight update to the counter, as served or as refused."""
        self._updates.labels("served" if is_served else "refused").inc()
