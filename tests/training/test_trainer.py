"""The trainer of the specification: `await trainer.train(...)`, the policy, the loss terms, clear refusals."""

import asyncio
import gc
import logging
import math
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control import CartPoleEnv

import loomrl
from loomrl.errors import ConfigError
from loomrl.training.trainer import PPOConfig, PPOTrainer, TrainingResult

SMALL = {"num_envs": 4, "rollout_length": 32, "batch_size": 64, "n_epochs": 2, "hidden_sizes": [16]}


def trained(total_timesteps: int | None = 512, **values: Any) -> tuple[PPOTrainer, TrainingResult]:
    trainer = PPOTrainer(PPOConfig(**{**SMALL, **values}))
    return trainer, asyncio.run(trainer.train(total_timesteps=total_timesteps))


def test_example_of_the_specification() -> None:
    config = loomrl.PPOConfig(learning_rate=3e-4, batch_size=2048, n_epochs=10, clip_epsilon=0.2)
    trainer = loomrl.PPOTrainer(config)
    result = asyncio.run(trainer.train(total_timesteps=2048))
    assert (result.total_env_steps, result.stop_reason) == (2048, "total_env_steps")
    assert result.metrics["num_gradient_steps"] == 10
    assert trainer.policy(np.zeros((3, 4), np.float32)).shape == (3,)


def test_the_same_seed_gives_the_same_policy() -> None:
    def weights(seed: int) -> list[bytes]:
        trainer, _ = trained(seed=seed)
        return [value.numpy().tobytes() for value in trainer.policy.state_dict().values()]

    assert weights(1) == weights(1)
    assert weights(1) != weights(2)


def test_the_first_weights_do_not_depend_on_the_number_of_threads() -> None:
    def weights(num_threads: int) -> list[bytes]:
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            policy = PPOTrainer({**SMALL, "hidden_sizes": [256, 256]}).policy
            assert torch.get_num_threads() == num_threads
        finally:
            torch.set_num_threads(before)
        return [value.numpy().tobytes() for value in policy.state_dict().values()]

    assert weights(1) == weights(2) == weights(4)


def test_the_event_loop_lives_while_it_trains() -> None:
    async def count() -> int:
        job = asyncio.create_task(PPOTrainer(SMALL).train(total_timesteps=100_000))
        turns = 0
        while not job.done():
            await asyncio.sleep(0.001)
            turns += 1
        await job
        return turns

    assert asyncio.run(count()) > 20


def test_cancelling_ends_after_the_update_under_way() -> None:
    async def cancel() -> None:
        job = asyncio.create_task(PPOTrainer(SMALL).train(total_timesteps=10**9))
        await asyncio.sleep(0.3)
        job.cancel()
        await job

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(cancel(), 20))


def test_total_episodes_ends_training() -> None:
    _, result = trained(total_timesteps=None, total_episodes=10)
    assert result.stop_reason == "total_episodes"
    assert 10 <= result.num_episodes < 40


def test_a_second_call_goes_on() -> None:
    trainer, first = trained(learning_rate=0.01)
    before = {name: value.clone() for name, value in trainer.policy.state_dict().items()}
    second = asyncio.run(trainer.train(total_timesteps=512))
    assert second.updates[0]["learning_rate"] == 0.01  # schedules begin again
    assert second.updates[0]["episode_return"] != first.updates[0]["episode_return"]  # other episodes
    assert float(trainer.policy.state_dict()["normalizer.count"]) == 1024
    assert not torch.equal(trainer.policy.state_dict()["head.logits.weight"], before["head.logits.weight"])


def test_a_second_call_plays_other_episodes() -> None:
    """With a policy that does not change, the returns would be the same if the seeds were."""
    trainer, first = trained(learning_rate=1e-12, normalize_observations=False)
    second = asyncio.run(trainer.train(total_timesteps=512))
    returns = [[row.get("episode_return") for row in one.updates] for one in (first, second)]
    _, again = trained(learning_rate=1e-12, normalize_observations=False)
    assert returns[0] == [row.get("episode_return") for row in again.updates]
    assert returns[0] != returns[1]


def test_with_validation_the_best_policy_is_kept() -> None:
    settings = {"interval_env_steps": 128, "num_episodes": 4}
    trainer, result = trained(validation=settings)
    assert [row["step"] for row in result.validations] == [128, 256, 384, 512]
    best = max(result.validations, key=lambda row: (row["mean_return"], row["step"]))
    assert float(trainer.policy.state_dict()["normalizer.count"]) == best["step"]


def test_continuous_actions() -> None:
    trainer, result = trained(environment="Pendulum-v1")
    assert result.metrics["std"] == pytest.approx(1.0, abs=0.2)
    assert trainer.policy(np.zeros((3, 3), np.float32)).shape == (3, 1)


def test_log_interval(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "loomrl.training.trainer"):
        trained(log_interval=2)
    assert [record.args[0] for record in caplog.records if record.args] == [256, 512]  # type: ignore[index]


