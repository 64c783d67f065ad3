"""Environments that come with LoomRL. Importing this registers those that have a Gymnasium id."""

from gymnasium import register

_ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
for _name in _ROBOTS:
    register(
        id=f"loomrl/{_name}Velocity-v1", entry_point=f"loomrl.gym.velocity:{_name}Velocity", max_episode_steps=1_000
    )
