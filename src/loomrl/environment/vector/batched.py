"""Environments as arrays: all of them are stepped by one compiled call, equal to Gymnasium's to the bit."""

from contextlib import closing
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from loomrl.environment.vector.arguments import Options, Seeds, check_actions, reset_arguments, show_like
from loomrl.environment.vector.dynamics import Dynamics, find_dynamics
from loomrl.environment.vector.kernels import BAD_ACTION, STEPPED, batch_kernels
from loomrl.environment.vector.recipe import Recipe
from loomrl.environment.vector.results import StepResult, not_finite, place
from loomrl.environment.vector.states import State, generator_words, generators_of
from loomrl.errors import EnvironmentFault
from loomrl.types import FloatArray

IS_EXACT = True  # the same bits as Gymnasium's environments, proved for each snapshot before it is chosen
ENDLESS = np.iinfo(np.int64).max
AHEAD = 64  # resets drawn at once for each environment


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> "BatchedVectorEnv | None":
    """These environments, or None where there are no compiled dynamics for them. Raises what `construct` raises."""
    definition = recipe.definition
    dynamics = find_dynamics(definition.source.entry_point)
    if dynamics is None:
        return None
    with closing(recipe.make()) as env:
        return BatchedVectorEnv(env, dynamics, num_envs, mode, definition.max_episode_steps, definition.name)


