"""PPO by two learners in a few lines: each takes 100 gradient steps, then their parameters become one."""

import asyncio

from loomrl import PPOConfig, PPOTrainer


async def main() -> None:
    config = PPOConfig(
        learning_rate=3e-4, batch_size=4096, n_epochs=20, distributed=True, sync_frequency=100, log_interval=10
    )
    trainer = PPOTrainer(config)
    result = await trainer.train(total_timesteps=50_000)
    print(f"episodes earn {result.metrics['episode_return']:.0f} after {result.total_env_steps} steps")


asyncio.run(main())
