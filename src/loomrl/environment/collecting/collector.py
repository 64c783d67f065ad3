"""Gathers experience: knows environments and an act function, nothing about algorithms.

`Collector` gathers a fixed number of steps for training, `run_episodes` whole episodes for validation, evaluation
and the safety gate. Shapes: T steps, B environments, L steps of one episode.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from loomrl.environment.collecting.episode_log import EpisodeLog
from loomrl.environment.quantities import COST
from loomrl.environment.vector.states import State
from loomrl.errors import ConfigError, EnvironmentFault, LoomRLError
from loomrl.types import Act, ActFunction, Episode, FloatArray, Trajectory

LONGEST_EPISODE = 1_000_000  # steps after which an episode counts as one that never ends
_SHOWN = 32  # numbers of an observation in a message; of more only the ends


class Collector:
    """Steps vectorised environments that restart in the step that ends an episode (`autoreset="same_step"` or
    "resumable"), with the actions that `act` chooses.

    Episodes go on from one `collect` to the next. `finished` holds (return, length) of every episode that ended
    since it was last cleared. Where `is_resumable`, they also go on in another collector, from `state_dict()`.
    `seed` is that of the first reset, which the first `collect` makes.

    Raises:
        ConfigError: for environments made with another autoreset.
    """

    def __init__(self, envs: VectorEnv[Any, Any, Any], seed: int, act: ActFunction) -> None:
        _demand(envs, AutoresetMode.SAME_STEP, "Collector")
        self.envs, self._act = envs, act
        self.finished: list[tuple[float, int]] = []
        self._seed = seed
        self._obs: NDArray[Any] | None = None  # (B, *obs)
        self._returns = np.zeros(envs.num_envs)
        self._lengths = np.zeros(envs.num_envs, np.int64)
        self._memory: dict[str, FloatArray] = {}  # a recurrent policy's, (B, M)

    def collect(self, num_steps: int, rng: np.random.Generator) -> Trajectory:
        """Take `num_steps` steps in every environment, and return them as arrays (T, B, ...).

        Raises:
            EnvironmentFault: when an episode ends without its final observation, or an environment breaks the API. The
                steps of this call are lost.
            LoomRLError: when an action is not finite; the environments do not see it.
        """
        if self._obs is None:
            self._obs, _ = self.envs.reset(seed=self._seed)
        buffers = _Buffers(num_steps, self._obs)
        for step in range(num_steps):
            chosen = self._act(self._obs, rng, **self._memory)
            demand_finite(chosen.action, self._obs)
            successor, reward, terminated, truncated, info = self.envs.step(chosen.action)
            ended = terminated | truncated
            true_next = _with_final_observations(successor, ended, info) if ended.any() else successor
            buffers.store(step, self._obs, chosen, reward, terminated, truncated, true_next)
            buffers.store_cost(step, ended, info)
            self._count(reward, ended)
            self._memory = _remembered(chosen, ended)
            self._obs = successor
        return buffers.trajectory()

    @property
    def is_resumable(self) -> bool:
        """Whether the environments can be saved, as those made with `autoreset="resumable"` mostly can."""
        return hasattr(self.envs, "state_dict")

    def state_dict(self) -> State:
        """The state of the environments and of their episodes so far: arrays (B, ...) by name.

        Only where `is_resumable`, and after the first `collect` (else an AssertionError).

        Raises:
            EnvironmentFault: when environments in processes do not answer.
        """
        assert self._obs is not None, "nothing was collected"
        episodes = {"obs": self._obs.copy(), "returns": self._returns.copy(), "lengths": self._lengths.copy()}
        envs: Any = self.envs
        return episodes | self._memory | {f"envs.{name}": values for name, values in envs.state_dict().items()}

    def load_state_dict(self, state: State) -> int:
        """Go on from `state_dict()` of as many environments; returns how many did not come back to where they were, and
        begin another episode.

        Raises:
            EnvironmentFault: when environments in processes do not answer.
        """
        envs: Any = self.envs
        inner = {name.removeprefix("envs."): value for name, value in state.items() if name.startswith("envs.")}
        self._obs = envs.load_state_dict(inner)
        lost = np.array([not np.array_equal(*pair) for pair in zip(self._obs, state["obs"], strict=True)])
        self._returns = np.where(lost, 0.0, state["returns"])
        self._lengths = np.where(lost, 0, state["lengths"])
        if "memory" in state:
            self._memory = {"memory": np.where(lost[:, None], 0, state["memory"])}
        return int(np.count_nonzero(lost))

    def _count(self, reward: FloatArray, ended: NDArray[np.bool_]) -> None:
        self._returns += reward
        self._lengths += 1
        if not ended.any():
            return
        self.finished.extend(zip(self._returns[ended].tolist(), self._lengths[ended].tolist(), strict=True))
        self._returns[ended] = 0.0
        self._lengths[ended] = 0


def demand_finite(action: NDArray[Any], obs: NDArray[Any]) -> None:
    """Raise `LoomRLError` for an action (B, *action) that is not finite, naming the first environment and its `obs`."""
    if action.dtype.kind == "f" and not np.isfinite(action).all():
        environment = int(np.argwhere(~np.isfinite(action))[0][0])
        seen = np.array2string(obs[environment].reshape(-1), separator=", ", threshold=_SHOWN, max_line_width=2**20)
        raise diverged(f"the action {action[environment].tolist()} for observation {seen}", environment)


def diverged(what: str, environment: int) -> LoomRLError:
    """The error of a policy that chose `what`, which is not finite, in the environment of this number. The caller
    raises it."""
    return LoomRLError(
        f"the policy chose {what} in environment {environment}: it has diverged; lower learning_rate, or look at the "
        "rewards and observations of the environment, and train it again"
    )


class _Buffers:
    """Arrays for T steps, made once; those of the act function are shaped by its first answer."""

    def __init__(self, num_steps: int, obs: NDArray[Any]) -> None:
        batch = (num_steps, obs.shape[0])
        self.obs = np.empty((num_steps, *obs.shape), obs.dtype)  # (T, B, *obs)
        self.next_obs = np.empty_like(self.obs)  # (T, B, *obs)
        self.reward = np.empty(batch, np.float64)  # (T, B)
        self.terminated = np.empty(batch, np.bool_)  # (T, B)
        self.truncated = np.empty(batch, np.bool_)  # (T, B)
        self.chosen: dict[str, NDArray[Any]] = {}  # (T, B, ...)
        self.cost: FloatArray | None = None  # (T, B)

    def store(
        self,
        step: int,
        obs: NDArray[Any],
        chosen: Act,
        reward: FloatArray,
        terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_],
        next_obs: NDArray[Any],
    ) -> None:
        self.obs[step] = obs
        self.next_obs[step] = next_obs
        self.reward[step] = reward
        self.terminated[step] = terminated
        self.truncated[step] = truncated
        values = {"action": chosen.action, "log_prob": chosen.log_prob, "value": chosen.value, **chosen.extras}
        for name, value in values.items():
            if value is None:
                continue
            if step == 0:
                self.chosen[name] = np.empty((len(self.obs), *value.shape), value.dtype)
            self.chosen[name][step] = value

    def store_cost(self, step: int, ended: NDArray[np.bool_], info: Mapping[str, Any]) -> None:
        """Keep what a step cost, as its info tells it; what is told nothing of costs nothing."""
        for told, mask in ((info, ~ended), (info.get("final_info", {}), ended)):
            if COST not in told:
                continue
            if self.cost is None:
                self.cost = np.zeros(self.reward.shape)
            values = told[COST]
            if values.shape != mask.shape or values.dtype.kind not in "bifu":
                raise EnvironmentFault(
                    f'info["cost"] is {values[mask][:1]}, of shape {values.shape[1:]} and type {values.dtype}; what a '
                    "step cost is one number"
                )
            self.cost[step, mask] = values[mask]
            if not np.isfinite(self.cost[step]).all():
                index = int(np.flatnonzero(~np.isfinite(self.cost[step]))[0])
                raise EnvironmentFault(
                    f'environment {index} gave info["cost"] = {self.cost[step, index]}; it must be finite'
                )

    def trajectory(self) -> Trajectory:
        extras = {name: value for name, value in self.chosen.items() if name != "action"}
        return Trajectory(
            obs=self.obs,
            action=self.chosen["action"],
            reward=self.reward,
            terminated=self.terminated,
            truncated=self.truncated,
            next_obs=self.next_obs,
            extras=extras,
            cost=self.cost,
        )


def _with_final_observations(
    successor: NDArray[Any], ended: NDArray[np.bool_], info: Mapping[str, Any]
) -> NDArray[Any]:
    """The true successors: where an episode ended, `successor` already shows the next episode's first observation.

    Gymnasium's vectors give an array of objects with those observations, LoomRL's own the successors of all.
    """
    if "final_obs" not in info:
        raise EnvironmentFault(
            "the vectorised environment ended an episode without `final_obs` in its info; make it with "
            'autoreset="same_step"'
        )
    final_obs: NDArray[Any] = info["final_obs"]
    if final_obs.dtype != object:
        return final_obs  # (B, *obs), the true successors of all environments
    true_next = successor.copy()
    for index in np.flatnonzero(ended):
        true_next[index] = final_obs[index]
    return true_next


def _remembered(chosen: Act, ended: NDArray[np.bool_]) -> dict[str, FloatArray]:
    """The argument for the next call of a recurrent act function: where an episode begins it remembers nothing."""
    if chosen.memory is None:
        return {}
    return {"memory": np.where(ended[:, None], 0, chosen.memory) if ended.any() else chosen.memory}


# --- whole episodes ---------------------------------------------------------------------------------------------


def run_episodes(
    envs: VectorEnv[Any, Any, Any],
    act: ActFunction,
    seeds: Sequence[int],
    rng: np.random.Generator,
    on_episode: Callable[[Episode], None] | None = None,
) -> list[Episode]:
    """Play one episode for each seed, in environments made with `autoreset="disabled"`.

    Returns the episodes in the order of their seeds. They do not depend on the number of environments where `act`
    decides each row by itself and draws nothing from `rng`, as `TrainedPolicy.act` does. `on_episode` is told every
    episode when it ends.

    Raises:
        ConfigError: for environments made with another autoreset.
        EnvironmentFault: when an episode does not end within a million steps, a cost is not finite, or an environment
            breaks the API.
        LoomRLError: when an action is not finite; the environments do not see it.
    """
    _demand(envs, AutoresetMode.DISABLED, "run_episodes")
    log = EpisodeLog(envs.num_envs, LONGEST_EPISODE)
    waiting = list(enumerate(seeds))[::-1]  # popped from the end
    episodes: dict[int, Episode] = {}

    def take(position: int, episode: Episode) -> None:
        episodes[position] = episode
        if on_episode:
            on_episode(episode)

    memory: dict[str, FloatArray] = {}
    obs = _start(envs, log, waiting, np.ones(envs.num_envs, np.bool_), None)
    while len(episodes) < len(seeds):
        chosen = act(obs, rng, **memory)
        demand_finite(chosen.action, obs)
        next_obs, reward, terminated, truncated, info = envs.step(chosen.action)
        log.add(obs, chosen.action, reward, info)
        ended = terminated | truncated
        memory = _remembered(chosen, ended)
        if ended.any():
            log.end(ended, next_obs, terminated, truncated, take)
            next_obs = _start(envs, log, waiting, ended, next_obs)
        obs = next_obs
    in_order = [episodes[position] for position in range(len(seeds))]
    return _with_costs(in_order)


def _with_costs(episodes: list[Episode]) -> list[Episode]:
    """Once costs are told at all, an episode that tells none costs nothing."""
    if all(COST not in episode.info for episode in episodes):
        return episodes
    return [replace(one, info={COST: np.zeros(one.length), **one.info}) for one in episodes]


def _start(
    envs: VectorEnv[Any, Any, Any],
    log: EpisodeLog,
    waiting: list[tuple[int, int]],
    mask: NDArray[np.bool_],
    obs: NDArray[Any] | None,
) -> NDArray[Any]:
    """Begin the next waiting episodes where `mask` is set; where none waits, an environment idles unrecorded."""
    reset_seeds: list[int | None] = [0] * envs.num_envs
    for index in np.flatnonzero(mask).tolist():
        position, seed = waiting.pop() if waiting else (None, 0)
        log.begin(index, position, seed)
        reset_seeds[index] = seed
    options = None if obs is None else {"reset_mask": mask}
    started: NDArray[Any]
    started, _ = envs.reset(seed=reset_seeds, options=options)  # type: ignore[arg-type]  # SyncVectorEnv takes lists
    return started


def _demand(envs: VectorEnv[Any, Any, Any], mode: AutoresetMode, user: str) -> None:
    found = (envs.metadata or {}).get("autoreset_mode")
    if found != mode:
        wanted = "same_step" if mode is AutoresetMode.SAME_STEP else "disabled"
        raise ConfigError(f'{user} needs environments made with autoreset="{wanted}", found {found}')
