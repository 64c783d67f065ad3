"""Whoever acts, in any space of actions and however long an episode is: what can be broken is seen to be."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from numpy.typing import NDArray

from loomrl.environment.config import EnvironmentConfig
from loomrl.environment.snapshots.snapshot import take_snapshot
from loomrl.environment.spaces import space_from_json
from loomrl.safety.config import ConstraintConfig, SafetyConfig
from loomrl.safety.constraints import violations
from loomrl.safety.probing.repeats import swayed_episodes

ALARM = ConstraintConfig(name="alarm", quantity="observation[0]", high=0.5)


class Valves(gymnasium.Env[Any, Any]):
    """One action of many opens the valve, and it is seen; whoever is quiet takes the first."""

    observation_space = spaces.Box(-2.0, 2.0, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(20)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[NDArray[Any], dict[str, Any]]:
        super().reset(seed=seed)
        return self.seen(False), {}

    def seen(self, is_open: bool) -> NDArray[Any]:
        return np.array([is_open, self.np_random.random()], np.float32)

    def opens(self, action: Any) -> bool:
        return bool(action == 7)

    def step(self, action: Any) -> tuple[NDArray[Any], float, bool, bool, dict[str, Any]]:
        return self.seen(self.opens(action)), 1.0, False, False, {}


class Several(Valves):
    """Two choices at once."""

    action_space = spaces.MultiDiscrete([3, 2])

    def opens(self, action: Any) -> bool:
        return bool(action[0] > 0)


class Switches(Valves):
    """Some bits."""

    action_space = spaces.MultiBinary(4)

    def opens(self, action: Any) -> bool:
        return bool(action[1])


@pytest.mark.parametrize(("name", "steps"), [("Valves", 40), ("Several", 40), ("Switches", 40), ("Valves", 3_000)])
def test_a_limit_that_some_action_breaks_is_broken(name: str, steps: int, tmp_path: Path) -> None:
    wanted = EnvironmentConfig(
        id=name.lower(),
        entry_point=f"{Path(__file__).stem}:{name}",
        path=Path(__file__).parent,
        max_episode_steps=steps,
        fingerprint_episodes=1,
    )
    snapshot = take_snapshot(wanted, Path(__file__).parent, tmp_path / "environment")
    space = space_from_json(snapshot.spec.action)
    quiet = np.zeros(space.shape or (), space.dtype)
    context: Any = SimpleNamespace(
        policy=lambda obs: np.repeat(quiet[None], len(obs), axis=0),
        snapshot=snapshot,
        snapshot_folder=tmp_path / "environment",
        config=SafetyConfig(num_envs=96),
        action_space=space,
        observation_space=space_from_json(snapshot.spec.observation),
        rng=lambda name: np.random.default_rng([1, len(name)]),
    )
    episodes = swayed_episodes(context)
    assert len(episodes) == 128
    assert {episode.length for episode in episodes} == {min(steps, 1_000)}
    assert any(violations(ALARM, episode).any() for episode in episodes)
    assert not all(violations(ALARM, episode).any() for episode in episodes)
