"""The steps of many episodes as they happen, kept in whole arrays: no loop over environments in a step."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loomrl.environment.quantities import COST
from loomrl.errors import ConfigError, EnvironmentFault
from loomrl.types import Episode, FloatArray

_FIRST_CAPACITY = 128  # steps
_IDLE = -1


class EpisodeLog:
    """Records B environments step by step and cuts episodes out of it.

    An environment is idle, and its steps are dropped, until `begin` gives it an episode. An episode has at most
    `longest` steps.
    """

    def __init__(self, num_envs: int, longest: int) -> None:
        self._longest = longest
        self._position = np.full(num_envs, _IDLE)  # (B,) which of the wanted episodes runs here
        self._seed = np.zeros(num_envs, np.int64)
        self._start = np.zeros(num_envs, np.int64)  # row of the episode's first step
        self._size = 0  # rows in use
        self._obs = _Rows(num_envs)
        self._action = _Rows(num_envs)
        self._reward = _Rows(num_envs)
        self._info: dict[str, tuple[_Rows, _Rows]] = {}  # values, and where the environment gave one

    def begin(self, index: int, position: int | None, seed: int) -> None:
        """An episode starts in environment `index` with the next step. `position` is its place among those that are
        wanted, which `end` tells; None leaves the environment idle."""
        self._position[index] = _IDLE if position is None else position
        self._seed[index], self._start[index] = seed, self._size

    def add(self, obs: NDArray[Any], action: NDArray[Any], reward: FloatArray, info: Mapping[str, Any]) -> None:
        """Record a step of all environments: what was observed before it (B, *obs), done (B, *action) and earned (B,).

        Of `info`, as Gymnasium's vectors give it, the numbers are kept.

        Raises:
            EnvironmentFault: when an episode has gone on for `longest` steps; the step is not recorded.
        """
        running = np.flatnonzero(self._position != _IDLE)
        oldest = int(self._start[running].min(initial=self._size))
        if self._size - oldest >= self._longest:
            index = running[self._start[running].argmin()]
            raise EnvironmentFault(
                f"the episode with seed {self._seed[index]} did not end within {self._longest} steps; "
                "set environment.max_episode_steps"
            )
        if self._size >= _FIRST_CAPACITY and oldest * 2 >= self._size:
            self._forget(oldest)
        row = self._size
        self._obs.write(row, obs)
        self._action.write(row, action)
        self._reward.write(row, reward)
        for name, (values, present) in _numbers(info).items():
            kept, given = self._info.setdefault(name, (_Rows(len(obs), np.nan), _Rows(len(obs), False)))
            kept.write(row, np.where(present, values, np.nan).astype(np.float64))
            given.write(row, present)
        self._size += 1

    def _forget(self, count: int) -> None:
        """Drop rows that belong to no running episode."""
        told = [rows for pair in self._info.values() for rows in pair]
        for rows in (self._obs, self._action, self._reward, *told):
            rows.forget(count, self._size)
        self._start -= count
        self._size -= count

    def end(
        self, ended: NDArray[np.bool_], next_obs: NDArray[Any], terminated: NDArray[np.bool_],
        truncated: NDArray[np.bool_], take: Callable[[int, Episode], None],
    ) -> None:  # fmt: skip
        """Tell `take` the position and the episode of every one that ended with the last step; it is idle then.

        `ended`, `terminated` and `truncated` are (B,), `next_obs` the true successors, (B, *obs).

        Raises:
            EnvironmentFault: for an episode in which a cost is not finite.
        """
        for index in np.flatnonzero(ended & (self._position != _IDLE)).tolist():
            episode = self._cut(index, next_obs[index], bool(terminated[index]), bool(truncated[index]))
            position = int(self._position[index])
            self._position[index] = _IDLE
            take(position, episode)

    def _cut(self, index: int, last: NDArray[Any], terminated: bool, truncated: bool) -> Episode:
        rows = slice(int(self._start[index]), self._size)
        obs = self._obs.cut(rows, index)  # (L, *obs)
        info = {
            name: values.cut(rows, index)
            for name, (values, given) in sorted(self._info.items())
            if given.cut(rows, index).any()
        }
        if COST in info:
            told = self._info[COST][1].cut(rows, index)
            info[COST] = _costs(np.where(told, info[COST], 0.0), int(self._seed[index]))
        return Episode(
            seed=int(self._seed[index]),
            obs=obs,
            action=self._action.cut(rows, index),
            reward=self._reward.cut(rows, index).astype(np.float64),
            next_obs=np.concatenate([obs[1:], np.asarray(last)[None]]),  # (L, *obs)
            terminated=terminated,
            truncated=truncated,
            info=info,
            success=_success(info),
        )


class _Rows:
    """Rows (B, ...) that are written one after the other into an array (capacity, B, ...) that grows by doubling.

    `missing` is what rows hold that were passed over; without it every row is written.
    """

    def __init__(self, num_envs: int, missing: Any = None) -> None:
        self._num_envs, self._missing = num_envs, missing
        self._array: NDArray[Any] | None = None

    def write(self, row: int, values: NDArray[Any]) -> None:
        if self._array is None:
            self._array = self._new(max(_FIRST_CAPACITY, row + 1), values.shape[1:], values.dtype)
        if row >= len(self._array):
            grown = self._new(2 * row, self._array.shape[2:], self._array.dtype)
            grown[: len(self._array)] = self._array
            self._array = grown
        self._array[row] = values

    def _new(self, capacity: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        array = np.empty((capacity, self._num_envs, *shape), dtype)
        if self._missing is not None:
            array[:] = self._missing
        return array

    def cut(self, rows: slice, index: int) -> NDArray[Any]:
        assert self._array is not None
        length = rows.stop - rows.start
        found = self._array[rows, index].copy()
        if len(found) == length:
            return found
        rest = np.full((length - len(found), *found.shape[1:]), self._missing, found.dtype)  # nothing was written since
        return np.concatenate([found, rest])

    def forget(self, count: int, size: int) -> None:
        if self._array is None:
            return
        kept = self._array[count:size].copy()
        self._array[: len(kept)] = kept
        if self._missing is not None:
            self._array[len(kept) :] = self._missing


def _numbers(info: Mapping[str, Any]) -> dict[str, tuple[NDArray[Any], NDArray[np.bool_]]]:
    """The scalar numeric entries of a vectorised info, with where they were set in this step."""
    found = {}
    for name, values in info.items():
        present = info.get(f"_{name}")
        if name.startswith("_") or present is None or not isinstance(values, np.ndarray):
            continue
        if values.ndim == 1 and values.dtype.kind in "bifu":
            found[name] = (values, np.asarray(present, np.bool_))
    return found


def _costs(cost: FloatArray, seed: int) -> FloatArray:
    """Raises `EnvironmentFault` for one that is not finite."""
    if not np.isfinite(cost).all():
        step = int(np.flatnonzero(~np.isfinite(cost))[0])
        raise EnvironmentFault(
            f'info["cost"] is {cost[step]} in step {step} of the episode with seed {seed}; it must be finite'
        )
    return cost


def _success(info: Mapping[str, FloatArray]) -> bool | None:
    """The environment's own verdict at the last step, by the two keys in use: `is_success` and `success`."""
    for name in ("is_success", "success"):
        if name in info and not np.isnan(info[name][-1]):
            return bool(info[name][-1])
    return None


def succeeded(
    verdict: bool | None, episode_return: float, success_return: float | None, reward_threshold: float | None
) -> bool | None:
    """Whether an episode counts as a success.

    By the configured return if there is one, else by the environment's own `verdict`, else by its reward threshold;
    None where none of them exists.
    """
    if success_return is None and verdict is not None:
        return verdict
    threshold = reward_threshold if success_return is None else success_return
    return None if threshold is None else episode_return >= threshold


def summed(key: str, episodes: Sequence[Episode], place: str) -> list[float]:
    """The sum of a number of the infos over each episode: 0 in one that never told it, if another one did.

    Raises:
        ConfigError: naming `place`, when none told it.
    """
    if all(key not in episode.info for episode in episodes):
        raise ConfigError(
            f"{place}: the environment's info has no numeric key {key!r}; its keys: "
            f"{', '.join(sorted(episodes[0].info)) or 'none'}"
        )
    return [float(np.nansum(episode.info.get(key, 0.0))) for episode in episodes]
