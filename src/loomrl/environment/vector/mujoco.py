"""MuJoCo environments stepped natively on several threads, each with simulation data of its own.

One compiled model serves all environments. A step writes the actions, has the threads advance the simulations (MuJoCo
releases the interpreter's lock there), and computes observations, rewards and ends for the whole batch. The solver's
warm start stays in each environment's data, so the steps are Gymnasium's; they do not depend on the number of threads.
`mujoco.rollout` would step them from one call, but forgets the warm start from call to call.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from loomrl.environment.vector.arguments import Options, Seeds, check_actions, reset_arguments, show_like
from loomrl.environment.vector.by_module import written_for
from loomrl.environment.vector.recipe import Recipe
from loomrl.environment.vector.results import StepResult, check_finite, place
from loomrl.environment.vector.robots.base import Info, Robot
from loomrl.environment.vector.states import State, generator_words, generators_of
from loomrl.errors import EnvironmentFault
from loomrl.system.processors import num_processors
from loomrl.types import FloatArray

IS_EXACT = True  # the same bits as Gymnasium's environments, proved for each snapshot before it is chosen
_STATE = int(mujoco.mjtState.mjSTATE_INTEGRATION)  # all that the next step depends on
_FEWEST = 8  # environments for which a further thread pays
_AFTER_CONSTRAINTS = {"cacc", "cfrc_int", "cfrc_ext"}  # computed by `mj_rnePostConstraint` only


def create(recipe: Recipe, num_envs: int, mode: AutoresetMode) -> "MujocoVectorEnv | None":
    """These environments, or None where what they observe and reward is not known. Raises what `construct` raises."""
    definition = recipe.definition
    robot = written_for(definition.source.entry_point, "robots", Robot)
    if robot is None:
        return None
    return MujocoVectorEnv(recipe.make(), robot, num_envs, mode, definition.max_episode_steps, definition.name)


class MujocoVectorEnv(VectorEnv[FloatArray, NDArray[Any], NDArray[Any]]):
    """B simulations of one model. Observations (B, O) are float64, as Gymnasium's are."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        robot: Robot,
        num_envs: int,
        mode: AutoresetMode,
        max_episode_steps: int | None,
        name: str,
    ) -> None:
        """Take model, spaces and settings from `env`, one constructed environment, and keep it."""
        show_like(self, env, num_envs, mode)
        self._robot, self._name = robot, name
        self._restart = mode is AutoresetMode.SAME_STEP
        self._env, self._bare = env, env.unwrapped
        self._limit = np.inf if max_episode_steps is None else max_episode_steps
        self._model: Any = self._bare.model  # type: ignore[attr-defined]
        self._frame_skip: int = self._bare.frame_skip  # type: ignore[attr-defined]
        self._data = [mujoco.MjData(self._model) for _ in range(num_envs)]
        self._controls = [data.ctrl for data in self._data]
        self._views = {name: [getattr(data, name) for data in self._data] for name in robot.fields}
        self._after_constraints = not _AFTER_CONSTRAINTS.isdisjoint(robot.fields)
        self._now: dict[str, FloatArray] = self._read()
        self._elapsed = np.zeros(num_envs, np.int64)
        self._ended = np.ones(num_envs, np.bool_)  # those that must be reset before they are stepped
        self._rngs: list[np.random.Generator | None] = [None] * num_envs
        threads = min(num_processors(), max(1, num_envs // _FEWEST))
        bounds = np.linspace(0, num_envs, threads + 1).astype(int).tolist()
        self._shares = [range(low, high) for low, high in zip(bounds, bounds[1:], strict=False)]
        self._pool = ThreadPoolExecutor(threads - 1, "mujoco") if threads > 1 else None

    # --- simulation ---

    def _read(self) -> dict[str, FloatArray]:
        return {name: np.stack(views) for name, views in self._views.items()}

    def _advance(self, share: range) -> None:
        step, model, frames = mujoco.mj_step, self._model, self._frame_skip
        for index in share:
            step(model, self._data[index], nstep=frames)
            if self._after_constraints:
                mujoco.mj_rnePostConstraint(model, self._data[index])

    def _advance_all(self) -> None:
        waiting = [self._pool.submit(self._advance, share) for share in self._shares[1:]] if self._pool else []
        self._advance(self._shares[0])
        for future in waiting:
            future.result()

    def _begin(self, index: int, seed: int | None) -> None:
        rng = self._rngs[index]
        if seed is not None or rng is None:
            rng, _ = seeding.np_random(seed)
            self._rngs[index] = rng
        data = self._data[index]
        mujoco.mj_resetData(self._model, data)
        data.qpos[:], data.qvel[:] = self._robot.reset(self._bare, rng)
        mujoco.mj_forward(self._model, data)
        for name, views in self._views.items():
            self._now[name][index] = views[index]

    # --- the interface ---

    def reset(self, *, seed: Seeds = None, options: Options = None) -> tuple[FloatArray, dict[str, Any]]:
        """Begin episodes, all of them or those of `options["reset_mask"]`; environment i is seeded with `seed + i`.

        Returns what all environments show, (B, O), and the info of those that were reset.

        Raises:
            ConfigError: for other options, or a mask or list of seeds of another length.
        """
        seeds, mask = reset_arguments(self.num_envs, seed, options)
        self._now = {name: values.copy() for name, values in self._now.items()}  # handed out in infos
        for index in np.flatnonzero(mask).tolist():
            self._begin(index, seeds[index])
        self._elapsed[mask] = 0
        self._ended[mask] = False
        info: dict[str, Any] = {}
        _add(info, self._robot.reset_info(self._bare, self._now), mask)
        return self._robot.observe(self._bare, self._now), info

    def step(self, actions: NDArray[Any]) -> StepResult:
        """Step all environments: observations (B, O), rewards, terminated, truncated (B,), and the info.

        With autoreset, where an episode ended, the info has `final_obs` (B, O): the true successors of all
        environments, those whose episode goes on included. `_final_obs` (B,) says where one ended.

        Raises:
            EnvironmentFault: for an action that is not finite or has the wrong shape, a value that is not finite,
                a missing reset, an error in MuJoCo.
        """
        given = check_actions(actions, self.single_action_space, self.num_envs, self._name)
        self._check(given)
        for control, action in zip(self._controls, given, strict=True):
            control[:] = action
        try:
            self._advance_all()
        except mujoco.FatalError as error:
            raise EnvironmentFault(f"environment {self._name!r}: MuJoCo failed: {error}") from error
        before, self._now = self._now, self._read()
        self._elapsed += 1
        obs = self._robot.observe(self._bare, self._now)
        outcome = self._robot.outcome(self._bare, before, self._now, given)
        check_finite(obs, outcome.reward, self.single_observation_space, self._name, self._elapsed)
        truncated = self._elapsed >= self._limit
        ended = outcome.terminated | truncated
        info: dict[str, Any] = {}
        if self._restart and ended.any():
            obs = self._restart_ended(ended, obs, outcome.info, info)
        else:
            self._ended |= ended
            _add(info, outcome.info, np.ones(self.num_envs, np.bool_))
        return obs, outcome.reward, outcome.terminated, truncated, info

    def _restart_ended(
        self, ended: NDArray[np.bool_], final_obs: FloatArray, step_info: Info, info: dict[str, Any]
    ) -> FloatArray:
        """Begin new episodes; the info is then as if each environment had been reset by itself."""
        info["final_obs"], info["_final_obs"] = final_obs, ended
        info["final_info"], info["_final_info"] = {}, ended
        _add(info["final_info"], step_info, ended)
        _add(info, step_info, ~ended)
        self._now = {name: values.copy() for name, values in self._now.items()}
        for index in np.flatnonzero(ended).tolist():
            self._begin(index, None)
        self._elapsed[ended] = 0
        for key, values in self._robot.reset_info(self._bare, self._now).items():
            info[key] = np.where(_along(ended, values), values, info.get(key, values))
            info[f"_{key}"] = np.ones(self.num_envs, np.bool_)
        return self._robot.observe(self._bare, self._now)

    def renew(self) -> None:
        """Make the environments as newly made ones are: a reset must follow, which without seeds is a random one."""
        self._rngs = [None] * self.num_envs
        self._ended[:] = True

    def state_dict(self) -> State:
        """All that going on to the bit needs: MuJoCo's state with time and warm start, what was read of it after the
        last step, steps so far and generators.

        Raises:
            EnvironmentFault: before the first reset.
        """
        words = generator_words(self._rngs, self._name)
        states = np.empty((self.num_envs, mujoco.mj_stateSize(self._model, _STATE)))
        for row, data in zip(states, self._data, strict=True):
            mujoco.mj_getState(self._model, data, row, _STATE)
        now = {f"now.{name}": values.copy() for name, values in self._now.items()}
        return {
            "states": states,
            **now,
            "elapsed": self._elapsed.copy(),
            "ended": self._ended.copy(),
            "generators": words,
        }

    def load_state_dict(self, state: State) -> FloatArray:
        """Go on from `state_dict()` of as many; returns what is observed, (B, O)."""
        for row, data in zip(state["states"], self._data, strict=True):
            mujoco.mj_resetData(self._model, data)
            mujoco.mj_setState(self._model, data, row, _STATE)
        self._now = {name: state[f"now.{name}"].copy() for name in self._views}
        self._elapsed, self._ended = state["elapsed"].copy(), state["ended"].copy()
        self._rngs = [*generators_of(state["generators"])]
        return self._robot.observe(self._bare, self._now)

    def close_extras(self, **kwargs: Any) -> None:  # noqa: ARG002
        """End the threads and close the environment the settings came from."""
        if self._pool is not None:
            self._pool.shutdown()
        self._env.close()

    # --- faults ---

    def _check(self, actions: NDArray[Any]) -> None:
        if self._ended.any():
            index = int(np.flatnonzero(self._ended)[0])
            raise EnvironmentFault(f"{place(self._name, index, self._elapsed)} must be reset before it is stepped")
        if not np.isfinite(actions).all():
            index = int(np.argwhere(~np.isfinite(actions))[0][0])
            raise EnvironmentFault(
                f"{place(self._name, index, self._elapsed)}: action {actions[index]!r} is not finite"
            )


def _add(info: dict[str, Any], entries: Info, mask: NDArray[np.bool_]) -> None:
    """Entries as `gymnasium.vector` writes them: the values, zero where `mask` is not set, and `_key` the mask."""
    if not mask.any():
        return
    for key, values in entries.items():
        info[key] = np.where(_along(mask, values), values, np.zeros((), values.dtype))
        info[f"_{key}"] = mask.copy()


def _along(mask: NDArray[np.bool_], values: NDArray[Any]) -> NDArray[np.bool_]:
    return mask.reshape(-1, *[1] * (values.ndim - 1))
