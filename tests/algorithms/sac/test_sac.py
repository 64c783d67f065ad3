"""SAC as a whole: what it samples, when it learns, time limits, determinism, state, and that it learns."""

import math
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pydantic import ValidationError

from loomrl.algorithms.sac import learner as sac
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.errors import ConfigError
from loomrl.runs.config import load_config
from loomrl.system.processors import num_processors
from loomrl.training.loop import TrainingLoop
from loomrl.training.train import train_policy
from tests.support.trajectories import made_up

PROJECT = Path(__file__).parents[3]
OBSERVATION = Box(-np.inf, np.inf, (3,), np.float32)
CONTINUOUS = Box(-0.5, 2.0, (2,), np.float32)
DISCRETE = Discrete(4, start=1)
SMALL: dict[str, Any] = {
    "num_envs": 4,
    "rollout_length": 8,
    "batch_size": 16,
    "learning_starts": 0,
    "hidden_sizes": (16,),
    "replay_capacity": 1000,
}


def make(action: gymnasium.Space = CONTINUOUS, **values: Any) -> sac.SAC:
    return sac.build(sac.SACConfig(**{**SMALL, **values}), OBSERVATION, action, seed=1, total_env_steps=1000)


rollout = partial(made_up, num_steps=8)


def state_bytes(algorithm: sac.SAC) -> dict[str, bytes]:
    return {name: np.asarray(value).tobytes() for name, value in algorithm.state_dict().items()}


# --- acting -----------------------------------------------------------------------------------------------------


def test_actions_are_uniform_until_learning_starts() -> None:
    algorithm = make(learning_starts=4000)
    acts = [algorithm.act(np.zeros((4, 3), np.float32), np.random.default_rng(seed)) for seed in range(1000)]
    action = np.concatenate([act.action for act in acts])
    assert action.min() >= -0.5
    assert action.max() <= 2.0
    for column in action.T:
        assert np.histogram(column, 5, (-0.5, 2.0))[0] == pytest.approx(np.full(5, 800), abs=130)  # 5 sigma
    mean = algorithm.policy.forward(torch.zeros(1, 3))["mean"][0]
    later = algorithm.act(np.zeros((20_000, 3), np.float32), np.random.default_rng(0)).extras["squashed"]
    assert np.arctanh(np.clip(later, -0.9999, 0.9999)).mean(0) == pytest.approx(mean.detach().numpy(), abs=0.05)


def test_samples_follow_the_policy() -> None:
    algorithm = make()
    obs = np.zeros((40_000, 3), np.float32)
    act = algorithm.act(obs, np.random.default_rng(0))
    output = {name: value[0].detach().numpy() for name, value in algorithm.policy(torch.from_numpy(obs[:1])).items()}
    before = np.arctanh(act.extras["squashed"].astype(np.float64).clip(-1 + 1e-7, 1 - 1e-7))
    assert np.median(before, 0) == pytest.approx(output["mean"], abs=0.03)
    low, high = np.quantile(before, [0.159, 0.841], axis=0)
    assert (high - low) / 2 == pytest.approx(np.exp(output["log_std"]), rel=0.03)
    assert act.action == pytest.approx(-0.5 + 2.5 * (act.extras["squashed"] + 1) / 2, abs=1e-6)


def test_discrete_samples_follow_the_logits() -> None:
    algorithm = make(DISCRETE)
    with torch.no_grad():
        algorithm.policy.actor.layers[-1].bias.copy_(torch.tensor([0.0, 1.0, 2.0, -1.0]))
    obs = np.zeros((40_000, 3), np.float32)
    action = algorithm.act(obs, np.random.default_rng(0)).action
    expected = algorithm.policy(torch.from_numpy(obs[:1]))["logits"].softmax(-1)[0].detach().numpy()
    assert np.bincount(action - 1, minlength=4) / 40_000 == pytest.approx(expected, abs=4 * 0.5 / math.sqrt(40_000))


