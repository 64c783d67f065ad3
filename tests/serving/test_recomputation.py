"""Logged decisions recomputed: every bit is the same, and what is not is found."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.environment.finite.shield import Shield
from loomrl.errors import GateRefused
from loomrl.serving.client import Ask, PolicyClient
from loomrl.serving.policy.exploration import probability_of
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.serving.recomputation import LogRecomputation
from loomrl.storage.audit.compaction import compact
from loomrl.storage.audit.history import chains
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import digest, record
from loomrl.storage.registry import Registry
from loomrl.system.files import read_json, sha256_file, write_json
from loomrl.system.security.encryption import KEYS, new_entry
from tests.support.champions import make_champion
from tests.support.policies import BALANCING, continuous_folder, discrete_folder
from tests.support.remembering import episode, recurrent_folder


def shielded(folder: Path) -> tuple[Path, np.ndarray]:
    """A policy for CartPole that is not allowed action 1 in every other state its shield knows, and these states."""
    folder = discrete_folder(folder, BALANCING)
    manifest = read_json(folder / "manifest.json")
    states = np.random.default_rng(1).normal(size=(50, 4)).astype(np.float32)
    observations = np.concatenate([states, np.array(manifest["probe_observations"], np.float32)])
    allowed = np.ones((len(observations), 2), np.bool_)
    allowed[: len(states) : 2, 1] = False
    Shield(observations, allowed, np.zeros(allowed.shape)).save(folder / "shield.safetensors")
    write_json(folder / "manifest.json", manifest | {"shield_sha256": sha256_file(folder / "shield.safetensors")})
    return folder, states


def ask_for(client: PolicyClient, observations: np.ndarray, count: int) -> None:
    """Decisions alone and together, some of them explored, some of them overridden."""
    rng = np.random.default_rng(2)
    normal = client.decide("warm", observations[0]).action
    client.set_override(action=normal, agent_id="pinned", person="Ada", reason="test")
    asked = 1
    while asked < count:
        size = min(int(rng.choice([1, 2, 7, 33, 64])), count - asked)
        agents = rng.choice(["a", "b", "pinned"], size)
        rows = observations[rng.integers(len(observations), size=size)]
        asks = [Ask(str(agent), obs, explore=bool(rng.random() < 0.4)) for agent, obs in zip(agents, rows, strict=True)]
        client.decide_many(asks)
        asked += size


def replayed(*arguments: str) -> dict[str, object]:
    result = CliRunner().invoke(audit_app, ["replay", "--json", *arguments])
    found = json.loads(result.stdout) if result.stdout else pytest.fail(repr(result.exception))
    assert isinstance(result.exception, GateRefused) == (not found["equal"])
    return found


def test_two_thousand_decisions_of_all_kinds_are_bitwise_equal(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    observations = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    for _ in range(2):  # a process and its successor, each with random numbers of its own
        with (
            ServerProcess("hopper", champion_folder=continuous_folder(tmp_path / "c"), rate=1e6) as server,
            server.client() as client,
        ):
            ask_for(client, observations, 500)
            client.clear_override()
    folder, states = shielded(tmp_path / "d")
    monkeypatch.setenv(KEYS, new_entry("k"))
    with (
        ServerProcess("cartpole", champion_folder=folder, rate=1e6, segment_bytes=40_000) as server,
        server.client() as client,
    ):
        ask_for(client, states, 900)
        client.set_override(version=str(discrete_folder(tmp_path / "other", -BALANCING)), person="Ada", reason="test")
        client.refresh("cartpole")  # a look at the roles meanwhile may have let it go again
        ask_for(client, states, 100)
    for chain in chains("cartpole"):
        assert compact(chain)
    found = replayed()
    assert (found["num_decisions"], found["num_equal"]) == (2_000, 2_000)
    assert set(found["by"]) == {"policy", "explored", "shield", "override"}
    assert min(found["by"].values()) > 100
    assert found["notes"] == []
    assert replayed("hopper")["num_decisions"] == 1_000
    assert replayed("cartpole", "--limit", "30")["num_equal"] == 30
    by_version = [replayed("--version", str(one))["num_decisions"] for one in (folder, tmp_path / "other")]
    assert sum(by_version) == 1_000 > max(by_version)
    monkeypatch.delenv(KEYS)
    ((reason, count),) = replayed("cartpole")["not_replayed"].items()
    assert count == 1_000
    assert "sealed with the key 'k'" in reason


def test_a_version_of_the_registry_is_fetched_and_verified(ready_home: Path, tmp_path: Path) -> None:
    version = Registry().register("cartpole", discrete_folder(tmp_path / "v"), "run")
    make_champion(Registry(), version.version)
    with ServerProcess("cartpole") as server, server.client() as client:
        client.decide("a", [0.1] * 4, explore=True)
    assert replayed("cartpole")["by"] == {"explored": 1}


def test_what_stood_in_for_the_policy_is_replayed_too(loomrl_home: Path, tmp_path: Path) -> None:
    beyond = [3e38] * 4  # the policy's value of it is infinite, so the fallback decides
    with (
        ServerProcess("cartpole", champion_folder=discrete_folder(tmp_path / "v"), seed=1) as server,
        server.client() as client,
    ):
        client.set_plan(fallback={"action": 0}, person="Ada", reason="test")
        together = client.decide_many([Ask("a", OBS, explore=True), Ask("b", beyond), Ask("c", OBS)])
        assert [decision.role for decision in together] == ["champion", "fallback", "champion"]
        client.set_kill_switch(on=True, person="Ada", reason="test")
        assert client.decide("a", OBS).role == "kill_switch"
    assert replayed()["by"] == {"policy": 1, "explored": 1, "fallback": 1, "kill_switch": 1}


@pytest.mark.parametrize("by", ["action", "version"])
def test_what_a_limit_prevented_is_replayed_too(loomrl_home: Path, tmp_path: Path, by: str) -> None:
    folder, other = discrete_folder(tmp_path / "v"), discrete_folder(tmp_path / "other", -BALANCING)
    limit = {"name": "never_right", "quantity": "action", "low": None, "high": 0.0}
    write_json(folder / "manifest.json", read_json(folder / "manifest.json") | {"constraints": [limit]})
    observations = np.random.default_rng(4).normal(size=(60, 4)).astype(np.float32)
    options = {"champion_folder": folder, "explore": "share=0.3", "rate": 1e6}
    with ServerProcess("cartpole", **options) as server, server.client() as client:
        for fallback in ({"action": 0}, {by: 0 if by == "action" else str(other)}):
            client.set_plan(fallback=fallback, person="Ada", reason="test")
            client.refresh("cartpole")
            for rows in (observations[:10], observations[10:]):
                client.decide_many([Ask("a", obs, explore=row % 3 == 0) for row, obs in enumerate(rows)])
    found = replayed()
    assert (found["num_decisions"], found["num_equal"]) == (120, 120)
    assert found["by"]["shield"] > 20


def test_what_a_recurrent_policy_remembered_follows_from_the_log(loomrl_home: Path, tmp_path: Path) -> None:
    observations = np.array(episode(5, length=40))
    for half in (observations[:20], observations[20:]):  # a restart cuts into the episodes
        with (
            ServerProcess("cartpole", champion_folder=recurrent_folder(tmp_path / "v"), rate=1e6) as server,
            server.client() as client,
        ):
            for obs in half:
                client.decide_many([Ask(agent, obs * scale, "e", explore=agent == "c") for agent, scale in SCALES])
    found = replayed()
    assert (found["num_decisions"], found["num_equal"]) == (120, 120)
    first, *_ = chains("cartpole")
    (first / "000001.jsonl").unlink()  # as housekeeping may
    ((reason, count),) = replayed()["not_replayed"].items()
    assert count == 60
    assert "what its episode remembered does not follow" in reason


SCALES = (("a", 1.0), ("b", -0.5), ("c", 2.0))


@pytest.fixture
def log(loomrl_home: Path) -> AuditLog:
    return AuditLog("cartpole")


OBS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)


def decided(folder: Path, **changes: object) -> dict[str, object]:
    """What a server writes of a decision about OBS, with changes."""
    told = {"decision_id": None, "policy": "cartpole", "version": str(folder), "observation": OBS, "action": 1}
    told |= {"observation_digest": digest(OBS), "value": 2.0, "propensity": 1.0, "shield": None, "override": None}
    told |= {"draw": None, "route": "decide"}
    return record("decision", **told) | {"action_hash": digest(np.int64(1))} | changes


@pytest.mark.parametrize(
    ("changes", "difference"),
    [
        ({}, None),
        ({"action": 0}, "action was 0, is 1"),
        ({"action_hash": "0" * 64}, "action_hash was 000"),
        ({"observation_digest": "0" * 64}, "observation_digest was 000"),
        ({"value": 2.0000002}, "value was 2.0000002, is 2.0"),
        ({"propensity": 0.5}, "propensity was 0.5, is 1.0"),
        ({"shield": {"chosen": 0}}, "shield was {'chosen': 0}, is None"),
        ({"observation": [1e38] * 3 + [3e38]}, "there is no answer now"),
        ({"value": None}, "value was None, is 2.0"),
        ({"value": None, "role": "fallback"}, None),
        ({"value": None, "role": "fallback", "action": 7}, "what was ordered is none of the policy's actions"),
        ({"value": None, "override": {"action": 0}}, "action was 1, is 0"),
    ],
)
def test_what_differs_is_named(
    log: AuditLog, tmp_path: Path, changes: dict[str, object], difference: str | None
) -> None:
    folder = discrete_folder(tmp_path / "v")
    log.append([decided(folder), decided(folder, **changes)])
    log.close()
    report = LogRecomputation().run("cartpole")
    assert report.num_equal == (2 if difference is None else 1)
    if difference is not None:
        (found,) = report.differences
        assert difference in found
        assert f"of version {folder}" in found


def test_what_cannot_be_replayed_is_counted_and_says_why(log: AuditLog, tmp_path: Path) -> None:
    folder = discrete_folder(tmp_path / "v")
    loaded = record("loaded", version=str(folder), onnx_sha256="0" * 64, shield_sha256=None)
    explored = decided(folder) | {"exploration_flag": True, "draw": 3}
    log.append([decided(folder), explored, loaded, decided(folder), decided(tmp_path / "gone")])
    log.close()
    report = LogRecomputation().run("cartpole")
    assert (report.num_equal, report.num_different, report.equal) == (1, 0, False)
    reasons = sorted(report.not_replayed)
    assert "its record does not say which random numbers it used" in reasons[0]
    assert "gone cannot be had" in reasons[1]
    assert "is another one now: its onnx_sha256 is" in reasons[2]


def test_a_draw_that_is_not_on_record_is_held_against_its_probability(log: AuditLog, tmp_path: Path) -> None:
    """Records of releases that named no random numbers, and no shield."""
    folder = discrete_folder(tmp_path / "v")
    model = ServedPolicy.load(folder, "v")
    likely = probability_of(model, model.answer(OBS[None]), 0, np.array(1))
    explored = decided(folder) | {"exploration_flag": True}
    old = {key: value for key, value in explored.items() if key not in ("draw", "shield")}
    log.append([old | {"propensity": likely}, old | {"propensity": likely * 1.001}])
    log.close()
    report = LogRecomputation().run("cartpole")
    assert (report.num_equal, report.by, report.num_different) == (1, {"chance": 1}, 1)
    assert f"is {likely}" in report.differences[0]


def test_a_changed_log_is_not_replayed(log: AuditLog, tmp_path: Path) -> None:
    log.append([decided(discrete_folder(tmp_path / "v"))])
    log.close()
    path = log.folder / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"action":1', b'"action":0'))
    result = CliRunner().invoke(audit_app, ["replay"])
    assert "000001.jsonl:2" in str(result.exception)