def batch(num: int = 6) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "states": torch.randn(num, 4, generator=generator),
        "actions": torch.randint(0, 2, (num,), generator=generator),
        "old_log_probs": -torch.rand(num, generator=generator),
        "advantages": torch.randn(num, generator=generator),
        "returns": torch.randn(num, generator=generator),
    }


def test_compute_loss_is_the_specifications() -> None:
    trainer, _ = trained(clip_range=0.1, value_coef=0.25, entropy_coef=0.02)
    data = batch()
    losses = trainer.compute_loss(data)
    out = trainer.policy.forward(data["states"])
    distribution = torch.distributions.Categorical(logits=out["logits"])
    ratio = (distribution.log_prob(data["actions"]) - data["old_log_probs"]).exp()
    surrogate = torch.min(data["advantages"] * ratio, data["advantages"] * ratio.clamp(0.9, 1.1))
    torch.testing.assert_close(losses["policy_loss"], -surrogate.mean())
    torch.testing.assert_close(losses["value_loss"], 0.25 * ((out["value"] - data["returns"]) ** 2).mean())
    torch.testing.assert_close(losses["entropy_loss"], -0.02 * distribution.entropy().mean())
    sum(losses.values()).backward()  # type: ignore[union-attr]


def test_compute_loss_names_what_is_missing() -> None:
    trainer = PPOTrainer(SMALL)
    data = batch()
    with pytest.raises(ConfigError, match=r"returns has the shape \(5,\); it must be \(6,\) for 6 transitions"):
        trainer.compute_loss(data | {"returns": torch.zeros(5)})
    del data["returns"]
    with pytest.raises(ConfigError, match="the batch lacks returns"):
        trainer.compute_loss(data)


def test_compute_loss_takes_one_number_each_as_a_column_and_no_other_shape() -> None:
    trainer = PPOTrainer(SMALL)
    data = batch()
    losses = trainer.compute_loss(data)
    columns = {name: value.unsqueeze(-1) if value.ndim == 1 else value for name, value in data.items()}
    for name, loss in trainer.compute_loss(columns).items():
        torch.testing.assert_close(loss, losses[name], rtol=0, atol=0)
    for name in ("actions", "old_log_probs", "advantages", "returns"):
        for wrong in (data[name].reshape(1, 6), data[name].expand(6, 6), data[name].reshape(2, 3), data[name].sum()):
            with pytest.raises(ConfigError, match=f"compute_loss: {name} has the shape"):
                trainer.compute_loss(data | {name: wrong})
    with pytest.raises(ConfigError, match=r"states has the shape \(6, 3\); it must be \(6, 4\)"):
        trainer.compute_loss(data | {"states": torch.zeros(6, 3)})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("actions", 0.5, r"actions has 0.5 in row 2; it must fit Discrete\(2\)"),
        ("actions", 2, r"actions has 2 in row 2; it must fit Discrete\(2\)"),
        ("actions", -1, "actions has -1 in row 2"),
        ("states", math.inf, r"states has inf in row 2; it must fit Box"),
        ("advantages", math.nan, "advantages has nan in row 2; it must be finite"),
        ("old_log_probs", -math.inf, "old_log_probs has -inf in row 2"),
        ("returns", math.inf, "returns has inf in row 2"),
    ],
)
def test_compute_loss_names_values_that_cannot_be(name: str, value: float, message: str) -> None:
    data = batch()
    wrong = data[name].float() if isinstance(value, float) else data[name].clone()
    wrong[2] = value
    with pytest.raises(ConfigError, match=f"compute_loss: {message}"):
        PPOTrainer(SMALL).compute_loss(data | {name: wrong})


SECTIONS: dict[str, Any] = {
    "policy_config": {"state_dim": 4, "action_dim": 2, "encoder_dims": [16, 8]},
    "training_config": {"num_workers": 2, "rollout_length": 32, "learning_rate": 3e-4, "clip_range": 0.1},
    "env_config": {"env_id": "CartPole-v1", "num_envs": 4},
}


def test_the_dictionary_with_sections() -> None:
    trainer = PPOTrainer({**SECTIONS, "batch_size": 64, "n_epochs": 1})
    config = trainer.config
    assert (config.environment, config.num_envs, config.rollout_length) == ("CartPole-v1", 8, 32)
    assert (config.hidden_sizes, config.clip_epsilon, config.batch_size) == ((16, 8), 0.1, 64)
    assert asyncio.run(trainer.train(total_timesteps=256)).total_env_steps == 256
    for section, wrong, message in (
        ("policy_config", {"state_dim": 5}, "policy_config.state_dim: 5, but the environment has 4"),
        ("policy_config", {"encoder_dim": [4]}, "encoder_dim: unknown key"),
        ("training_config", {"lerning_rate": 1.0}, "lerning_rate: unknown key; did you mean 'learning_rate'"),
        ("training_config", {"num_workers": 0}, "training_config.num_workers: 0"),
        ("env_config", {"num_envs": 2}, "env_config.env_id: missing; this key is required"),
    ):
        with pytest.raises(ConfigError, match=message):
            PPOTrainer({**SECTIONS, "batch_size": 32, section: wrong})
    with pytest.raises(ConfigError, match="learning_rate is given twice"):
        PPOTrainer({**SECTIONS, "learning_rate": 1e-3})


