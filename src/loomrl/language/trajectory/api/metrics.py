"""What a hub counts, in Prometheus' text format."""

from loomrl.system.http.service_metrics import ServiceMetrics

_SECONDS = (1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 2.5e-1, 1.0, 5.0)


class HubMetrics(ServiceMetrics):
    """Prometheus metrics of a hub: groups taken, refused and delivered, scores, and request times."""

    def __init__(self) -> None:
        super().__init__("hub", "Server time of requests that post groups or take batches", _SECONDS)
        self.groups = self.counter("groups", "Groups taken")
        self.sequences = self.counter("sequences", "Sequences of groups taken")
        self.rejected = self.counter("rejected", "Groups that were refused")
        self.repeated = self.counter("repeated", "Requests that came again and were answered as before")
        self.delivered = self.counter("delivered", "Groups handed to trainers")
        self.redelivered = self.counter("redelivered", "Batches handed out again, for nobody acknowledged them in time")
        self._scores = self.counter("scored_groups", "Groups with scores")
        self._score_sum = self.new_gauge("score_sum", "Sum of the groups' mean scores")

    def observe_group(self, size: int, mean_score: float | None) -> None:
        """Add an accepted group to the counters, with its number of sequences and its mean score; None: it has none."""
        self.groups.inc()
        self.sequences.inc(size)
        if mean_score is not None:
            self._scores.inc()
            self._score_sum.inc(mean_score)

    def counts(self) -> dict[str, float]:
        """All counters and sums since the start, by name without prefix."""
        samples = (sample for metric in self.registry.collect() for sample in metric.samples)
        wanted = ("_total", "score_sum")
        return {
            sample.name.removeprefix("loomrl_hub_").removesuffix("_total"): sample.value
            for sample in samples
            if sample.name.endswith(wanted) and not sample.labels
        }
