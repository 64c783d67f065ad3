"""What the conformance suite of algorithms runs on: cases, spaces, and an environment of any two spaces."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from pydantic import ValidationError

from loomrl.algorithms.base import Algorithm
from loomrl.algorithms.plugin import LoadedPlugin
from loomrl.algorithms.registry import find_algorithms
from loomrl.environment.wrappers.flat import as_one_array
from loomrl.errors import ConfigError
from loomrl.system.schema import Section

ALGORITHMS = find_algorithms()

# For whichever of these an algorithm's config has: small, learning at once, and with state in every corner.
SMALL: dict[str, Any] = {
    "num_envs": 2,
    "rollout_length": 8,
    "batch_size": 8,
    "hidden_sizes": (8, 8),
    "n_epochs": 2,
    "gradient_steps": 3,
    "learning_starts": 0,
    "replay_capacity": 24,  # overwritten within two rollouts
    "memory_size": 4,
    "sequence_length": 4,
    "num_threads": 1,
}
# Options of LoomRL's own that keep more state than the defaults do.
VARIANTS: dict[str, dict[str, Any]] = {
    "ppo": {"normalize_rewards": True, "learning_rate_schedule": "adaptive", "desired_kl": 1e-4},
    "ppo_lagrangian": {"normalize_rewards": True, "cost_limit": 0.5},
    "recurrent_ppo": {"normalize_rewards": True, "learning_rate_schedule": "adaptive", "desired_kl": 1e-4},
    "sac": {"normalize_observations": True, "n_step": 3},
    "dqn": {"prioritized": True, "dueling": True, "num_quantiles": 4, "target_update_interval": 24},
}

# --- spaces -----------------------------------------------------------------------------------------------------

PIXELS = spaces.Box(0, 255, (6, 7, 2), np.uint8)
VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float32)
OBSERVATIONS: dict[str, gymnasium.Space[Any]] = {
    "box": VECTOR,
    "box_2d": spaces.Box(-1.0, 1.0, (2, 3), np.float32),
    "box_float64": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "box_bytes": spaces.Box(0, 255, (4,), np.uint8),
    "discrete": spaces.Discrete(4, start=-1),
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[1, 0]),
    "multi_binary": spaces.MultiBinary(4),
    "dict": spaces.Dict(lamp=spaces.Discrete(3), arm=spaces.Tuple([VECTOR, spaces.MultiBinary((2, 2))])),
    "image": PIXELS,
    "image_in_dict": spaces.Dict(picture=PIXELS, speed=VECTOR),
    "image_too_small": spaces.Box(0, 255, (3, 3, 1), np.uint8),
    "text": spaces.Text(5),
}
ACTIONS: dict[str, gymnasium.Space[Any]] = {
    "discrete": spaces.Discrete(3),
    "discrete_from_minus_seven": spaces.Discrete(3, start=-7),
    "multi_discrete": spaces.MultiDiscrete([3, 2], start=[5, -3]),
    "multi_discrete_2d": spaces.MultiDiscrete([[2, 3], [4, 2]]),
    "multi_binary": spaces.MultiBinary(3),
    "box": spaces.Box(-2.0, 1.0, (2,), np.float32),
    "box_2d": spaces.Box(-1.0, 1.0, (2, 2), np.float32),
    "box_float64": spaces.Box(-0.1, 0.3, (2,), np.float64),  # bounds that float32 does not have
    "box_unbounded": spaces.Box(-np.inf, np.inf, (2,), np.float32),
    "box_of_whole_numbers": spaces.Box(0, 5, (2,), np.int64),
    "dict": spaces.Dict(grip=spaces.Discrete(2)),
}
SEVERAL = {"multi_discrete", "multi_discrete_2d", "multi_binary"}
# What LoomRL's own refuse, of actions and of observations: nothing more, so that none is lost unnoticed.
REFUSED_ACTIONS = {
    "grpo": set(ACTIONS),  # they read and write texts: tests/language/algorithms/test_learning.py
    "token_ppo": set(ACTIONS),
    "ppo": {"box_of_whole_numbers", "dict"},
    "ppo_lagrangian": {"box_of_whole_numbers", "dict"},
    "recurrent_ppo": {"box_of_whole_numbers", "dict"},
    "sac": {"box_of_whole_numbers", "dict", "box_unbounded", *SEVERAL},
    "dqn": set(ACTIONS) - {"discrete", "discrete_from_minus_seven"},
}
REFUSED_OBSERVATIONS = {
    "grpo": set(OBSERVATIONS),
    "token_ppo": set(OBSERVATIONS),
    "ppo": {"image_too_small", "text"},
    "ppo_lagrangian": {"image_too_small", "text"},
    "recurrent_ppo": {"image_too_small", "text"},
    "sac": {"image_too_small", "text", "image", "image_in_dict"},
    "dqn": {"image_too_small", "text"},
}


# --- environments -----------------------------------------------------------------------------------------------

Draw = Callable[[np.random.Generator], float]


class Anything(gymnasium.Env[Any, Any]):
    """Random observations of any space; every action must be an element of the other. Episodes of 3 to 6 steps end
    by terminating and by truncation."""

    def __init__(
        self,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        reward: Draw = lambda rng: float(rng.standard_normal()),
        scale: float = 1.0,
    ) -> None:
        self.observation_space, self.action_space = copy.deepcopy(observation_space), copy.deepcopy(action_space)
        self._reward, self._scale = reward, scale

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._left = int(self.np_random.integers(3, 7))
        self._truncates = bool(self.np_random.integers(2))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is no element of {self.action_space}"
        self._left -= 1
        over = self._left == 0
        reward = self._reward(self.np_random)
        return self._observe(), reward, over and not self._truncates, over and self._truncates, self._told()

    def _told(self) -> dict[str, Any]:
        return {"cost": float(self._left % 2)}

    def _observe(self) -> Any:
        sample = self.observation_space.sample()
        return sample if self._scale == 1.0 else (self._scale * sample).astype(sample.dtype)


# --- cases ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """An algorithm on an engine (None: it has no choice) with an observation and an action space."""

    algorithm: str
    engine: str | None
    observation: str = "box"
    action: str = "discrete"
    varied: bool = False  # with its VARIANTS

    def __str__(self) -> str:
        parts = (self.algorithm, self.engine, self.observation, self.action, "varied" if self.varied else None)
        return "-".join(part for part in parts if part)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.algorithm, self.observation, self.action

    @property
    def plugin(self) -> LoadedPlugin:
        return ALGORITHMS[self.algorithm]

    @property
    def observation_space(self) -> gymnasium.Space[Any]:
        """As the life cycle hands it to algorithms: one array."""
        return as_one_array(Anything(OBSERVATIONS[self.observation], self.action_space)).observation_space

    @property
    def action_space(self) -> gymnasium.Space[Any]:
        return ACTIONS[self.action]

    def config(self, **values: Any) -> Section:
        chosen = SMALL | (VARIANTS.get(self.algorithm, {}) if self.varied else {})
        chosen |= {"engine": self.engine} if self.engine else {}
        return small_config(self.plugin, chosen | values)

    def build(self, *, seed: int = 1, **values: Any) -> Algorithm:
        spaces_ = self.observation_space, self.action_space
        return self.plugin.build(self.config(**values), *spaces_, seed=seed, total_env_steps=10_000)

    def environments(self, num_envs: int, **how: Any) -> SyncVectorEnv:
        def make() -> gymnasium.Env[Any, Any]:
            return as_one_array(Anything(OBSERVATIONS[self.observation], self.action_space, **how))

        return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.SAME_STEP)


def small_config(plugin: LoadedPlugin, values: dict[str, Any]) -> Section:
    """Those of the values that the algorithm knows. One that means something else by them keeps its defaults."""
    known = {name: value for name, value in values.items() if name in plugin.Config.model_fields}
    try:
        return plugin.Config(**known)
    except ValidationError:
        if plugin.NAME in VARIANTS:
            raise
        return plugin.Config()


def engines(algorithm: str, observation: str, action: str) -> list[str | None]:
    """Those that can learn from two spaces; of an algorithm that has no choice, None."""
    plugin = ALGORITHMS[algorithm]
    if not plugin.has_engines or not accepts(algorithm, observation, action):
        return [None]
    case = Case(algorithm, None, observation, action)
    return sorted({"torch", plugin.choose_engine(case.config(), case.observation_space, case.action_space)})


def accepts(algorithm: str, observation: str, action: str) -> bool:
    """Of LoomRL's own, whether it must; of others, whether it does."""
    if algorithm in REFUSED_ACTIONS:
        return action not in REFUSED_ACTIONS[algorithm] and observation not in REFUSED_OBSERVATIONS[algorithm]
    try:
        Case(algorithm, None, observation, action).build()
    except ConfigError:
        return False
    return True


