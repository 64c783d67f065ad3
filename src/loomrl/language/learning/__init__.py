"""Learning of language policies: losses, batches of groups, the learners of GRPO and PPO."""
