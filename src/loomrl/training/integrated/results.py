"""What a run of the integrated system leaves: metrics of each iteration, and success rates before and after."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from loomrl.system.schema import Document

StopReason = Literal["max_iterations", "total_episodes", "cancelled"]
Rates = dict[str, float]  # by domain, 0 to 1


class Iteration(Document):
    """One batch: played, delivered by the hub, learnt from, and its policy published.

    `success_rates` and `mean_scores` are of the episodes played for it, `difficulties` in levels. `learning` are the
    trainer's metrics, with `mean_lag`, the policy versions between playing and learning.
    """

    number: int  # from 1
    policy_version: int  # that it made
    num_episodes: int  # in all so far
    success_rates: Rates
    mean_scores: Rates
    difficulties: Rates
    learning: dict[str, float]


@dataclass(frozen=True)
class IntegrationResults:
    """How training went. `warm_start` and `success_rates` are the shares, 0 to 1, of the same held-out tasks of each
    domain that were solved, before and after. `stop_reason` is "max_iterations", "total_episodes" or "cancelled";
    `quarantined` names the environments whose episodes kept breaking."""

    iterations: list[Iteration]
    stop_reason: StopReason
    warm_start: Rates
    success_rates: Rates
    quarantined: list[str]  # environments whose episodes kept breaking

    @property
    def policy_version(self) -> int:
        """The version of the newest policy; 0 is the warm start's."""
        return self.iterations[-1].policy_version if self.iterations else 0

    @property
    def num_episodes(self) -> int:
        """How many episodes the policy has learnt from, over all iterations; 0 before the first."""
        return self.iterations[-1].num_episodes if self.iterations else 0

    @property
    def difficulties(self) -> Rates:
        """The level that the curriculum has reached in each domain; empty before the first iteration."""
        return self.iterations[-1].difficulties if self.iterations else {}


def means(found: Iterable[tuple[str, float]]) -> Rates:
    """The mean value of each name in (name, value) pairs, by name; empty for no pairs."""
    values: dict[str, list[float]] = {}
    for domain, value in found:
        values.setdefault(domain, []).append(value)
    return {domain: sum(ones) / len(ones) for domain, ones in values.items()}
