"""Small parts: imports, exposure, exploration, commands."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from loomrl.cli.audit import audit_app
from loomrl.cli.orders import override_app
from loomrl.errors import ConfigError, GateRefused
from loomrl.serving import context as context_module
from loomrl.serving.context import ServerContext
from loomrl.serving.policy.exploration import explore
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.settings import ServerSettings
from loomrl.storage.audit.heads import anchor
from loomrl.storage.audit.log import AuditLog
from loomrl.storage.audit.records import record
from loomrl.storage.audit.segments import segments
from loomrl.storage.loomdb.database import LoomDB
from loomrl.storage.registry import CHAMPION
from loomrl.system.http.listening import check_exposure
from loomrl.system.http.tokens import Holder, Tokens
from tests.support.policies import OBSERVATIONS, continuous_folder, discrete_folder

BLOCKED = """
import importlib, pkgutil, sys
for name in ("torch", "prefect", "dvc", "onnx", "pandas", "scipy", "pyarrow"):
    sys.modules[name] = None
import loomrl.serving
for module in pkgutil.iter_modules(loomrl.serving.__path__):
    if module.name != "__main__":
        importlib.import_module(f"loomrl.serving.{module.name}")
assert "mlflow" not in sys.modules and "great_expectations" not in sys.modules
"""


def test_serving_needs_neither_torch_nor_an_orchestrator() -> None:
    subprocess.run([sys.executable, "-c", BLOCKED], check=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_loopback_needs_no_token(host: str) -> None:
    check_exposure(host, Tokens())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "example.org"])
def test_other_addresses_need_a_token(host: str) -> None:
    check_exposure(host, Tokens([Holder("Ada", frozenset({"operate"}), b"digest")]))
    with pytest.raises(ConfigError, match="LOOMRL_OPERATOR_TOKEN"):
        check_exposure(host, Tokens())


def test_actions_do_not_depend_on_the_batch(tmp_path: Path) -> None:
    observations = np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)
    for folder in (discrete_folder(tmp_path / "d"), continuous_folder(tmp_path / "c")):
        policy = ServedPolicy.load(folder)
        whole = policy.answer(observations)
        for size in (1, 2, 3, 7, 16, 33, 64, 257):
            part = policy.answer(observations[:size])
            assert part.action.tobytes() == whole.action[:size].tobytes()
            assert part.value.tobytes() == whole.value[:size].tobytes()


def test_categorical_exploration_follows_the_softmax(tmp_path: Path) -> None:
    policy = ServedPolicy.load(discrete_folder(tmp_path))
    answer = policy.answer(np.array([[0.5, 0.2, 0.1, 0.1]], dtype=np.float32))
    logits = answer.outputs["logits"][0].astype(np.float64)
    expected = np.exp(logits) / np.exp(logits).sum()
    rng = np.random.default_rng(3)
    drawn = [explore(policy, answer, 0, rng) for _ in range(4_000)]
    assert np.mean([int(one.action) for one in drawn]) == pytest.approx(expected[1], abs=0.03)
    assert {round(one.propensity, 12) for one in drawn} == {round(p, 12) for p in expected}


def test_gaussian_exploration_is_clipped_and_has_its_density(tmp_path: Path) -> None:
    policy = ServedPolicy.load(continuous_folder(tmp_path, gain=0.0))
    answer = policy.answer(OBSERVATIONS[:1])
    rng = np.random.default_rng(3)
    drawn = [explore(policy, answer, 0, rng) for _ in range(4_000)]
    actions = np.array([one.action for one in drawn])
    assert np.abs(actions).max() <= 1.0
    assert actions.std() == pytest.approx(np.exp(-1), rel=0.05)
    assert [one.clipped for one in drawn] == [bool(np.abs(one.action).max() == 1) for one in drawn]
    action, density = next((one.action, one.propensity) for one in drawn if not one.clipped)
    exact = np.prod(np.exp(-0.5 * (action / np.exp(-1)) ** 2) / (np.exp(-1) * np.sqrt(2 * np.pi)))
    assert density == pytest.approx(exact, rel=1e-4)


# --- commands ---------------------------------------------------------------------------------------------------


@pytest.fixture
def logged(loomrl_home: Path) -> AuditLog:
    """Two decisions, one with feedback; the head anchored."""
    log = AuditLog("cartpole")
    first = record("decision", decision_id=None, action=[0.5], override=None)
    log.append([first, record("decision", decision_id=None, action=[0.25], override=None)])
    ended = {"terminated": False, "truncated": True}
    log.append([record("feedback", decision_id=first["decision_id"], **ended) | {"reward": 2.0}])
    with LoomDB.open() as db:
        anchor(db, log.head)
    log.close()
    return log


def run(app, *arguments: str):
    return CliRunner().invoke(app, list(arguments), catch_exceptions=True)


def test_audit_verify_tells_whole_from_broken(logged: AuditLog) -> None:
    whole = run(audit_app, "verify", "--json")
    assert (whole.exit_code, json.loads(whole.stdout)["intact"]) == (0, True)
    path = segments(logged.folder)[0]
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    broken = run(audit_app, "verify", "--json")
    assert isinstance(broken.exception, GateRefused)
    (chain,) = json.loads(broken.stdout)["chains"]
    assert "truncated" in chain["findings"][0]


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv"])
def test_audit_export_joins_rewards(logged: AuditLog, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"decisions.{suffix}"
    assert run(audit_app, "export", str(path)).exit_code == 0
    text = path.read_text()
    if suffix == "csv":
        assert text.splitlines()[0].startswith("kind,timestamp,agent_id,action_hash,reward")
        assert "[0.5]" in text
        return
    decisions = json.loads(text) if suffix == "json" else [json.loads(line) for line in text.splitlines()]
    assert [entry["reward"] for entry in decisions] == [2.0, None]
    assert decisions[0]["truncated"] is True


def test_audit_export_to_another_suffix_is_refused(logged: AuditLog, tmp_path: Path) -> None:
    assert isinstance(run(audit_app, "export", str(tmp_path / "a.xlsx")).exception, ConfigError)


def test_audit_show_one_decision_and_the_latest(logged: AuditLog) -> None:
    latest = json.loads(run(audit_app, "show", "--json").stdout)["records"]
    assert [entry["kind"] for entry in latest] == ["open", "decision", "decision", "feedback"]
    one = json.loads(run(audit_app, "show", latest[1]["decision_id"], "--json").stdout)["records"]
    assert [entry["kind"] for entry in one] == ["decision", "feedback"]
    assert isinstance(run(audit_app, "show", "no-such-id").exception, ConfigError)


def test_override_commands(loomrl_home: Path) -> None:
    given = ("--policy", "cartpole", "--person", "Ada", "--reason", "test")
    made = json.loads(run(override_app, "set", *given, "--action", "1", "--expires-in", "60", "--json").stdout)
    assert made["expires"] > time.time() + 50
    (listed,) = json.loads(run(override_app, "list", "--policy", "cartpole", "--json").stdout)["overrides"]
    assert listed == made
    assert made["id"] in run(override_app, "clear", "--policy", "cartpole", made["id"]).stdout
    assert "no override" in run(override_app, "list", "--policy", "cartpole").stdout
    assert isinstance(run(override_app, "set", *given).exception, ConfigError)
    assert isinstance(run(override_app, "set", *given, "--action", "left").exception, ConfigError)
    assert isinstance(run(override_app, "clear", "--policy", "cartpole", "nope").exception, ConfigError)


def test_what_is_silent_at_the_end_is_waited_for_once(
    loomrl_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several threads that ask one silent database none ends in time, nor do the monitors."""
    passed = [0.0]

    class Silent:
        def join(self, seconds: float = 10.0) -> None:
            passed[0] += seconds

        stop = join

    settings = ServerSettings("cartpole", folders={CHAMPION: discrete_folder(tmp_path / "policy")})
    context = ServerContext(settings)
    monkeypatch.setattr(context_module, "time", SimpleNamespace(monotonic=lambda: passed[0], time=time.time))
    monkeypatch.setattr(context, "_threads", [Silent(), Silent(), Silent()])
    monkeypatch.setattr(context, "guardian", Silent())
    context.stop()
    assert passed == [10.0]
    AuditLog("cartpole").close()  # the chain was given back
