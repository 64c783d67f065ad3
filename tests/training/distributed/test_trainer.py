"""Rollout workers and their learner: as plain objects, and as Ray actors that do the same."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import loomrl
from loomrl.errors import ConfigError
from loomrl.training.distributed.rollout_workers.actor_config import ActorConfig
from loomrl.training.distributed.rollout_workers.workers import PPOLearner, RolloutWorker
from loomrl.training.distributed.trainer import DistributedTrainer, PolicyEvaluator

CONFIG: dict[str, Any] = {
    "policy_config": {"state_dim": 4, "action_dim": 2, "encoder_dims": [16]},
    "training_config": {
        "num_workers": 2,
        "rollout_length": 32,
        "learning_rate": 3e-4,
        "clip_range": 0.2,
        "value_coef": 0.5,
        "entropy_coef": 0.01,
        "batch_size": 64,
        "n_epochs": 2,
        "normalize_rewards": True,
    },
    "env_config": {"env_id": "CartPole-v1", "num_envs": 4},
}


def changed(section: str, **values: Any) -> dict[str, Any]:
    return {**CONFIG, section: {**CONFIG[section], **values}}


def iterate(workers: list[RolloutWorker], learner: PPOLearner) -> dict[str, float]:
    for worker in workers:
        worker.sync_policy(learner.get_policy_state())
    return learner.update(*(worker.collect_rollout() for worker in workers))


def test_the_dictionary_becomes_ppos_parameters() -> None:
    config = ActorConfig.read(CONFIG)
    parameters = config.parameters
    assert (parameters.clip_epsilon, parameters.value_loss_coef, parameters.entropy_coef) == (0.2, 0.5, 0.01)
    assert (parameters.num_envs, parameters.rollout_length, parameters.hidden_sizes) == (8, 32, (16,))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (changed("policy_config", state_dim=64), "policy_config.state_dim: 64, but the environment has 4"),
        (changed("policy_config", action_dim=6), "policy_config.action_dim: 6, but the environment has 2"),
        (changed("training_config", clip_epsilon=0.1), "clip_range and clip_epsilon are the same"),
        (changed("training_config", learningrate=0.1), "training_config.learningrate: unknown key; did you mean"),
        (changed("training_config", num_workers=0), "training_config.num_workers: 0"),
        (changed("env_config", num_envs=0), "config.env_config.num_envs"),
        ({"training_config": {}}, "config.env_config"),
    ],
)
def test_bad_dictionaries_are_refused(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActorConfig.read(config)


def test_environments_that_gymnasium_has_no_more_are_replaced_with_a_warning() -> None:
    with pytest.warns(UserWarning, match="HalfCheetah-v2 is no longer part of Gymnasium; HalfCheetah-v5 is used"):
        config = ActorConfig.read({"env_config": {"env_id": "HalfCheetah-v2", "num_envs": 1}})
    assert config.environment == "HalfCheetah-v5"


def test_rollouts_are_of_the_version_that_made_them_and_stale_ones_are_refused() -> None:
    worker, learner = (
        RolloutWorker(changed("training_config", num_workers=1)),
        PPOLearner(changed("training_config", num_workers=1)),
    )
    rollout = worker.collect_rollout()
    assert (rollout.policy_version, rollout.trajectory.reward.shape) == (0, (32, 4))
    learner.update(rollout)
    with pytest.raises(ConfigError, match="made by version 0 of the policy, which is at 1 now"):
        learner.update(worker.collect_rollout())
    worker.sync_policy(learner.get_policy_state())
    assert worker.collect_rollout().policy_version == 1


def test_workers_play_different_episodes() -> None:
    first, second, again = (RolloutWorker(CONFIG, index).collect_rollout().trajectory.obs[0] for index in (0, 1, 0))
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(np.concatenate([first, second]), axis=0)) == 8


# --- on Ray ---


@pytest.fixture(scope="module")
def trainer(ray_cluster: Any) -> Iterator[DistributedTrainer]:
    made = loomrl.DistributedTrainer(CONFIG)
    yield made
    made.close()


def test_actors_do_what_plain_objects_do(trainer: DistributedTrainer) -> None:
    workers, learner = [RolloutWorker(CONFIG, index) for index in range(2)], PPOLearner(CONFIG)
    expected = [iterate(workers, learner) for _ in range(3)]
    assert asyncio.run(trainer.train(num_iterations=3)) == expected
    results = asyncio.run(PolicyEvaluator(CONFIG, num_episodes=4).evaluate(trainer.learner))
    assert (results["num_episodes"], results["policy_version"]) == (4, 3)
    assert 8 <= results["mean_return"] <= 500


def test_a_lost_worker_is_replaced(trainer: DistributedTrainer) -> None:
    import ray

    lost = trainer.workers[1]
    pid = ray.get(lost.__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    (metrics,) = asyncio.run(trainer.train(num_iterations=1))
    assert trainer.workers[1] is not lost
    assert np.isfinite(list(metrics.values())).all()
