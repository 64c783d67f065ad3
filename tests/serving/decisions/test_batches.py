"""What is decided together: the columns of a group, what of it is whose, and what each agent is told."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.serving.controls.overrides import Override
from loomrl.serving.decisions.authority import FALLBACK, OVERRIDE, DecisionSource
from loomrl.serving.decisions.batches import DecisionBatch, RequestDecisions, answers_of
from loomrl.serving.decisions.requests import DecisionRequests
from loomrl.serving.policy.model import ServedPolicy
from loomrl.storage.audit.records import CHAMPION
from loomrl.system.http.problems import Problem
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> ServedPolicy:
    return ServedPolicy.load(discrete_folder(tmp_path_factory.mktemp("policies") / "policy", BALANCING), "1")


def requests(count: int, first: int = 0) -> DecisionRequests:
    agents = [f"agent-{number}" for number in range(first, first + count)]
    return DecisionRequests(agents, [None] * count, [False] * count, OBSERVATIONS[:count].tolist(), holder="Ada")


def decided(
    batch: DecisionBatch, decision_id: str, actions: Sequence[int], values: Sequence[float] | None = None
) -> DecisionBatch:
    """As the decider leaves it, once it is on record."""
    count = len(batch)
    batch.action = np.array(actions)
    batch.value = None if values is None else np.array(values, np.float32)
    batch.propensity, batch.explored, batch.shield = [1.0] * count, [False] * count, [None] * count
    said = {
        "policy": "cartpole", "version": batch.policy.version, "role": batch.source.role,
        "assignment_probability": batch.source.probability, "override": None,
    }  # fmt: skip
    batch.record = {"decision_id": decision_id} | (said if count == 1 else {"shared": said})
    return batch


def test_observations_are_one_array_of_the_policys_type(policy: ServedPolicy) -> None:
    batch = DecisionBatch.of([0, 1, 2], requests(3), DecisionSource(CHAMPION, policy))
    assert (len(batch), batch.observations.dtype, batch.observations.shape) == (3, np.float32, (3, 4))
    np.testing.assert_array_equal(batch.observations, OBSERVATIONS[:3])
    assert (batch.policy, batch.override) == (policy, None)


@pytest.mark.parametrize("observation", [[1.0, 2.0], [1.0, 2.0, 3.0, "x"], [1.0, 2.0, 3.0, 1e300]])
def test_an_observation_that_is_not_the_policys_is_refused(policy: ServedPolicy, observation: list[Any]) -> None:
    asked = DecisionRequests(["a"], [None], [False], [observation])
    with pytest.raises(Problem) as refused:
        DecisionBatch.of([0], asked, DecisionSource(CHAMPION, policy))
    assert refused.value.status == 400


def test_some_of_a_group_keep_their_places_agents_and_observations(policy: ServedPolicy, tmp_path: Path) -> None:
    batch = DecisionBatch.of([4, 5, 6], requests(3), DecisionSource(CHAMPION, policy, probability=0.5))
    some = batch.only([2, 0])
    assert (some.rows, some.requests.agent_ids, some.requests.holder) == ([6, 4], ["agent-2", "agent-0"], "Ada")
    np.testing.assert_array_equal(some.observations, OBSERVATIONS[[2, 0]])
    other = ServedPolicy.load(discrete_folder(tmp_path / "other", -BALANCING), "2")
    moved = batch.only([1], other)
    assert (moved.rows, moved.policy.version, moved.source.role, moved.source.probability) == (
        [5],
        "2",
        CHAMPION,
        0.5,
    )
    assert batch.policy is policy


def test_each_request_is_told_its_own_of_what_was_decided_together(policy: ServedPolicy) -> None:
    batch = decided(
        DecisionBatch.of([0, 0, 1], requests(3), DecisionSource(CHAMPION, policy)), "7", [1, 0, 1], [0.5, 1.5, 2.5]
    )
    first, second = RequestDecisions(batch, 0, 1), RequestDecisions(batch, 1, 3)
    assert (first.decision_ids(), second.decision_ids()) == (["7.0"], ["7.1", "7.2"])
    assert second.joined_decision_ids() == "7.1,7.2"
    assert [answer["action"] for answer in second.answers()] == [0, 1]
    (told,) = first.answers()
    assert told == {
        "decision_id": "7.0", "action": 1, "policy": "cartpole", "version": "1", "value": 0.5, "propensity": 1.0,
        "role": CHAMPION, "assignment_probability": 1.0, "override": None, "limited": False, "exploration": False,
        "shield": None,
    }  # fmt: skip
    assert RequestDecisions.whole(batch).answers()[1:] == second.answers()


def test_one_decision_has_its_records_own_id_and_no_value_where_a_person_chose(policy: ServedPolicy) -> None:
    override = Override(action=1, person="Ada", reason="test")
    batch = decided(
        DecisionBatch.of([0], requests(1), DecisionSource(OVERRIDE, policy, np.array(1), override)), "7", [1]
    )
    assert RequestDecisions.whole(batch).decision_ids() == ["7"]
    assert RequestDecisions.whole(batch).joined_decision_ids() == "7"
    assert [(one["decision_id"], one["value"]) for one in batch.answers()] == [("7", None)]
    assert batch.override is override


def test_agents_are_told_in_the_order_they_asked_whoever_decided(policy: ServedPolicy) -> None:
    odd = decided(DecisionBatch.of([1, 3], requests(2), DecisionSource(CHAMPION, policy)), "8", [1, 1])
    even = decided(DecisionBatch.of([2, 0], requests(2, 2), DecisionSource(FALLBACK, policy)), "9", [0, 0])
    told = answers_of([RequestDecisions.whole(odd), RequestDecisions.whole(even)])
    assert [answer["decision_id"] for answer in told] == ["9.1", "8.0", "9.0", "8.1"]
    assert [answer["role"] for answer in told] == [FALLBACK, CHAMPION, FALLBACK, CHAMPION]


def test_who_decided_is_counted_a_shield_before_a_draw(policy: ServedPolicy) -> None:
    batch = decided(DecisionBatch.of([0, 1, 2, 3], requests(4), DecisionSource(CHAMPION, policy)), "7", [0] * 4)
    assert batch.decided_by() == {"policy": 4}
    batch.explored = [True, True, False, False]
    batch.shield = [{"by": "bounds"}, None, None, None]
    assert batch.decided_by() == {"shield": 1, "explored": 1, "policy": 2}
    assert decided(
        DecisionBatch.of([0, 1], requests(2), DecisionSource(FALLBACK, policy)), "7", [0, 0]
    ).decided_by() == {FALLBACK: 2}
