"""The same system in one domain, made by hand: what each iteration measured, and the policy kept in files."""

import asyncio
from pathlib import Path
from statistics import mean

from loomrl import EnvironmentType, GymPPOIntegration, GymTrainingConfig, PPOConfig
from loomrl.language.policies.policy import LanguagePolicy
from loomrl.language.policies.tokens import CharacterTokenizer


async def main() -> None:
    gym_config = GymTrainingConfig(
        enabled_env_types=[EnvironmentType.MATH],
        difficulty=0,
        max_message_tokens=4,
        max_sequence_tokens=12,
        checkpoint_folder=Path("checkpoints"),
    )
    ppo_config = PPOConfig(batch_size=64, learning_rate=1e-3)
    policy = LanguagePolicy.fresh(0, CharacterTokenizer("0123456789+="), max_tokens=12, value_head=True)
    gym_integration = GymPPOIntegration(gym_config, ppo_config, policy=policy)
    results = await gym_integration.run_training_loop(max_iterations=80)
    for first in range(0, 80, 20):
        part = results.iterations[first : first + 20]
        print(f"{mean(iteration.mean_scores['math'] for iteration in part):.2f} in iterations from {first + 1} on")
    gym_integration.ppo_trainer.policy.save(Path("policy"))


asyncio.run(main())
