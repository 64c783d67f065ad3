"""A reward comes when it comes: after the version that decided was rolled back, or when its decision is forgotten."""

from functools import partial
from pathlib import Path

import pytest

from loomrl.serving import context
from loomrl.serving.context import ServerSettings
from loomrl.serving.decisions.feedback import FeedbackLedger
from loomrl.serving.process import ServerProcess
from loomrl.storage.audit.history import join, records
from loomrl.storage.registry import CHAMPION, Registry
from tests.support.champions import make_champion
from tests.support.inside import Inside
from tests.support.policies import OBSERVATIONS, discrete_folder

OBS = OBSERVATIONS[0].tolist()


def test_after_a_rollback_a_reward_joins_the_version_that_decided(ready_home: Path, tmp_path: Path) -> None:
    registry = Registry()
    for number in (1, 2):
        registry.register("cartpole", discrete_folder(tmp_path / f"{number}", value=float(number)), f"run-{number}")
    make_champion(registry, "2", previous="1")
    with ServerProcess("cartpole", refresh_seconds=0.1) as server, server.client() as client:
        decision = client.decide("a", OBS, "e")
        make_champion(registry, "1", previous=None)
        client.refresh("cartpole")
        assert (decision.version, client.decide("a", OBS, "e").version) == ("2", "1")
        client.feedback(decision.decision_id, -3.0, terminated=True)
    (rewarded,) = [entry for entry in join(records("cartpole")) if entry["reward"] is not None]
    assert (rewarded["decision_id"], rewarded["version"], rewarded["reward"]) == (decision.decision_id, "2", -3.0)


def test_a_decision_that_newer_ones_have_pushed_out_takes_no_reward(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(context, "FeedbackLedger", partial(FeedbackLedger, capacity=2))
    settings = ServerSettings("cartpole", folders={CHAMPION: discrete_folder(tmp_path / "policy")})
    with Inside(settings) as server:
        decided = [server.decide("a", OBS).json()["decision_id"] for _ in range(3)]
        answers = [server.ask("POST", "/feedback", {"decision_id": one, "reward": 1.0}) for one in decided]
        assert [answer.status_code for answer in answers] == [404, 200, 200]
        assert "too old for feedback" in answers[0].json()["error"]
    assert [entry["decision_id"] for entry in records("cartpole") if entry["kind"] == "feedback"] == decided[1:]
