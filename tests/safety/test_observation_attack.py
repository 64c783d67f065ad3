"""Attacks on the sensors: the worst of what is tried is done, within its limits, and what is found can be replayed."""

from pathlib import Path

import numpy as np
import pytest
from gymnasium import spaces
from typer.testing import CliRunner

from loomrl.algorithms.policies.loading import load_policy
from loomrl.cli.main import app
from loomrl.safety.checks.observation_attack import Attack
from loomrl.types import Verdict
from tests.support.trained import SAFETY, Policy, examine, without_long_searches

CLAIM = "observation_attack.pole_is_upright"
BOX = spaces.Box(-1.0, 1.0, (2,), np.float32)


class Sloped:
    """Chooses by the sum of what it sees, or acts by it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, obs: np.ndarray) -> np.ndarray:
        return self.outputs(obs)["action"]

    def outputs(self, obs: np.ndarray) -> dict[str, np.ndarray]:
        total = obs.sum(axis=1)
        if self.name == "mean":
            return {"action": np.clip(total, -1, 1)[:, None], "mean": total[:, None]}
        logits = np.stack([-total, total], axis=1)
        return {"action": logits.argmax(axis=1), "logits": logits}


@pytest.mark.parametrize("name", ["logits", "mean"])
def test_it_moves_each_observation_against_the_choice_and_no_farther_than_it_may(name: str) -> None:
    obs = np.random.default_rng(0).uniform(-0.7, 0.7, (50, 2)).astype(np.float32)
    scale = np.array([0.5, 1.0])
    moved = Attack(BOX, scale, key=7, num_candidates=32).moved(Sloped(name), obs, magnitude=0.2)
    np.testing.assert_allclose(np.abs(moved - obs), np.broadcast_to(0.2 * scale, obs.shape), atol=1e-6)
    if name == "logits":  # towards the other choice in both components
        np.testing.assert_array_equal(np.sign(moved - obs), -np.sign(obs.sum(axis=1))[:, None].repeat(2, axis=1))
    else:  # as far from the action as it goes
        np.testing.assert_array_equal(*np.sign(moved - obs).T)


def test_the_same_observation_is_moved_alike_whatever_batch_it_is_in() -> None:
    obs = np.random.default_rng(1).uniform(-0.7, 0.7, (9, 2)).astype(np.float32)
    attack = Attack(BOX, np.ones(2), key=7, num_candidates=4)
    together = attack.moved(Sloped("logits"), obs, 0.1)
    alone = [attack.moved(Sloped("logits"), one[None], 0.1)[0] for one in obs]
    np.testing.assert_array_equal(together, alone)


def test_what_it_sees_stays_within_the_space() -> None:
    obs = np.full((4, 2), 0.95, np.float32)
    assert BOX.contains(Attack(BOX, np.ones(2), 7, 8).moved(Sloped("logits"), obs, 0.5)[0])


@pytest.mark.parametrize(("magnitude", "verdict"), [(0.01, Verdict.SUPPORTED), (8.0, Verdict.REFUTED)])
def test_a_good_policy_bears_little_and_not_everything(
    good: Policy, tmp_path: Path, magnitude: float, verdict: Verdict
) -> None:
    checks = without_long_searches(observation_attack={"magnitude": magnitude, "num_episodes": 8})
    config = SAFETY.model_copy(update={"num_episodes": 8, "checks": checks})
    case = examine(good, tmp_path, config)
    (claim,) = [one for one in case.claims if one.id == CLAIM]
    assert claim.verdict is verdict
    assert claim.num_samples == 8
    if verdict is Verdict.REFUTED:
        assert claim.bound is not None
        assert 0.0 < claim.bound.measured <= magnitude
        options = ["--environment", str(good.environment), "--policy", str(good.training)]
        replayed = CliRunner().invoke(app, ["safety", "replay", str(tmp_path), CLAIM, *options])
        assert replayed.exit_code == 0, replayed.output
        assert "identical to the recorded one" in replayed.output
    assert load_policy(good.training).action_kind == "discrete"


@pytest.mark.long
def test_nothing_is_claimed_without_a_magnitude(good: Policy, tmp_path: Path) -> None:
    assert not [one for one in examine(good, tmp_path).claims if one.id.startswith("observation_attack")]
