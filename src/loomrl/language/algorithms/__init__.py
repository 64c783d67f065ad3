"""Algorithms that learn from text: GRPO and PPO on tokens, in environments that ask in text."""
