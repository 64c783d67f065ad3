"""The episodes of a gym are played by actors on a Ray cluster; here it has two processes, on this machine."""

import asyncio
from statistics import mean

from loomrl import EnvironmentType, GymPPOIntegration, GymTrainingConfig, LoomRLGym, NexusWorker, PPOConfig
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import CharacterTokenizer


async def main() -> None:
    gym_config = GymTrainingConfig(
        enabled_env_types=[EnvironmentType.MATH],
        levels=(0,),
        max_message_tokens=4,
        max_sequence_tokens=12,
    )
    ppo_config = PPOConfig(batch_size=64, learning_rate=1e-3)
    policy = LanguagePolicy.fresh(0, CharacterTokenizer("0123456789+="), max_tokens=12, value_head=True)
    async with LoomRLGym() as gym:
        for _ in range(4):
            await gym.create_environment(EnvironmentType.MATH, {"kinds": ["addition"]})
        gym_integration = GymPPOIntegration(gym_config, ppo_config, policy=policy)
        nexus_worker = NexusWorker(num_workers=2)
        nexus_worker.register_gym_environments(gym.environments)
        distributed_training = nexus_worker.distribute_rl_training(gym_integration)
        async with distributed_training:
            results = await distributed_training.run_training_loop(max_iterations=80)
    for first in range(0, 80, 20):
        part = results.iterations[first : first + 20]
        print(f"{mean(iteration.mean_scores['math'] for iteration in part):.2f} in iterations from {first + 1} on")
    print(f"{results.num_episodes} episodes, policy version {results.policy_version}, {results.stop_reason}")


asyncio.run(main())
