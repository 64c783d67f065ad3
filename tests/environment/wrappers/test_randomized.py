"""Parameters drawn anew for each episode: seeded, told, recorded in the snapshot, and held out for the gate."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from loomrl.environment.config import EnvironmentConfig, RangeConfig
from loomrl.environment.construct import construct
from loomrl.environment.make import make_envs, restored_definition, settle_backend
from loomrl.environment.resolve import resolve
from loomrl.environment.snapshots.snapshot import load_snapshot, take_snapshot
from loomrl.environment.vector.choose import make_vector
from loomrl.environment.vector.recipe import Recipe
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.runs.verify_snapshot import verify_snapshot
from loomrl.safety.config import SafetyConfig
from loomrl.training.config import TrainingConfig
from loomrl.types import Verdict
from tests.support.trained import EVALUATION, evaluate, examine, train, without_long_searches

SLOPE = '''
"""Go up a slope that is steeper some days; beyond `cliff` it is more than anybody can climb."""

import numpy as np
from gymnasium import spaces

from loomrl.envs import BaseEnvironment


class Slope(BaseEnvironment):
    action_space = spaces.Discrete(2)

    def __init__(self, config):
        super().__init__(config)
        size = 2 if self.config.get("load", 0) > 5 else 1
        self.observation_space = spaces.Box(-10.0, 10.0, (size,), np.float32)

    def reset(self):
        self.height = self.np_random.uniform(0.0, 0.1)
        return [self.height] * self.observation_space.shape[0]

    def step(self, action):
        gain = 1.0 - self.config["steepness"]
        if self.config["steepness"] > self.config.get("cliff", 9.0):
            gain = -1.0
        self.height += (gain if action == 1 else -0.1) * 0.1
        shown = np.full(self.observation_space.shape, np.clip(self.height, -10, 10), np.float32)
        return shown, self.height, False, {"load": self.config.get("load", 0)}
'''


@pytest.fixture
def slope(tmp_path: Path) -> Path:
    (tmp_path / "slope.py").write_text(SLOPE)
    return tmp_path


def described(path: Path, randomize: dict[str, Any], **kwargs: Any) -> EnvironmentConfig:
    return EnvironmentConfig.model_validate(
        {
            "id": "slope", "entry_point": "slope:Slope", "path": path, "kwargs": kwargs, "randomize": randomize,
            "max_episode_steps": 10,
        }
    )  # fmt: skip


STEEPNESS = {
    "steepness": {"low": 0.0, "high": 0.5, "held_out": [0.5, 0.7]},
    "load": {"low": 0, "high": 3, "whole": True},
}


def test_the_same_seed_meets_the_same_world_and_others_another(slope: Path) -> None:
    env = construct(resolve(described(slope, STEEPNESS), slope))
    met = []
    for seed in (1, 2, 1):
        env.reset(seed=seed)
        _, _, _, _, info = env.step(1)
        assert info["load"] == info["parameter.load"]
        met.append((info["parameter.steepness"], info["parameter.load"]))
    assert met[0] == met[2] != met[1]
    env.reset(seed=1)
    later = [env.reset()[1]["parameter.steepness"] for _ in range(200)]
    assert 0.0 <= min(later) < 0.02
    assert 0.48 < max(later) <= 0.5
    assert {env.reset()[1]["parameter.load"] for _ in range(60)} == {0.0, 1.0, 2.0, 3.0}


def test_a_snapshot_records_the_ranges_and_verifies(slope: Path) -> None:
    config = described(slope, STEEPNESS)
    take_snapshot(config, slope, slope / "snapshot")
    assert load_snapshot(slope / "snapshot").spec.randomize["steepness"]["held_out"] == [0.5, 0.7]
    assert restored_definition(slope / "snapshot").randomize == config.randomize
    assert verify_snapshot(slope / "snapshot", slope, config).changed == []
    wider = described(slope, {**STEEPNESS, "load": {"low": 0, "high": 4, "whole": True}})
    assert "parameters" in verify_snapshot(slope / "snapshot", slope, wider).changed


def test_every_environment_of_a_batch_draws_its_own(slope: Path) -> None:
    take_snapshot(described(slope, STEEPNESS), slope, slope / "snapshot")
    assert settle_backend(slope / "snapshot", "auto") == "serial"
    envs = make_envs(slope / "snapshot", 8, "disabled")
    _, info = envs.reset(seed=list(range(8)))
    assert len(set(info["parameter.steepness"])) == 8
    envs.close()


def test_back_ends_that_cannot_draw_are_refused(slope: Path) -> None:
    recipe = Recipe(resolve(described(slope, STEEPNESS), slope))
    with pytest.raises(ConfigError, match=r"'batched' cannot draw parameters, which environment.randomize asks for"):
        make_vector(recipe, 2, "same_step", "batched")


def test_a_parameter_that_changes_the_spaces_is_named(slope: Path) -> None:
    env = construct(resolve(described(slope, {"load": {"low": 0, "high": 9, "whole": True}}, steepness=0.1), slope))
    with pytest.raises(EnvironmentFault, match=r"with \{'load': [6-9]\} it has other spaces"):
        [env.reset(seed=seed) for seed in range(50)]


def test_a_parameter_the_constructor_does_not_take_is_named() -> None:
    config = EnvironmentConfig(id="CartPole-v1", randomize={"gravity": RangeConfig(low=9.0, high=10.0)})
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'gravity'; it takes: .*render_mode"):
        construct(resolve(config, Path()))


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"low": 2.0, "high": 1.0}, "low 2 is above high 1"),
        ({"low": 0.5, "high": 1.0, "whole": True}, "needs whole limits, found 0.5 and 1"),
        ({"low": 0.0, "high": 1.0, "held_out": [0.5, 2.0]}, r"held_out \[0.5, 2.0\] overlaps \[0, 1\]"),
        ({"low": 0.0, "high": 1.0, "held_out": [3.0, 2.0]}, "low 3 is above high 2"),
    ],
)
def test_ranges_that_make_no_sense_are_refused(given: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        RangeConfig.model_validate(given)


def test_a_parameter_has_one_home(slope: Path) -> None:
    with pytest.raises(ValidationError, match="steepness stands in both kwargs and randomize"):
        described(slope, STEEPNESS, steepness=0.1)


@pytest.mark.parametrize(("cliff", "verdict"), [(9.0, Verdict.SUPPORTED), (0.5, Verdict.REFUTED)])
def test_the_gate_examines_what_was_held_out(slope: Path, cliff: float, verdict: Verdict) -> None:
    training = TrainingConfig(total_env_steps=2_048, parameters={"num_envs": 4, "rollout_length": 64, "batch_size": 64})
    ranges = {"steepness": {"low": 0.4, "high": 0.5, "held_out": [0.5, 0.55]}}
    policy = evaluate(train(slope / "policy", described(slope, ranges, cliff=cliff), training), EVALUATION)
    checks = without_long_searches(minimum_return={"threshold": 0.5}, held_out_ranges={"max_return_drop": 0.2})
    case = examine(policy, slope / "safety", SafetyConfig(num_episodes=64, checks=checks))
    claim = next(claim for claim in case.claims if claim.id == "held_out_ranges")
    assert claim.verdict is verdict, claim.finding
    assert "steepness in [0.5, 0.55], which training never met" in claim.statement
    assert np.isfinite(claim.bound.measured)  # type: ignore[union-attr]
