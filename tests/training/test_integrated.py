"""The whole loop: environments, a hub of its own, PPO and the engine; learning, limits, versions and resumption."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

import loomrl
from loomrl import EnvironmentType, GymPPOIntegration, GymTrainingConfig, PPOConfig, create_integrated_rl_system
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.gym.domains import get_domain
from loomrl.language.inference.builtin import BuiltinEngine
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import CharacterTokenizer
from loomrl.training.integrated import warm_start
from loomrl.training.integrated.learner import make_learner
from loomrl.training.integrated.results import IntegrationResults

PPO = PPOConfig(batch_size=32, learning_rate=1e-3)


def config(**changes: Any) -> GymTrainingConfig:
    """Sums of single digits: learnt within seconds."""
    settings = {
        "enabled_env_types": [EnvironmentType.MATH],
        "environments_per_type": 2,
        "difficulty": 0,
        "max_message_tokens": 4,
        "max_sequence_tokens": 12,
        "evaluation_tasks": 60,
        "checkpoint_interval": 2,
    }
    return GymTrainingConfig(**{**settings, **changes})


def small_policy() -> LanguagePolicy:
    return LanguagePolicy.fresh(0, CharacterTokenizer("0123456789+="), width=64, max_tokens=12, value_head=True)


@pytest.fixture(scope="module")
def warm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that a warm start made, in a file."""
    folder = tmp_path_factory.mktemp("warm")
    integration = GymPPOIntegration(config(), PPO, policy=small_policy())
    asyncio.run(integration.prepare())
    assert integration.evaluate()["math"] > 0.1
    integration.ppo_trainer.policy.save(folder)
    integration.close()
    return folder


def train(warm: Path, iterations: int, ppo: PPOConfig = PPO, **changes: Any) -> tuple[GymPPOIntegration, Any]:
    async def run() -> tuple[GymPPOIntegration, IntegrationResults]:
        policy = LanguagePolicy.load(warm)
        settings = config(warm_start_accuracy=0.05, **changes)
        integration = await create_integrated_rl_system(settings, ppo, policy=policy)
        return integration, await integration.run_training_loop(max_iterations=iterations)

    integration, results = asyncio.run(run())
    integration.close()
    return integration, results


def weights(integration: GymPPOIntegration) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in integration.ppo_trainer.policy.model.state_dict().items()}


@pytest.mark.long
def test_it_learns(warm: Path) -> None:
    ppo = PPOConfig(batch_size=64, learning_rate=1e-3)
    integration, results = train(warm, 60, ppo, curriculum_learning=False)
    assert results.stop_reason == "max_iterations"
    scores = [iteration.mean_scores["math"] for iteration in results.iterations]
    assert sum(scores[-20:]) / 20 > sum(scores[:20]) / 20 + 0.05
    assert results.success_rates == integration.evaluate()
    assert results.policy_version == integration.inference_engine.version == 60
    assert results.num_episodes == 60 * 64
    assert [iteration.number for iteration in results.iterations] == list(range(1, 61))
    assert all(iteration.learning["num_stale_groups"] == 0 for iteration in results.iterations)
    assert all(iteration.learning["mean_lag"] == 0 for iteration in results.iterations)


def test_it_is_resumed_to_the_bit(warm: Path, tmp_path: Path) -> None:
    whole, results = train(warm, 6)
    train(warm, 4, checkpoint_folder=tmp_path)
    resumed, went_on = train(warm, 6, checkpoint_folder=tmp_path)
    assert went_on == results
    expected, found = weights(whole), weights(resumed)
    assert all(torch.equal(expected[name], found[name]) for name in expected)
    with pytest.raises(ConfigError, match="holds checkpoints of another config"):
        train(warm, 6, checkpoint_folder=tmp_path, group_size=2)


def test_what_was_trained_is_not_trained_again(warm: Path) -> None:
    async def run() -> None:
        policy = LanguagePolicy.load(warm)
        integration = GymPPOIntegration(config(warm_start_accuracy=0.05), PPO, policy=policy)
        first = await integration.run_training_loop(max_iterations=2)
        assert await integration.run_training_loop(max_iterations=2) == first
        assert (await integration.run_training_loop(max_iterations=3)).policy_version == 3
        integration.close()

    asyncio.run(run())


