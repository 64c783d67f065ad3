"""What `DistributedTrainer` does, by hand: workers collect, the learner updates, its policy goes to the workers."""

import ray

from loomrl import PPOLearner, RolloutWorker

config = {
    "policy_config": {"state_dim": 4, "action_dim": 2, "encoder_dims": [64, 64]},
    "training_config": {"num_workers": 2, "rollout_length": 64},
    "env_config": {"env_id": "CartPole-v1", "num_envs": 8},
}

ray.init(address="local", num_cpus=3, include_dashboard=False, log_to_driver=False)
workers = [ray.remote(RolloutWorker).remote(config, index) for index in range(2)]
learner = ray.remote(PPOLearner).remote(config)
for iteration in range(1, 6):
    policy_state = learner.get_policy_state.remote()
    for worker in workers:
        worker.sync_policy.remote(policy_state)
    rollouts = [worker.collect_rollout.remote() for worker in workers]
    metrics = ray.get(learner.update.remote(*rollouts))
    print(f"iteration {iteration}: episodes earn {metrics['episode_return']:.1f}")
print("policy version", ray.get(learner.get_policy_state.remote()).version)
ray.shutdown()
