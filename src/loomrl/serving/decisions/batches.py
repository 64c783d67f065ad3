"""Batches of decisions that are made together, column by column, and the part of one that belongs to a request."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from loomrl.serving.controls.overrides import Override
from loomrl.serving.decisions.authority import DecisionSource
from loomrl.serving.decisions.choosing import Substitute
from loomrl.serving.decisions.memory import Recalled
from loomrl.serving.decisions.packing import packed
from loomrl.serving.decisions.requests import DecisionRequests, observation_arrays
from loomrl.serving.policy.exploration import require_explorable
from loomrl.serving.policy.model import ServedPolicy
from loomrl.storage.audit.records import joined_row_ids, row_ids


@dataclass(slots=True)
class DecisionBatch:
    """B requests for a decision that one version, or one person, decides at once.

    `record` is empty until all is decided; it gets the ids when the audit log takes it.
    """

    rows: list[int]  # their places in their requests
    requests: DecisionRequests
    source: DecisionSource
    observations: NDArray[Any]  # (B, *obs)
    action: NDArray[Any] = field(init=False)  # (B, *action), in the graph's dtype
    value: NDArray[Any] | None = None  # (B,); None where a person named the action
    outputs: dict[str, NDArray[Any]] = field(default_factory=dict)  # every output of the policy's graph, by name
    propensity: list[float] = field(default_factory=list)  # of a deterministic choice 1; densities of sampled vectors
    explored: list[bool] = field(default_factory=list)
    shield: list[dict[str, Any] | None] = field(default_factory=list)  # where another action was taken, and why
    marks: dict[str, list[Any]] = field(default_factory=dict)  # further columns of the records, by name
    recalled: Recalled | None = None  # what a recurrent policy remembered
    substitute: Substitute | None = None  # what acts where the policy must not
    draw: int | None = None  # which random numbers, where any of them may explore
    record: dict[str, Any] = field(default_factory=dict)
    _answers: list[dict[str, Any]] | None = None  # once somebody is told
    asked: float = 0.0  # `time.perf_counter()` at which the policy was asked,
    answered: float = 0.0  # and at which it had answered

    @classmethod
    def of(cls, rows: list[int], requests: DecisionRequests, source: DecisionSource) -> "DecisionBatch":
        """A batch of these requests, their observations checked to be the policy's.

        Raises:
            Problem: 400 for one that is not, and for one to explore where the policy cannot.
        """
        require_explorable(source.policy, requests.explore)
        observations = observation_arrays(packed(requests.observations, source.policy), source.policy)
        return cls(rows, requests, source, observations)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def policy(self) -> ServedPolicy:
        """The version that decides, or whose actions a person chose from."""
        return self.source.policy

    @property
    def override(self) -> Override | None:
        """The override that decides here; None where no override does."""
        return self.source.override

    def only(self, indices: list[int], policy: ServedPolicy | None = None) -> "DecisionBatch":
        """The requests at these places of the batch, before anything is decided; by another version in the same role
        where one is given, and then it raises as `of` does.
        """
        rows = [self.rows[index] for index in indices]
        if policy is None or policy is self.policy:
            return DecisionBatch(rows, self.requests.only(indices), self.source, self.observations[indices])
        return DecisionBatch.of(rows, self.requests.only(indices), replace(self.source, policy=policy))

    def answers(self) -> list[dict[str, Any]]:
        """What agents are told of each decision, (B,), as JSON objects, once its record is written. Made once for all
        requests.
        """
        if self._answers is None:
            fields = self.record if len(self) == 1 else self.record["shared"]
            values = [None] * len(self) if self.value is None else self.value.tolist()
            ids, actions = RequestDecisions.whole(self).decision_ids(), self.action.tolist()
            columns = zip(ids, actions, values, self.propensity, self.explored, self.shield, strict=True)
            self._answers = [
                {
                    "decision_id": decision_id,
                    "action": action,
                    "policy": fields["policy"],
                    "version": fields["version"],
                    "value": value,
                    "propensity": propensity,
                    "role": fields["role"],
                    "assignment_probability": fields["assignment_probability"],
                    "override": fields["override"],
                    "limited": False,
                    "exploration": explored,
                    "shield": shield,
                }
                for decision_id, action, value, propensity, explored, shield in columns
            ]
        return self._answers

    def decided_by(self) -> Mapping[str, int]:
        """How many were decided by `override`, `kill_switch`, `fallback`, `shield`, `explored` or `policy`."""
        if not self.source.is_on_trial:
            return {self.source.role: len(self)}
        if self.shield.count(None) == len(self) and not any(self.explored):
            return {"policy": len(self)}
        marks = zip(self.shield, self.explored, strict=True)
        return Counter("shield" if mark is not None else "explored" if one else "policy" for mark, one in marks)


@dataclass(slots=True)
class RequestDecisions:
    """The decisions `start` to `stop` of a batch: those of one request."""

    batch: DecisionBatch
    start: int
    stop: int

    @classmethod
    def whole(cls, batch: DecisionBatch) -> "RequestDecisions":
        """All decisions of a batch, as those of one request."""
        return cls(batch, 0, len(batch))

    def decision_ids(self) -> list[str]:
        """The ids of these decisions, (B,); known once their record is written."""
        whole: str = self.batch.record["decision_id"]
        return [whole] if len(self.batch) == 1 else row_ids(whole, self.start, self.stop)

    def joined_decision_ids(self) -> str:
        """The ids of these decisions in one text, with commas between them."""
        whole: str = self.batch.record["decision_id"]
        return whole if len(self.batch) == 1 else joined_row_ids(whole, self.start, self.stop)

    def answers(self) -> list[dict[str, Any]]:
        """The reply to each of these decisions, (B,), as JSON objects."""
        return self.batch.answers()[self.start : self.stop]


def answers_of(decisions: list[RequestDecisions]) -> list[dict[str, Any]]:
    """What one request's agents are told, in the order they asked, as JSON objects."""
    if len(decisions) == 1:
        return decisions[0].answers()
    rows = [row for part in decisions for row in part.batch.rows[part.start : part.stop]]
    answers = dict(zip(rows, (answer for part in decisions for answer in part.answers()), strict=True))
    return [answers[row] for row in range(len(answers))]
