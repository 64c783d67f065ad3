"""Environments that come with LoomRL. Importing this registers those that have a Gymnasium id, and reserves the
names of domains."""

import pkgutil
from pathlib import Path

from gymnasium import register

from loomrl.environment.ids import reserve

_ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")
for _name in _ROBOTS:
    register(
        id=f"loomrl/{_name}Velocity-v1", entry_point=f"loomrl.gym.velocity:{_name}Velocity", max_episode_steps=1_000
    )

# `loomrl/ToolCall-v0` is the environment of the domain in `domains/tool_call`.
for _module in pkgutil.iter_modules([str(Path(__file__).parent / "domains")]):
    _camel = "".join(part.capitalize() for part in _module.name.split("_"))
    register(id=f"loomrl/{_camel}-v0", entry_point=f"loomrl.gym.domains.{_module.name}:Environment")


def _domains() -> list[str]:
    from loomrl.gym.domains import names  # those of plug-ins among them, which takes a while to find

    return names()


reserve(_domains)