def test_total_episodes_end_it(warm: Path) -> None:
    ppo = PPOConfig(batch_size=32, total_episodes=65)
    _, results = train(warm, 10, ppo)
    assert (results.stop_reason, results.num_episodes) == ("total_episodes", 96)


def test_rewards_are_cut_to_their_limits(warm: Path) -> None:
    _, results = train(warm, 2, reward_limits=(0.0, 0.25))
    for iteration in results.iterations:
        assert 0.0 < iteration.learning["mean_score"] <= 0.25
        assert iteration.learning["mean_score"] == pytest.approx(0.25 * iteration.success_rates["math"], abs=1e-6)


def test_when_it_is_cancelled_the_iteration_under_way_is_kept(warm: Path, tmp_path: Path) -> None:
    async def run() -> int:
        settings = config(warm_start_accuracy=0.05, checkpoint_folder=tmp_path)
        integration = GymPPOIntegration(settings, PPO, policy=LanguagePolicy.load(warm))
        training = asyncio.ensure_future(integration.run_training_loop(max_iterations=10_000))
        while integration.ppo_trainer.version < 1:
            await asyncio.sleep(0.01)
        training.cancel()
        with pytest.raises(asyncio.CancelledError):
            await training
        integration.close()
        return integration.ppo_trainer.version

    version = asyncio.run(run())
    _, results = train(warm, version, checkpoint_folder=tmp_path)
    assert results.policy_version == version


def test_a_warm_start_that_is_cancelled_is_not_taken_for_a_whole_one() -> None:
    async def run() -> None:
        integration = GymPPOIntegration(config(warm_start_accuracy=0.99), PPO, policy=small_policy())
        before = weights(integration)
        warming = asyncio.ensure_future(integration.prepare())
        while all(torch.equal(before[name], value) for name, value in weights(integration).items()):
            await asyncio.sleep(0.01)
        warming.cancel()
        with pytest.raises(asyncio.CancelledError):
            await warming
        assert integration.inference_engine.version == -1  # nothing is served that is not ready
        integration.config = config(warm_start_accuracy=0.0)
        await integration.prepare()
        assert integration.inference_engine.version == 0
        integration.close()

    asyncio.run(run())


def test_environments_that_break_leave_the_others_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("no dictionary")

    monkeypatch.setattr(get_domain("language"), "begin", broken)
    integration = GymPPOIntegration(
        config(enabled_env_types=["math", "language"], max_sequence_tokens=40, warm_start_accuracy=0.0),
        PPO,
        policy=LanguagePolicy.fresh(0, width=16, max_tokens=40, value_head=True),
    )
    results = asyncio.run(integration.run_training_loop(max_iterations=3))
    integration.close()
    assert results.quarantined == ["language-0", "language-1"]
    assert results.success_rates["language"] == 0.0
    assert results.num_episodes == 96


def test_an_engine_of_ones_own_serves_the_policy_as_it_is_trained(warm: Path) -> None:
    policy = LanguagePolicy.load(warm)
    with BuiltinEngine() as engine:
        integration = GymPPOIntegration(config(warm_start_accuracy=0.05), PPO, policy=policy, engine=engine)
        asyncio.run(integration.run_training_loop(max_iterations=1))
        assert engine.version == 1
        served, trained = engine.policy.model.state_dict(), integration.ppo_trainer.policy.model.state_dict()
        assert all(torch.equal(served[name], trained[name]) for name in trained)