def engines_of(algorithm: str) -> set[str | None]:
    """All that an algorithm has."""
    return {engine for action in usual_actions(algorithm) for engine in engines(algorithm, "box", action)}


def usual_actions(algorithm: str) -> list[str]:
    """Of choices and of numbers, whichever an algorithm takes; else the first it takes at all."""
    names = sorted(ACTIONS, key=lambda name: name not in {"discrete", "box"})
    taken = [name for name in names if accepts(algorithm, "box", name)]
    return [name for name in taken if name in {"discrete", "box"}] or taken[:1]


def usual_cases() -> list[Case]:
    """Every algorithm on each of its engines, with what it usually is given to do."""
    return [
        Case(algorithm, engine, action=action, varied=varied)
        for algorithm in sorted(ALGORITHMS)
        for action in usual_actions(algorithm)
        for engine in engines(algorithm, "box", action)
        for varied in ([False, True] if algorithm in VARIANTS else [False])
    ]


def space_cases() -> list[Case]:
    """Every algorithm with each action space and each observation space there is."""
    found: list[Case] = []
    for algorithm in sorted(ALGORITHMS):
        usual = (usual_actions(algorithm) or ["discrete"])[-1]
        pairs = [("box", action) for action in ACTIONS] + [(name, usual) for name in OBSERVATIONS if name != "box"]
        found += [Case(algorithm, engine, *pair) for pair in pairs for engine in engines(algorithm, *pair)]
    return found