class BatchedVectorEnv(VectorEnv[NDArray[np.float32], NDArray[Any], NDArray[Any]]):
    """B environments in arrays, which a compiled rollout may step itself.

    `states` (B, S) float64; `elapsed` (B,) int64, steps of the episodes under way; `parameters` (P,) float64;
    `max_episode_steps`, `ENDLESS` without a limit. `pending` (B, K, S) float64 are resets that each environment's own
    generator has drawn ahead, `cursor` (B,) int64 says which is next. Whoever steps the environments takes
    `pending[i, cursor[i]]` for a new episode and adds one to `cursor[i]`; `refill(n)` before has n of them ready, and
    `refill()` after leaves what `step` needs.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        dynamics: Dynamics,
        num_envs: int,
        mode: AutoresetMode,
        max_episode_steps: int | None,
        name: str,
    ) -> None:
        """Take spaces and parameters from `env`, one constructed environment."""
        show_like(self, env, num_envs, mode)
        self.dynamics, self.name, self._restart = dynamics, name, mode is AutoresetMode.SAME_STEP
        self._num_actions = int(env.action_space.n) if isinstance(env.action_space, spaces.Discrete) else 0
        self.parameters = dynamics.parameters(env)
        self.max_episode_steps = ENDLESS if max_episode_steps is None else max_episode_steps
        self.states: FloatArray = np.zeros((num_envs, dynamics.state_dim))
        self.elapsed: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self.pending: FloatArray = np.zeros((num_envs, 0, dynamics.state_dim))
        self.cursor: NDArray[np.int64] = np.zeros(num_envs, np.int64)
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        self._ended = np.ones(num_envs, np.bool_)  # those that must be reset before they are stepped
        self._ready = False  # none of them
        self._step_batch, self._observe_batch = batch_kernels(dynamics)

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """Begin episodes, all of them or those of `options["reset_mask"]`; environment i is seeded with `seed + i`.

        Returns what all environments show, (B, O), and an empty info.

        Raises:
            ConfigError: for other options, or a mask or list of seeds of another length.
        """
        seeds, mask = reset_arguments(self.num_envs, seed, options)
        for index in np.flatnonzero(mask).tolist():
            self.states[index] = self._next_state(index, seeds[index])
        self.elapsed[mask] = 0
        self._ended[mask] = False
        self._ready = not self._ended.any()
        if self._restart and self._ready:
            self.refill()
        return self.observe(), {}

    def _next_state(self, index: int, seed: int | None) -> FloatArray:
        num_pending = self.pending.shape[1]
        rng = self._rngs[index]
        if seed is not None or rng is None:
            rng, _ = seeding.np_random(seed)
            self._rngs[index] = rng
            self.cursor[index] = num_pending  # those of the generator before
        elif self.cursor[index] < num_pending:
            self.cursor[index] += 1
            return np.asarray(self.pending[index, self.cursor[index] - 1])
        return np.asarray(self.dynamics.reset_states(rng, 1)[0])

    def observe(self) -> NDArray[np.float32]:
        """The observations (B, O) of the states as they are."""
        obs = np.empty((self.num_envs, self.dynamics.obs_dim), np.float32)
        self._observe_batch(self.states, obs)
        return obs

    def refill(self, minimum: int = 1) -> None:
        """Have at least `minimum` pending resets ready for every environment.

        Raises:
            EnvironmentFault: before the first `reset`.
        """
        size = self.pending.shape[1]
        if size < max(minimum, AHEAD):
            grown = np.zeros((self.num_envs, max(minimum, AHEAD), self.dynamics.state_dim))
            added = grown.shape[1] - size
            grown[:, added:] = self.pending
            self.pending, size = grown, size + added
            self.cursor += added
        for index in np.flatnonzero(self.cursor > size - minimum).tolist():
            used, row, rng = int(self.cursor[index]), self.pending[index], self._rngs[index]
            if rng is None:
                raise EnvironmentFault(f"environment {self.name!r}: call reset before refill")
            row[: size - used] = row[used:].copy()
            row[size - used :] = self.dynamics.reset_states(rng, used)
            self.cursor[index] = 0

    def step(self, actions: NDArray[Any]) -> StepResult:
        """Step all environments: observations (B, O), rewards, terminated, truncated (B,), and the info.

        With autoreset, where an episode ended, the info has `final_obs` (B, O): the true successors of all
        environments, those whose episode goes on included. `_final_obs` (B,) says where one ended.

        Raises:
            EnvironmentFault: for an action the space does not hold, or a missing reset: no environment was stepped; for
                a value that is not finite: those up to that environment were.
        """
        if not self._ready:
            which = f"number {int(np.flatnonzero(self._ended)[0])} of {self.num_envs}"
            raise EnvironmentFault(f"environment {self.name!r}: {which} must be reset before it is stepped")
        given = check_actions(actions, self.single_action_space, self.num_envs, self.name)
        obs = np.empty((self.num_envs, self.dynamics.obs_dim), np.float32)
        final_obs, reward = np.empty_like(obs), np.empty(self.num_envs)
        terminated, truncated = np.empty(self.num_envs, np.bool_), np.empty(self.num_envs, np.bool_)
        outcome, found = self._step_batch(
            self.states, given.astype(np.float64).reshape(self.num_envs, -1), self._num_actions, self.parameters,
            self.elapsed, self.max_episode_steps, self._restart, self.pending, self.cursor,
            obs, final_obs, reward, terminated, truncated,
        )  # fmt: skip
        if outcome != STEPPED:
            raise self._fault(outcome, found, given, final_obs, reward)
        info = self._end_episodes(terminated | truncated, final_obs) if found else {}
        return obs, reward, terminated, truncated, info

    def renew(self) -> None:
        """Make the environments as newly made ones are: a reset must follow, which without seeds is a random one."""
        self._rngs = [None] * self.num_envs
        self._ended, self._ready = np.ones(self.num_envs, np.bool_), False

    def state_dict(self) -> State:
        """All that going on to the bit needs, as arrays (B, ...): states, steps so far, resets drawn ahead, generators.

        Raises:
            EnvironmentFault: before the first reset.
        """
        return {
            "states": self.states.copy(),
            "elapsed": self.elapsed.copy(),
            "ended": self._ended.copy(),
            "pending": self.pending.copy(),
            "cursor": self.cursor.copy(),
            "generators": generator_words(self._rngs, self.name),
        }

    def load_state_dict(self, state: State) -> NDArray[np.float32]:
        """Go on from `state_dict()` of as many; returns what is observed, (B, O)."""
        self.states, self.elapsed = state["states"].copy(), state["elapsed"].copy()
        self.pending, self.cursor = state["pending"].copy(), state["cursor"].copy()
        self._rngs = [*generators_of(state["generators"])]
        self._ended = state["ended"].copy()
        self._ready = not self._ended.any()
        return self.observe()

    def _end_episodes(self, ended: NDArray[np.bool_], final_obs: NDArray[np.float32]) -> dict[str, Any]:
        if not self._restart:
            self._ended, self._ready = ended, False
            return {}
        self.refill()
        return {"final_obs": final_obs, "_final_obs": ended, "final_info": {}, "_final_info": ended}

    def _fault(
        self, outcome: int, index: int, actions: NDArray[Any], final_obs: NDArray[np.float32], reward: FloatArray
    ) -> EnvironmentFault:
        if outcome != BAD_ACTION:
            return not_finite(index, final_obs, reward, self.single_observation_space, self.name, self.elapsed)
        where = place(self.name, index, self.elapsed + 1)
        return EnvironmentFault(f"{where}: action {actions[index]!r} is not in {self.single_action_space}")