def test_a_warm_start_that_leads_nowhere_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "_MAX_CHECKS", 1)
    integration = GymPPOIntegration(config(warm_start_accuracy=0.99), PPO, policy=small_policy())
    with pytest.raises(LoomRLError, match="after 25 steps the policy succeeds in .* lower levels"):
        asyncio.run(integration.prepare())
    integration.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"environments_per_type": 0}, "GymTrainingConfig.environments_per_type: .* found 0"),
        ({"enabled_env_types": []}, "enabled_env_types is empty"),
        ({"enabled_env_types": ["math", EnvironmentType.MATH]}, "names a domain twice: math, math"),
        ({"target_success_rat": 0.5}, "unknown key; did you mean 'target_success_rate'"),
        ({"reward_limits": (1.0, 0.0)}, "the first must lie below the second"),
        ({"max_sequence_tokens": 16, "max_message_tokens": 16}, "leaves no prompt beside messages"),
        ({"difficulty": 12}, r"^GymTrainingConfig\.difficulty: .* found 12$"),
        ({"levels": ()}, "levels from 0 to 9"),
        ({"levels": (0, 12)}, "levels from 0 to 9"),
    ],
)
def test_wrong_configs_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"enabled_env_types": [EnvironmentType.MULTIMODAL]}, "multimodal asks about pictures"),
        ({"enabled_env_types": ["maths"]}, "there is no domain 'maths'"),
        ({"kinds": {"math": ("sums",)}}, "math has no tasks of kind 'sums'"),
        ({"max_sequence_tokens": 40}, "the policy reads 12 tokens"),
        ({"group_size": 3}, "batch_size 32 is no multiple of GymTrainingConfig.group_size 3"),
    ],
)
def test_what_does_not_go_together_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GymPPOIntegration(config(**changes), PPO, policy=small_policy())


def test_ppo_config_means_what_it_says() -> None:
    given = PPOConfig(batch_size=64, learning_rate=2e-4, n_epochs=3, clip_range=0.1)
    told = make_learner(given, small_policy(), config(max_staleness=2)).config
    assert (told.learning_rate, told.n_epochs, told.clip_epsilon, told.max_staleness) == (2e-4, 3, 0.1, 2)
    linear = PPOConfig(batch_size=64, total_episodes=1_000, learning_rate_schedule="linear")
    assert make_learner(linear, small_policy(), config()).config.total_updates == 16


@pytest.mark.parametrize(
    ("given", "total_updates"),
    [({}, None), ({"total_episodes": 1_000}, 16), ({"total_episodes": 64, "learning_rate_schedule": "constant"}, None)],
)
def test_the_learning_rate_falls_where_the_end_is_known(given: dict[str, Any], total_updates: int | None) -> None:
    told = make_learner(PPOConfig(batch_size=64, **given), small_policy(), config()).config
    assert told.total_updates == total_updates


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_envs": 4}, "PPOConfig.num_envs means nothing to a language policy"),
        ({"entropy_coef": 0.1}, "PPOConfig.entropy_coef means nothing .* it takes: batch_size, clip_epsilon"),
        ({"learning_rate_schedule": "linear"}, "linear with total_episodes as its end"),
    ],
)
def test_ppo_parameters_that_mean_nothing_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_learner(PPOConfig(**{"batch_size": 64, **given}), small_policy(), config())


def test_a_loop_has_an_end() -> None:
    integration = GymPPOIntegration(config(), PPO, policy=small_policy())
    with pytest.raises(ConfigError, match="max_iterations is 0"):
        asyncio.run(integration.run_training_loop(max_iterations=0))
    integration.close()


def test_the_public_names() -> None:
    gym = {"LoomRLGym", "EnvironmentType", "GymTrainingConfig", "GymPPOIntegration", "create_integrated_rl_system"}
    engines = {"InferenceEngine", "BuiltinEngine", "VLLMEngine", "SGLangEngine", "HubClient"}
    assert gym | engines <= set(loomrl.__all__)
    assert all(issubclass(getattr(loomrl, name), loomrl.InferenceEngine) for name in engines - {"HubClient"})


def test_a_hub_that_cannot_be_filled_ends_the_loop(warm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    integration = GymPPOIntegration(config(warm_start_accuracy=0.05), PPO, policy=LanguagePolicy.load(warm))
    asyncio.run(integration.prepare())

    def broken(*_: Any) -> Any:
        raise RuntimeError("out of paper")

    monkeypatch.setattr(get_domain("math"), "verify", broken)
    with pytest.raises(EnvironmentFault, match="every environment is in quarantine"):
        asyncio.run(integration.run_training_loop(max_iterations=1))
    integration.close()