def test_what_is_said_outside_of_a_section_is_kept_where_the_section_is_silent() -> None:
    sizes = {"policy_config": {"state_dim": 4, "action_dim": 2}}
    for config in (
        {**sizes, "environment": "CartPole-v1", "hidden_sizes": [8]},
        {**sizes, "training_config": {"environment": "CartPole-v1", "hidden_sizes": [8]}},
    ):
        read = PPOTrainer(config).config
        assert (read.environment, read.hidden_sizes) == ("CartPole-v1", (8,))
    with pytest.raises(ConfigError, match="are one thing; give it once"):
        PPOTrainer({**SECTIONS, "training_config": {"hidden_sizes": [8]}})
    with pytest.raises(ConfigError, match="training_config.num_workers: 0"):
        PPOTrainer({"training_config": {"num_workers": 0}})


def test_what_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"PPOTrainer takes a PPOConfig or a mapping .*; found \[1\]"):
        PPOTrainer([1])  # type: ignore[arg-type]


def test_sizes_alone_make_a_policy_for_losses() -> None:
    config = {
        "policy_config": {"state_dim": 64, "action_dim": 6, "encoder_dims": [32, 32]},
        "learning_rate": 3e-4,
        "clip_range": 0.2,
        "value_coef": 0.5,
        "entropy_coef": 0.01,
    }
    trainer = PPOTrainer(config)
    numbers = torch.Generator().manual_seed(0)
    column = {name: torch.randn(5, 1, generator=numbers) for name in ("old_log_probs", "advantages", "returns")}
    data = {"states": torch.randn(5, 64, generator=numbers), "actions": torch.randn(5, 6, generator=numbers), **column}
    losses = trainer.compute_loss(data)
    assert set(losses) == {"policy_loss", "value_loss", "entropy_loss"}
    assert all(loss.isfinite() for loss in losses.values())
    with pytest.raises(ConfigError, match="has no environment: name one"):
        asyncio.run(trainer.train(total_timesteps=64))
    with pytest.raises(ConfigError, match="policy_config.state_dim and action_dim"):
        PPOTrainer({"policy_config": {"state_dim": 64}})


def test_compute_loss_clips_values_around_the_old_ones() -> None:
    trainer, _ = trained(value_clip_epsilon=0.1)
    data = batch()
    value = trainer.policy.forward(data["states"])["value"].detach()
    old = value - torch.tensor([0.0, 0.05, 0.5, -0.5, 2.0, -2.0])
    near = old + (value - old).clamp(-0.1, 0.1)
    expected = 0.5 * torch.maximum((value - data["returns"]) ** 2, (near - data["returns"]) ** 2).mean()
    torch.testing.assert_close(trainer.compute_loss(data | {"values": old})["value_loss"].detach(), expected)
    assert not torch.isclose(expected, 0.5 * ((value - data["returns"]) ** 2).mean())
    with pytest.raises(ConfigError, match="the batch lacks values"):
        trainer.compute_loss(data)


class Shifted(CartPoleEnv):
    """CartPole whose actions are 5 and 6."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gymnasium.spaces.Discrete(2, start=5)

    def step(self, action: Any) -> Any:
        return super().step(action - 5)


def test_compute_loss_takes_actions_as_the_environment_does() -> None:
    gymnasium.register("Shifted-v0", entry_point=Shifted)
    try:
        shifted = PPOTrainer({**SMALL, "environment": "Shifted-v0"})
    finally:
        del gymnasium.registry["Shifted-v0"]
    plain, data = PPOTrainer(SMALL), batch()
    torch.testing.assert_close(
        shifted.compute_loss(data | {"actions": data["actions"] + 5}), plain.compute_loss(data), rtol=0, atol=0
    )


def test_a_second_call_begins_its_returns_anew() -> None:
    trainer, _ = trained(total_timesteps=128, normalize_rewards=True)  # episodes are under way at its end
    asyncio.run(trainer.train(total_timesteps=128))
    state = trainer.policy.state_dict()
    again, _ = trained(total_timesteps=128, normalize_rewards=True)
    again._algorithm._scaler._running[:] = 1e6  # type: ignore[union-attr]  # whatever was under way
    asyncio.run(again.train(total_timesteps=128))
    torch.testing.assert_close(again.policy.state_dict(), state, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"sync_frequency": 2}, "sync_frequency is of several learners"),
        ({"distributed": False, "num_learners": 2}, "num_learners is of several learners"),
        ({"lerning_rate": 1}, "PPOConfig.lerning_rate: unknown key; did you mean 'learning_rate'"),
        ({"n_epochs": 0}, "PPOConfig.n_epochs: .* found 0"),
        ({"clip_range": 0.1, "clip_epsilon": 0.2}, "are the same parameter"),
        ({"environment": "CartPol-v1"}, "did you mean CartPole-v1"),
    ],
)
def test_wrong_configs_are_refused(values: dict[str, Any], message: str, loomrl_home: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        PPOTrainer(values)
    gc.collect()  # a database left open would warn here


def test_training_without_an_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="train.. has no end"):
        asyncio.run(PPOTrainer(SMALL).train())