# --- learning ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("gradient_steps", "expected"), [(None, 32), (5, 5), (100, 100)])
def test_learning_starts_and_gradient_steps(gradient_steps: int | None, expected: int) -> None:
    algorithm = make(learning_starts=40, gradient_steps=gradient_steps)
    before = algorithm.policy.arrays()
    first = algorithm.update(rollout(algorithm), np.random.default_rng(0))
    assert first == {"replay_size": 32.0, "num_gradient_steps": 0.0}
    assert all((value == before[name]).all() for name, value in algorithm.policy.arrays().items())
    second = algorithm.update(rollout(algorithm), np.random.default_rng(0))
    assert (second["replay_size"], second["num_gradient_steps"]) == (64.0, expected)
    assert all(math.isfinite(value) for value in second.values())


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_a_time_limit_bootstraps_and_a_terminal_state_does_not(engine: str) -> None:
    """Constant reward 1 and gamma 0.5: worth 2 for ever; exactly 1 where the next state is terminal."""
    learnt = {}
    for kind in ("truncated", "terminated"):
        algorithm = make(engine=engine, gamma=0.5, tau=0.1, temperature=1e-8, critic_learning_rate=0.01)
        ends = np.ones((8, 4), bool)
        plain = replace(rollout(algorithm), reward=np.ones((8, 4)), terminated=~ends, truncated=~ends)
        for seed in range(12):
            algorithm.update(replace(plain, **{kind: ends}), np.random.default_rng(seed))
        learnt[kind] = algorithm.update(replace(plain, **{kind: ends}), np.random.default_rng(99))["q_value"]
    assert learnt["truncated"] == pytest.approx(2.0, abs=0.1)
    assert learnt["terminated"] == pytest.approx(1.0, abs=0.05)


def test_replayed_actions_are_those_before_scaling() -> None:
    """The critics judge what the actor imagines, which lies in [-1, 1], and what was done on the same scale."""
    algorithm = make(learning_starts=100)
    trajectory = rollout(algorithm)
    algorithm.update(trajectory, np.random.default_rng(0))
    drawn = algorithm._replay.sample(64, np.random.default_rng(0))
    squashed = trajectory.extras["squashed"].reshape(-1, 2)
    assert (drawn.action == squashed[drawn.index]).all()
    assert not np.allclose(squashed, trajectory.action.reshape(-1, 2))


def test_temperature_steers_entropy_to_its_target() -> None:
    for target, direction in ((5.0, 1), (-5.0, -1)):
        algorithm = make(target_entropy=target, temperature_learning_rate=0.01)
        metrics = [algorithm.update(rollout(algorithm, seed), np.random.default_rng(seed)) for seed in range(3)]
        assert direction * (metrics[-1]["temperature"] - 1.0) > 0.1
    fixed = make(temperature=0.25)
    assert fixed.update(rollout(fixed), np.random.default_rng(0))["temperature"] == pytest.approx(0.25)


@pytest.mark.parametrize("engine", ["compiled", "torch"])
def test_the_td_error_is_told(engine: str) -> None:
    """A mean distance: at most the root of the mean square, which is the loss of both critics together."""
    algorithm = make(engine=engine)
    metrics = algorithm.update(rollout(algorithm), np.random.default_rng(0))
    assert "td_error" in metrics
    assert 0.0 < metrics["td_error"] <= math.sqrt(metrics["critic_loss"])


def test_the_normaliser_sees_what_was_collected() -> None:
    algorithm = make(normalize_observations=True)
    trajectory = rollout(algorithm)
    algorithm.update(trajectory, np.random.default_rng(0))
    assert algorithm.policy.normalizer is not None
    expected = trajectory.obs.reshape(-1, 3).astype(np.float64).mean(0)
    assert algorithm.policy.normalizer.mean.numpy() == pytest.approx(expected)


def test_default_target_entropies() -> None:
    assert sac.default_target_entropy(make().policy) == -2.0
    assert sac.default_target_entropy(make(DISCRETE).policy) == pytest.approx(0.5 * math.log(4))


# --- engines and configs ----------------------------------------------------------------------------------------


def test_the_engine_is_chosen_by_the_policy_alone() -> None:
    assert make().engine == "compiled"
    assert make(engine="torch").engine == "torch"
    assert make(activation="silu").engine == "torch"
    assert make(DISCRETE).engine == "torch"
    with pytest.raises(ConfigError, match="engine: compiled cannot learn with activation silu"):
        make(activation="silu", engine="compiled")


