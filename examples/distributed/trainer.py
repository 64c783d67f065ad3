"""PPO with rollout workers: each steps environments of its own, the learner updates, its policy goes to all of them."""

import asyncio

from loomrl import DistributedTrainer, PolicyEvaluator

config = {
    "policy_config": {"state_dim": 17, "action_dim": 6, "encoder_dims": [256, 256]},
    "training_config": {
        "num_workers": 2,
        "rollout_length": 128,
        "learning_rate": 3e-4,
        "clip_range": 0.2,
        "value_coef": 0.5,
        "entropy_coef": 0.01,
    },
    "env_config": {"env_id": "HalfCheetah-v5", "num_envs": 4},
}


async def main() -> None:
    trainer = DistributedTrainer(config)
    metrics = await trainer.train(num_iterations=3)
    for number, row in enumerate(metrics, start=1):
        print(f"iteration {number}: policy_loss {row['policy_loss']:.4f}, value_loss {row['value_loss']:.4f}")
    evaluator = PolicyEvaluator(config, num_episodes=2)
    results = await evaluator.evaluate(trainer.learner)
    print(f"mean return {results['mean_return']:.1f} by policy version {results['policy_version']:.0f}")
    trainer.close()


asyncio.run(main())
