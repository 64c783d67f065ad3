"""Decisions without a server: the order of authority, what is on record, and what one request does to the others."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loomrl.environment.finite.shield import Shield
from loomrl.serving.controls.controls import Controls
from loomrl.serving.controls.overrides import Override
from loomrl.serving.controls.plan import Fallback, KillSwitch, Plan
from loomrl.serving.decisions.authority import FALLBACK, KILL_SWITCH, OVERRIDE
from loomrl.serving.decisions.batches import RequestDecisions, answers_of
from loomrl.serving.decisions.decider import Decider
from loomrl.serving.decisions.feedback import FeedbackLedger
from loomrl.serving.decisions.limits import RateLimiter
from loomrl.serving.decisions.memory import Memories
from loomrl.serving.decisions.requests import DecisionRequests, Feedback
from loomrl.serving.policy.exploration import Draws
from loomrl.serving.policy.model import NoState, ServedPolicy
from loomrl.serving.policy.roles import Roles
from loomrl.serving.telemetry.metrics import ServerMetrics
from loomrl.serving.telemetry.statistics import InferenceStatistics
from loomrl.storage.audit.history import records
from loomrl.storage.audit.log import AuditLog, AuditUnwritable
from loomrl.storage.audit.records import CHAMPION
from loomrl.system.files import read_json, sha256_file, write_json
from loomrl.system.http.problems import Problem
from tests.support.policies import BALANCING, OBSERVATIONS, discrete_folder, recurrent_folder

BY: dict[str, Any] = {"person": "Ada", "reason": "test"}
KNOWN, UNKNOWN = OBSERVATIONS.tolist(), [9.0, 9.0, 9.0, 9.0]


@dataclass
class Desk:
    """A decider and what it works with, all real; the limiter lets an agent ask three times."""

    audit: AuditLog
    controls: Controls
    ledger: FeedbackLedger
    metrics: ServerMetrics
    memories: Memories
    roles: Roles
    decider: Decider

    @classmethod
    def of(cls, roles: Roles, burst: float = 3) -> "Desk":
        audit, controls, metrics, memories = (
            AuditLog("cartpole"),
            Controls("cartpole"),
            ServerMetrics("cartpole"),
            Memories(),
        )
        ledger, limiter = FeedbackLedger("cartpole", audit), RateLimiter(rate=1e-3, burst=burst)
        decider = Decider(
            "cartpole", audit, controls, limiter, metrics, InferenceStatistics(), memories, ledger, Draws.seeded(1)
        )
        return cls(audit, controls, ledger, metrics, memories, roles, decider)

    def decide(
        self, *agents: str, observations: list[Any] | None = None, route: str = "decide"
    ) -> list[dict[str, Any]]:
        asked = requests(*agents, observations=observations)
        return answers_of(self.decider.decide(asked, self.roles, time.perf_counter(), route))

    def together(self, *all_requests: DecisionRequests) -> list[list[RequestDecisions] | Exception]:
        starts = [time.perf_counter()] * len(all_requests)
        return self.decider.decide_together(all_requests, self.roles, starts, "decide")

    def count(self, by: str) -> float:
        """How many decisions were counted as decided by something."""
        lines = self.metrics.text().decode().splitlines()
        counted = [line for line in lines if line.startswith("loomrl_decisions_total{") and f'by="{by}"' in line]
        return sum(float(line.split()[-1]) for line in counted)


def requests(*agents: str, observations: list[Any] | None = None, episode: str | None = None) -> DecisionRequests:
    observed = KNOWN[: len(agents)] if observations is None else observations
    return DecisionRequests(list(agents), [episode] * len(agents), [False] * len(agents), observed)


def kinds(kind: str) -> list[dict[str, Any]]:
    return [entry for entry in records("cartpole") if entry["kind"] == kind]


def without_answer() -> list[list[str]]:
    """Who is named in each record of requests without an answer."""
    return [[agent for agent, *_ in entry["without_answer"]] for entry in kinds("unanswered")]


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> ServedPolicy:
    return ServedPolicy.load(discrete_folder(tmp_path_factory.mktemp("policies") / "policy", BALANCING), "1")


@pytest.fixture(scope="module")
def shielded(tmp_path_factory: pytest.TempPathFactory) -> ServedPolicy:
    """Its shield allows everything in the states it knows, and knows no others."""
    folder = discrete_folder(tmp_path_factory.mktemp("policies") / "shielded", BALANCING)
    manifest = read_json(folder / "manifest.json")
    allowed = np.ones((len(OBSERVATIONS), 2), np.bool_)
    Shield(OBSERVATIONS, allowed, np.zeros(allowed.shape)).save(folder / "shield.safetensors")
    write_json(folder / "manifest.json", manifest | {"shield_sha256": sha256_file(folder / "shield.safetensors")})
    return ServedPolicy.load(folder, "1")


@pytest.fixture
def desk(loomrl_home: Path, policy: ServedPolicy) -> Iterator[Desk]:
    desk = Desk.of(Roles(champion=policy))
    yield desk
    desk.audit.close()


@pytest.fixture
def guarded(loomrl_home: Path, shielded: ServedPolicy) -> Iterator[Desk]:
    desk = Desk.of(Roles(champion=shielded))
    yield desk
    desk.audit.close()


def test_what_is_answered_is_what_the_policy_says_on_record_and_expected_back(desk: Desk, policy: ServedPolicy) -> None:
    told = desk.decide("a", "b", "c")
    assert [answer["action"] for answer in told] == policy(OBSERVATIONS[:3]).tolist()
    assert {(answer["role"], answer["version"]) for answer in told} == {(CHAMPION, "1")}
    assert [answer["decision_id"] for answer in told] == [entry["decision_id"] for entry in kinds("decision")]
    ended = desk.ledger.accept([Feedback(told[1]["decision_id"], 1.0, terminated=True, truncated=False)])
    assert ended == [("b", None)]
    assert desk.count("policy") == 3


def test_a_segment_says_which_files_decide_before_they_do_and_says_it_once(desk: Desk, policy: ServedPolicy) -> None:
    for _ in range(2):
        desk.decide("a")
    found = [entry["kind"] for entry in records("cartpole") if entry["kind"] in ("loaded", "decision")]
    assert found == ["loaded", "decision", "decision"]
    assert kinds("loaded")[0]["onnx_sha256"] == policy.manifest.onnx_sha256


def test_one_bad_observation_refuses_the_whole_request_and_leaves_nothing(desk: Desk) -> None:
    with pytest.raises(Problem) as refused:
        desk.decide("a", "b", observations=[KNOWN[0], [1.0]])
    assert refused.value.status == 400
    assert (kinds("decision"), desk.count("policy")) == ([], 0)
    assert len(desk.decide("a", "a", "a")) == 3  # nothing was taken from the limit either


def test_what_is_not_on_record_was_not_decided(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    desk.decide("a")
    with monkeypatch.context() as full:

        def write(*arguments: Any) -> int:
            raise OSError(28, "No space left on device")

        full.setattr(os, "write", write)
        full.setattr(os, "writev", write)
        full.setattr(os, "pwrite", write)
        with pytest.raises(AuditUnwritable):
            desk.decide("b")
    assert desk.count("policy") == 1
    assert [entry["agent_id"] for entry in kinds("decision")] == ["a"]
    desk.decide("b")
    assert [entry["agent_id"] for entry in kinds("decision")] == ["a", "b"]


def test_the_limit_holds_for_policies_and_not_for_people(desk: Desk) -> None:
    desk.decide("a", "a", "a")
    with pytest.raises(Problem, match="agent 'a' may ask 0.001 times a second") as refused:
        desk.decide("a")
    assert refused.value.status == 429
    assert int(refused.value.headers["Retry-After"]) > 900
    assert [(entry["agent_id"], entry["num_refused"]) for entry in kinds("limited")] == [("a", 1)]
    with pytest.raises(Problem, match="more decisions for agent 'b' than the burst of 3") as refused:
        desk.decide("b", "b", "b", "b")
    assert refused.value.status == 413
    desk.controls.set_override(Override(action=1, agent_id="a", **BY), "test")
    assert [(one["role"], one["action"]) for one in desk.decide("a")] == [(OVERRIDE, 1)]
    desk.controls.set_plan(Plan(fallback=Fallback(action=0), **BY), "test")
    desk.controls.set_kill_switch(KillSwitch(**BY), "test", "test")
    told = desk.decide("a", "b", "b", "b", "b")
    assert [(one["role"], one["action"]) for one in told] == [(OVERRIDE, 1), *[(KILL_SWITCH, 0)] * 4]
    assert (desk.count(OVERRIDE), desk.count(KILL_SWITCH)) == (2, 4)


def test_where_there_is_no_answer_and_no_fallback_nothing_is_decided(guarded: Desk) -> None:
    with pytest.raises(NoState):
        guarded.decide("a", "b", observations=[KNOWN[0], UNKNOWN])
    assert kinds("decision") == []
    assert without_answer() == [["a", "b"]]
    (entry,) = kinds("unanswered")
    assert entry["without_answer"][1] == ["b", None, None, False]  # episode, what a split dealt, asked to explore
    assert (entry["agent_id"], "experiment" in entry) == ("a", False)


def test_all_in_a_request_are_named_where_one_of_two_versions_has_no_answer(guarded: Desk, tmp_path: Path) -> None:
    """Each with the version it was dealt: nobody got an answer."""
    other = ServedPolicy.load(discrete_folder(tmp_path / "other", -BALANCING), "2")
    guarded.roles = Roles(champion=guarded.roles.champion, pinned={"2": other})
    guarded.controls.set_plan(Plan(split={"2": 0.5}, **BY), "test")
    agents = [f"agent {number}" for number in range(8)]
    with pytest.raises(NoState):
        guarded.decide(*agents, observations=[UNKNOWN] * 8)
    guarded.decide(*agents, observations=[KNOWN[0]] * 8)
    (entry,) = kinds("unanswered")
    assert entry["version"] == "1"
    assert {agent: dealt for agent, _, dealt, _ in entry["without_answer"]} == {
        decision["agent_id"]: decision["dealt"] for decision in kinds("decision")
    }
    assert {dealt for *_, dealt, _ in entry["without_answer"]} == {"1", "2"}


def test_the_fallback_decides_what_the_policy_has_no_answer_to_and_no_more(guarded: Desk) -> None:
    guarded.controls.set_plan(Plan(fallback=Fallback(action=1), **BY), "test")
    observations = [KNOWN[0], UNKNOWN, KNOWN[1]]
    told = guarded.decide("a", "b", "c", observations=observations)
    assert [answer["role"] for answer in told] == [CHAMPION, FALLBACK, CHAMPION]
    assert told[1]["action"] == 1
    whole = guarded.decide("a", "b", "c", observations=observations, route="infer")
    assert [answer["role"] for answer in whole] == [FALLBACK] * 3  # a tensor is one version's answer
    assert without_answer() == [["b"], ["a", "b", "c"]]
    times = [[entry["timestamp"] for entry in kinds(kind)] for kind in ("unanswered", "decision")]
    assert set(times[0]) == set(times[1])  # of the requests


def test_where_the_fallback_has_no_answer_either_nobody_got_one(guarded: Desk) -> None:
    guarded.controls.set_plan(Plan(fallback=Fallback(version="1"), **BY), "test")
    with pytest.raises(NoState):
        guarded.decide("a", "b", observations=[KNOWN[0], UNKNOWN])
    assert (without_answer(), kinds("decision")) == ([["a", "b"]], [])


def test_requests_that_came_together_are_one_record_and_each_is_told_its_own(desk: Desk, policy: ServedPolicy) -> None:
    first, second = desk.together(requests("a", "b"), requests("c", observations=[KNOWN[3]]))
    assert isinstance(first, list)
    assert isinstance(second, list)
    ids = [answer["decision_id"] for part in (first, second) for answer in answers_of(part)]
    record_id = ids[0].partition(".")[0]
    assert ids == [f"{record_id}.{row}" for row in range(3)] == [entry["decision_id"] for entry in kinds("decision")]
    assert [one["action"] for one in answers_of(second)] == policy(OBSERVATIONS[3:4]).tolist()


def test_one_request_that_is_refused_costs_the_others_nothing(desk: Desk) -> None:
    desk.decide("greedy", "greedy", "greedy")
    good, limited, bad = desk.together(requests("a"), requests("greedy"), requests("b", observations=[[1.0]]))
    assert isinstance(good, list)
    assert [len(answers_of(good)), *[type(one) for one in (limited, bad)]] == [1, Problem, Problem]
    assert [int(one.status) for one in (limited, bad) if isinstance(one, Problem)] == [429, 400]
    assert [entry["agent_id"] for entry in kinds("decision")][3:] == ["a"]


def test_requests_are_not_joined_where_people_tell_agents_apart(desk: Desk) -> None:
    desk.controls.set_override(Override(action=0, agent_id="b", **BY), "test")
    outcomes = desk.together(requests("a"), requests("b"))
    roles = [answer["role"] for one in outcomes if isinstance(one, list) for answer in answers_of(one)]
    assert roles == [CHAMPION, OVERRIDE]
    assert [entry["decision_id"].find(".") for entry in kinds("decision")] == [-1, -1]  # a record each


def test_an_episode_stays_with_the_version_that_remembers_it(loomrl_home: Path, tmp_path: Path) -> None:
    old, new = (ServedPolicy.load(recurrent_folder(tmp_path / version), version) for version in ("1", "2"))
    desk = Desk.of(Roles(champion=old), burst=100)
    started = time.perf_counter()
    begun = answers_of(desk.decider.decide(requests("a", episode="one"), desk.roles, started))
    swapped = Roles(champion=new, draining={"1": old})
    both = DecisionRequests(["a", "b"], ["one", "two"], [False] * 2, KNOWN[:2])
    told = answers_of(desk.decider.decide(both, swapped, started))
    assert [one["version"] for one in begun + told] == ["1", "1", "2"]
    assert desk.memories.versions() == {"1", "2"}
    desk.audit.close()


def test_refusals_that_nobody_reported_are_put_on_record_at_last(desk: Desk) -> None:
    desk.decide("a", "a", "a")
    for _ in range(4):
        with pytest.raises(Problem):
            desk.decide("a")
    desk.decider.report_refusals()
    assert sum(entry["num_refused"] for entry in kinds("limited")) == 4
    count = len(kinds("limited"))
    desk.decider.report_refusals()
    assert len(kinds("limited")) == count
