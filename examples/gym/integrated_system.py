"""Math, games and tool calls for one policy: environments, hub, PPO and inference engine as one system."""

import asyncio

from loomrl import EnvironmentType, GymTrainingConfig, PPOConfig, create_integrated_rl_system


async def main() -> None:
    gym_config = GymTrainingConfig(
        environments_per_type=3,
        enabled_env_types=[EnvironmentType.MATH, EnvironmentType.GAME, EnvironmentType.TOOLCALL],
        curriculum_learning=True,
        target_success_rate=0.8,
    )
    ppo_config = PPOConfig(total_episodes=10000, batch_size=64, learning_rate=3e-4)
    integration = await create_integrated_rl_system(gym_config, ppo_config)
    results = await integration.run_training_loop(max_iterations=200)
    for domain, before in results.warm_start.items():
        after, level = results.success_rates[domain], results.difficulties[domain]
        print(f"{domain}: {before:.2f} -> {after:.2f} of held-out tasks, level {level:.2f}")
    print(f"{results.num_episodes} episodes, policy version {results.policy_version}, {results.stop_reason}")


asyncio.run(main())