def test_a_second_thread_is_refused_by_torch_and_the_compiled_engine_takes_it_unasked() -> None:
    assert make(num_threads=2).engine == "compiled"
    assert make(DISCRETE, num_threads=1).engine == "torch"
    for values in ({"engine": "torch"}, {"activation": "silu"}):
        with pytest.raises(
            ConfigError, match=r"training\.parameters\.num_threads: found 2, but only the compiled engine"
        ):
            make(**values, num_threads=2)
    alone = make()
    assert alone.config.num_threads is None
    assert alone.learner._num_threads == min(2, num_processors())


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden_sizes": ()}, "positive layer widths"),
        ({"batch_size": 2000}, "above replay_capacity"),
        ({"num_envs": 3}, "no multiple of num_envs 3; use 999"),
        ({"temperature": 0.1, "target_entropy": -1.0}, "give one of them"),
        ({"batch_size": 1}, "greater than or equal to 2"),
    ],
)
def test_wrong_configs_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        sac.SACConfig(**{**SMALL, **values})


# --- determinism and state --------------------------------------------------------------------------------------

VARIANTS: dict[str, dict[str, Any]] = {
    "compiled": {"normalize_observations": True},
    "torch": {"engine": "torch"},
    "discrete": {"action": DISCRETE, "n_step": 3},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_continues_to_the_bit(variant: str) -> None:
    undisturbed, resumed = make(**VARIANTS[variant]), make(**VARIANTS[variant])
    rng = np.random.default_rng(5)
    undisturbed.update(rollout(undisturbed, 1), rng)
    state, rng_state = undisturbed.state_dict(), rng.bit_generator.state
    undisturbed.update(rollout(undisturbed, 2), rng)
    resumed.load_state_dict(state)
    again = np.random.default_rng()
    again.bit_generator.state = rng_state
    resumed.update(rollout(resumed, 2), again)
    assert state_bytes(resumed) == state_bytes(undisturbed)


def loop(seed: int = 3) -> TrainingLoop:
    """Three segments on Pendulum; learning starts within the first."""

    modes = {"resumable": AutoresetMode.SAME_STEP, "disabled": AutoresetMode.DISABLED}

    def make_envs(num_envs: int, autoreset: str) -> SyncVectorEnv:
        makers = [lambda: gymnasium.make("Pendulum-v1")] * num_envs
        return SyncVectorEnv(makers, autoreset_mode=modes[autoreset])

    config = sac.SACConfig(**{**SMALL, "learning_starts": 40})
    env = gymnasium.make("Pendulum-v1")
    algorithm = sac.build(config, env.observation_space, env.action_space, seed=1, total_env_steps=192)
    return TrainingLoop(algorithm, make_envs, seed=seed, total_env_steps=192, segment_env_steps=64, validation=None)


def test_training_resumed_from_a_checkpoint_gives_the_same_bits() -> None:
    undisturbed, interrupted, resumed = loop(), loop(), loop()
    *_, last = undisturbed.run()
    resumed.restore(next(interrupted.run()))
    assert resumed.env_steps == 64
    *_, again = resumed.run()
    assert again.values == last.values
    assert {name: array.tobytes() for name, array in again.arrays.items()} == {
        name: array.tobytes() for name, array in last.arrays.items()
    }
    *_, other = loop(seed=4).run()
    assert other.arrays["algorithm.policy.actor.layers.0.weight"].tobytes() != (
        last.arrays["algorithm.policy.actor.layers.0.weight"].tobytes()
    )


# --- does it learn? ---------------------------------------------------------------------------------------------


@pytest.mark.long  # `training/distributed/test_training.py` learns with SAC; `benchmarks/learning.py` measures it
def test_pendulum_is_swung_up(tmp_path: Path) -> None:
    """The shipped config with a quicker rule to stop; `benchmarks/learning.py` measures it as it is, on five seeds."""
    quicker = {
        "training.seed": 3,
        "training.validation.stop_at_return": -250,
        "training.validation.stop_after_validations": 1,
        "training.validation.num_episodes": 16,
    }
    config = load_config(PROJECT / "configs" / "pendulum.yaml", quicker)
    take_snapshot(config.environment, PROJECT, tmp_path / "environment")
    report = train_policy(config.training, tmp_path / "environment", tmp_path / "training", tmp_path / "home")
    assert report.stop_reason == "stop_at_return"
