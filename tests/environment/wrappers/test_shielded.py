"""Environments behind a shield: nothing unsafe happens in training, and the same shield is served with the policy."""

import dataclasses
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.cli.main import app
from loomrl.environment.config import EnvironmentConfig, RangeConfig, ShieldConfig
from loomrl.environment.finite.of_environment import model_of, shield_around
from loomrl.environment.finite.prism.syntax import read_property
from loomrl.environment.finite.shield import NoState, Shield
from loomrl.environment.make import choose_backend, make_env, make_envs
from loomrl.environment.snapshots.snapshot import load_snapshot, take_snapshot
from loomrl.errors import ArtifactError, ConfigError, LoomRLError
from loomrl.promotion.envelope import RunFacts, verify
from loomrl.promotion.package import build_package
from loomrl.runs.config import PolicyConfig
from loomrl.runs.verify_snapshot import verify_snapshot
from loomrl.safety.model_checking.pctl import check
from loomrl.serving.policy.exploration import explore
from loomrl.serving.policy.model import ServedPolicy
from loomrl.serving.process import ServerProcess
from loomrl.system.files import read_json, write_json, write_sums
from tests.support.served import served
from tests.support.trained import EVALUATION, Policy, through_the_stages, without_long_searches

LAKE = EnvironmentConfig(id="FrozenLake-v1", shield=ShieldConfig(unsafe='"terminated" & s!=15'))
FALLS = read_property('P=? [ F "terminated" & s!=15 ]')


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake") / "environment"
    take_snapshot(LAKE, Path(), folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Policy:
    """A policy that went through all stages behind its shield."""
    document = {
        "name": "lake",
        "environment": LAKE.model_dump(mode="json"),
        "training": {"seed": 1, "total_env_steps": 2_048, "parameters": {"num_envs": 8, "rollout_length": 64}},
        "evaluation": EVALUATION.model_dump(mode="json"),
        "safety": {
            "num_episodes": 60,
            "checks": without_long_searches(
                minimum_return={"threshold": 0.0},
                model_checking={"properties": [{"name": "never_falls", "property": 'P<=0 [ F "terminated" & s!=15 ]'}]},
            ),
        },
        "export": {},
    }
    config = PolicyConfig.model_validate(document)
    return through_the_stages(tmp_path_factory.mktemp("trained"), LAKE, config)


def random_steps(folder: Path, num_steps: int) -> Iterator[tuple[Any, ...]]:
    with closing(make_envs(folder, 8)) as envs:
        envs.reset(seed=3)
        rng = np.random.default_rng(3)
        for _ in range(num_steps):
            yield envs.step(rng.integers(4, size=8))


def test_random_actions_never_fall_and_every_replaced_action_is_told(lake: Path) -> None:
    episodes, replaced, steps = 0, 0.0, 2_000
    for _, rewards, terminated, truncated, info in random_steps(lake, steps):
        assert (rewards[terminated] == 1.0).all()  # the goal, never a hole
        episodes += int((terminated | truncated).sum())
        replaced += float(info["shielded"].sum())
    assert episodes > 10
    assert 0.3 < replaced / (8 * steps) < 0.9


def test_without_it_they_fall(tmp_path: Path) -> None:
    take_snapshot(EnvironmentConfig(id="FrozenLake-v1"), Path(), tmp_path)
    assert any((rewards[terminated] == 0.0).any() for _, rewards, terminated, _, _ in random_steps(tmp_path, 200))


def test_it_is_part_of_the_snapshot(lake: Path, tmp_path: Path) -> None:
    spec = load_snapshot(lake).spec
    assert spec.shield == {"unsafe": '"terminated" & s!=15', "tolerance": 0.0}
    take_snapshot(EnvironmentConfig(id="FrozenLake-v1"), Path(), tmp_path)
    assert load_snapshot(tmp_path).spec.shield is None
    assert "shield" not in (tmp_path / "snapshot.json").read_text()
    assert load_snapshot(tmp_path).digest != load_snapshot(lake).digest
    assert verify_snapshot(lake, Path()).unchanged
    bare = verify_snapshot(lake, Path(), EnvironmentConfig(id="FrozenLake-v1"))
    assert [one.partition(" ")[0] for one in bare.parameters] == ["shield"]
    assert choose_backend(lake) == "serial"


def test_the_model_of_a_shielded_environment_is_that_of_what_happens(lake: Path) -> None:
    with closing(make_env(lake)) as env:
        behind = model_of(env)
        bare = model_of(env.unwrapped)
    for actions in np.random.default_rng(5).integers(4, size=(20, len(bare.observations))):
        assert check(behind.chain(actions), FALLS).high == 0.0
        assert (check(bare.chain(actions), FALLS).low or 0.0) > 0.0


@pytest.mark.long
def test_what_was_learnt_behind_it_is_proved_and_served_behind_it(trained: Policy) -> None:
    shield = Shield.load(trained.root / "export" / "shield.safetensors")
    policy = ServedPolicy.load(trained.root / "export")
    answer = policy.answer(shield.observations.astype(policy.dtype))
    assert shield.allowed[np.arange(len(answer.action)), answer.action].all()
    assert answer.chosen is not None
    np.testing.assert_array_equal(answer.action, shield.correct(shield.observations, answer.chosen))
    with pytest.raises(NoState, match="observation 16 is no state"):
        policy.answer(np.array([16], policy.dtype))


def test_a_version_without_its_shield_is_refused(trained: Policy, tmp_path: Path) -> None:
    write_sums(trained.root / "export")
    facts = RunFacts(policy="lake", run_id="r", created="2026-01-01T00:00:00+00:00")
    package = build_package(trained.root, tmp_path / "package", facts)
    verify(package)
    path = package / "shield.safetensors"
    path.write_bytes(path.read_bytes().replace(b"\x00", b"\x01", 1))
    for use in (verify, ServedPolicy.load):
        with pytest.raises(ArtifactError, match=r"shield.safetensors is not the shield (the|its) manifest names"):
            use(package)
    path.unlink()
    for use in (verify, ServedPolicy.load):
        with pytest.raises(ArtifactError, match="is not the shield"):
            use(package)


def test_exploration_stays_behind_it_and_knows_its_propensities(lake: Path) -> None:
    with closing(make_env(lake)) as env:
        network = ActorCriticPolicy.for_spaces("ppo", env.observation_space, env.action_space, (8,), "tanh", False)
        shield = shield_around(env)
    assert shield is not None
    policy, rng = served(network), np.random.default_rng(7)
    policy.shield = shield
    obs = shield.observations[:1].astype(policy.dtype)
    answer = policy.answer(obs)
    drawn = [explore(policy, answer, 0, rng) for _ in range(2_000)]
    logits = answer.outputs["logits"][0].astype(np.float64)
    chosen = np.exp(logits) / np.exp(logits).sum()
    assert answer.instead is not None
    for action in range(4):
        expected = float(chosen[answer.instead[0] == action].sum())
        found = [one.propensity for one in drawn if one.action == action]
        assert len(found) / len(drawn) == pytest.approx(expected, abs=0.05)
        assert found == pytest.approx([expected] * len(found))
    assert {int(one.action) for one in drawn} == set(np.flatnonzero(shield.allowed[0]))


def test_asking_for_one_that_cannot_be() -> None:
    unsafe = ShieldConfig(unsafe="s=5")
    with pytest.raises(ValidationError, match="shield is of one model that knows no past"):
        EnvironmentConfig(id="FrozenLake-v1", shield=unsafe, frame_stack=2)
    with pytest.raises(ValidationError, match="shield is of one model that knows no past"):
        EnvironmentConfig(id="FrozenLake-v1", shield=unsafe, randomize={"a": RangeConfig(low=0.0, high=1.0)})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": "CartPole-v1"}, "environment.shield of 'CartPole-v1': CartPoleEnv has no finite model"),
        ({"shield": ShieldConfig(unsafe="s+1")}, r"environment.shield.unsafe 's\+1' is a number"),
        ({"shield": ShieldConfig(unsafe="q=5")}, "environment.shield.unsafe 'q=5': .*q"),
        ({"shield": ShieldConfig(unsafe="s=99")}, "'s=99' holds in no state of 'FrozenLake-v1': nothing is kept away"),
        ({"shield": ShieldConfig(unsafe="s<2")}, "'s<2' holds where episodes of 'FrozenLake-v1' begin"),
    ],
)
def test_a_shield_nothing_is_known_for_is_named(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        take_snapshot(LAKE.model_copy(update=changed), Path(), tmp_path)


def test_a_back_end_that_knows_no_shield_is_refused(lake: Path) -> None:
    with pytest.raises(ConfigError, match=r"backend 'batched' knows no shield.*use \"auto\""):
        make_envs(lake, 2, backend="batched")


def test_a_zero_has_no_sign() -> None:
    shield = Shield(np.array([[0.0], [1.0]]), np.ones((2, 2), np.bool_), np.zeros((2, 2)))
    assert shield.state_of(np.array([-0.0], np.float32)) == 0
    assert dataclasses.replace(shield).to_bytes() == shield.to_bytes()


def test_a_shield_by_itself_is_of_the_bare_environment(lake: Path, tmp_path: Path) -> None:
    output = tmp_path / "shield.safetensors"
    condition = '"terminated" & s!=15'
    done = CliRunner().invoke(app, ["model", "shield", str(lake), "--unsafe", condition, "--output", str(output)])
    assert done.exit_code == 0, done.output
    with closing(make_env(lake)) as env:
        around = shield_around(env)
    assert around is not None
    assert output.read_bytes() == around.to_bytes()
    assert not around.allowed.all()


def test_a_manifest_must_name_the_shield_its_policy_was_trained_behind(trained: Policy, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    shutil.copytree(trained.root / "export", folder)
    manifest = read_json(folder / "manifest.json")
    del manifest["shield_sha256"]
    write_json(folder / "manifest.json", manifest)
    with pytest.raises(ArtifactError, match="names no shield, and its policy was trained behind one"):
        ServedPolicy.load(folder)


def test_a_server_decides_where_observations_are_single_numbers(trained: Policy, loomrl_home: Path) -> None:
    with ServerProcess("lake", champion_folder=trained.root / "export") as server, server.client() as client:
        shield = Shield.load(trained.root / "export" / "shield.safetensors")
        for state in (0, 4, 8):
            explored = [client.decide("anna", state, explore=True).action for _ in range(10)]
            assert shield.allowed[state][[client.decide("anna", state).action, *explored]].all()
        with pytest.raises(LoomRLError, match=r"has shape \[1\]; lake observes \[\]"):
            client.decide("anna", [0])
