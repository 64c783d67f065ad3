"""A gym's training whose episodes are played by Ray actors."""

import asyncio
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from loomrl import EnvironmentType, GymPPOIntegration, GymTrainingConfig, LoomRLGym, NexusWorker, PPOConfig
from loomrl.errors import ConfigError, LoomRLError
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import CharacterTokenizer
from loomrl.training.distributed import calls
from loomrl.training.integrated import IntegrationResults
from loomrl.training.integrated.players import RemotePlayers

ITERATIONS = 3


@pytest.fixture(scope="module", autouse=True)
def cluster() -> Iterator[None]:
    """One for all tests."""
    import ray

    from loomrl.training.distributed.cluster import connected

    connected(2)
    yield
    ray.shutdown()


def integration(**changes: Any) -> GymPPOIntegration:
    config = GymTrainingConfig(
        enabled_env_types=["math"],
        levels=(0,),
        max_message_tokens=4,
        max_sequence_tokens=12,
        evaluation_tasks=20,
        warm_start_accuracy=0.0,
        **changes,
    )
    tokenizer = CharacterTokenizer("0123456789+=")
    policy = LanguagePolicy.fresh(0, tokenizer, width=16, max_tokens=12, value_head=True)
    return GymPPOIntegration(config, PPOConfig(batch_size=32, learning_rate=1e-3), policy=policy)


async def environments(count: int, domain: EnvironmentType = EnvironmentType.MATH, **config: Any) -> LoomRLGym:
    gym = LoomRLGym()
    for _ in range(count):
        await gym.create_environment(domain, config)
    return gym


def weights(trained: GymPPOIntegration) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in trained.ppo_trainer.policy.model.state_dict().items()}


def distributed(num_workers: int = 2, *, loses_one: bool = False) -> tuple[GymPPOIntegration, IntegrationResults]:
    """Trained in the integration's own environments."""

    async def run() -> IntegrationResults:
        async with NexusWorker(num_workers=num_workers).distribute_rl_training(trained) as training:
            if loses_one:
                await training.run_training_loop(max_iterations=1)
                end(training.actors[0])
            return await training.run_training_loop(max_iterations=ITERATIONS)

    trained = integration()
    results = asyncio.run(run())
    trained.close()
    return trained, results


def end(actor: Any) -> None:
    import ray

    os.kill(ray.get(actor.__ray_call__.remote(lambda _: os.getpid())), signal.SIGKILL)


@pytest.mark.long
def test_actors_play_what_would_be_played_here() -> None:
    alone = integration()
    expected = asyncio.run(alone.run_training_loop(max_iterations=ITERATIONS))
    alone.close()
    trained, results = distributed()
    assert results.num_episodes == 32 * ITERATIONS
    for ours, theirs in zip(results.iterations, expected.iterations, strict=True):
        assert ours.success_rates == theirs.success_rates
        assert ours.learning == pytest.approx(theirs.learning, abs=1e-3)
        assert ours.learning["mean_lag"] == 0
    for name, value in weights(trained).items():
        np.testing.assert_allclose(value, weights(alone)[name], atol=1e-3, err_msg=name)


@pytest.mark.long
def test_a_lost_actor_changes_nothing() -> None:
    (sound, expected), (struck, results) = distributed(), distributed(loses_one=True)
    assert results == expected
    assert all(torch.equal(value, weights(struck)[name]) for name, value in weights(sound).items())


def test_registered_environments_are_those_that_are_played() -> None:
    async def run() -> IntegrationResults:
        nexus_worker = NexusWorker(num_workers=1)
        nexus_worker.register_gym_environments((await environments(3, kinds=["addition"], difficulty=1)).environments)
        async with nexus_worker.distribute_rl_training(trained) as training:
            return await training.run_training_loop(max_iterations=1)

    trained = integration(curriculum_learning=False)
    results = asyncio.run(run())
    trained.close()
    assert list(trained.environments.environments) == ["gym/math-0", "gym/math-1", "gym/math-2"]
    assert results.difficulties == {"math": 1.0}


def test_an_environment_of_another_domain_is_refused() -> None:
    gym = asyncio.run(environments(1, EnvironmentType.GAME))
    nexus_worker = NexusWorker()
    nexus_worker.register_gym_environments(gym.environments)
    with pytest.raises(ConfigError, match="game-0 is of the domain 'game', which .*enabled_env_types does not name"):
        nexus_worker.distribute_rl_training(integration())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_workers": 0}, "NexusWorker.num_workers: .* found 0"),
        ({"workers": 2}, "NexusWorker.workers: unknown key; did you mean 'num_workers'"),
        ({"address": "nowhere"}, "NexusWorker.address"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NexusWorker(**settings)


def test_too_small_a_cluster_is_refused() -> None:
    with pytest.raises(ConfigError, match="num_workers 1000: the Ray cluster has .* CPUs; lower it"):
        NexusWorker(num_workers=1_000).distribute_rl_training(integration())


@pytest.mark.long
def test_actors_that_hang_again_and_again_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "START_SECONDS", 0.0)
    trained = integration()
    pool = trained.environments
    players = RemotePlayers(1, trained.ppo_trainer.policy, 4, hang_timeout_seconds=1e-6)
    players.update(trained.ppo_trainer.policy, 0)
    with pytest.raises(LoomRLError, match="of the gym was lost 4 times in one batch; .*no answer within 1e-06 s"):
        pool.play_by(1, lambda exercises: players.play(exercises, seed=0))
    players.close()
    trained.close()
