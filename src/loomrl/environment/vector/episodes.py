"""Episodes of environments whose state cannot be read: what saves one is its seed and the actions taken in it.

Every episode gets a seed of its own, so that the actions of the one under way are all there is to keep. To go on with
it, the environment is reset with that seed and takes these actions again. Shapes: B environments, at most L actions.
"""

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from numpy.typing import NDArray

from loomrl.environment.seeds import FIRST_TRAINING_SEED
from loomrl.environment.vector.arguments import demand_actions
from loomrl.environment.vector.infos import UncutInfos
from loomrl.environment.vector.states import State

_FIRST_ROOM = 64  # actions


def episode_seed(first: int, number: int) -> int:
    """The seed of an environment's episode: `first` for number 0, for the others one that training may use."""
    if number == 0:
        return first
    (word,) = np.random.SeedSequence([first, number]).generate_state(1)
    return FIRST_TRAINING_SEED + int(word) % FIRST_TRAINING_SEED


class SeededEpisodes(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Seeds every episode: a reset with a seed begins a series of them, a reset without one the next of the series.

    `episode_state` is what a saved episode consists of. A vector resumes it by assigning commands to `resume_command`,
    which Gymnasium's vectors can do for each environment: ("begin", seed, number) begins the episode again, ("take",
    action) takes one of its actions, and ("expect", observation) comes last: where the environment shows another
    observation by then, the next episode of the series begins. None changes nothing.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        self._first, self._number = 0, -1
        self._actions = np.zeros((0, *(env.action_space.shape or ())), env.action_space.dtype)  # with room for more
        self._num_actions = 0
        self._last: tuple[Any, Any, bool, bool, dict[str, Any]] = (
            None,
            0.0,
            False,
            False,
            {},
        )  # what the last step, or reset, gave

    @property
    def episode_state(self) -> tuple[int, int, NDArray[Any], NDArray[Any]]:
        """The series' seed, the number of its episode under way, the actions taken in it, and what is seen now."""
        return self._first, self._number, self._actions[: self._num_actions], np.asarray(self._last[0])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a series of episodes with a seed, or, without one, its next episode.

        Returns what the environment's reset returns.
        """
        if seed is None:
            self._number += 1
        else:
            self._first, self._number = seed, 0
        self._num_actions = 0
        obs, info = self.env.reset(seed=episode_seed(self._first, self._number), options=options)
        self._last = obs, 0.0, False, False, info
        return obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """What the environment's step returns; records the action for the episode's log."""
        try:
            self._actions[self._num_actions] = action
        except IndexError:
            self._make_room(np.asarray(action))
        self._num_actions += 1
        self._last = self.env.step(action)
        return self._last

    def _make_room(self, action: NDArray[Any]) -> None:
        grown = np.zeros((max(_FIRST_ROOM, 2 * self._num_actions), *action.shape), action.dtype)
        grown[: self._num_actions] = self._actions[: self._num_actions]
        grown[self._num_actions] = action
        self._actions = grown

    @property
    def resume_command(self) -> None:
        """Always None; assigning a command to it moves the episode on: see the class."""

    @resume_command.setter
    def resume_command(self, command: tuple[Any, ...] | None) -> None:
        if command is not None:
            self._resume(*command)

    def _resume(self, command: str, *values: Any) -> None:
        if command == "begin":
            self._first, self._number = values[0], values[1] - 1
            self.reset()
        elif command == "take":
            if not self._is_over:
                self.step(values[0])
        elif self._is_over or not np.array_equal(self._last[0], values[0]):
            self.reset()

    @property
    def _is_over(self) -> bool:
        _, _, terminated, truncated, _ = self._last
        return bool(terminated or truncated)


class SavedByActions:
    """A vector of `SeededEpisodes` that can be saved, and goes on from what was."""

    get_attr: Any  # the vector's: an attribute of each environment
    set_attr: Any  # the vector's: sets one, a value for each environment

    def state_dict(self) -> State:
        """Of each environment the series' seed `first`, the `number` of the episode, its actions and what is `seen`.

        `num_actions` (B,) says how many of `actions` (B, L, *action) were taken, after which `seen` is (B, *obs).
        """
        first, number, actions, seen = zip(*self.get_attr("episode_state"), strict=True)
        num_actions = [len(taken) for taken in actions]
        padded = np.zeros((len(actions), max(num_actions), *actions[0].shape[1:]), actions[0].dtype)  # (B, L, *action)
        for row, taken in zip(padded, actions, strict=True):
            row[: len(taken)] = taken
        numbers = {"first": first, "number": number, "num_actions": num_actions}
        return {name: np.array(values, np.int64) for name, values in numbers.items()} | {
            "actions": padded,
            "seen": np.stack(seen),
        }

    def load_state_dict(self, state: State) -> NDArray[Any]:
        """Go on from `state_dict()`; returns what is seen, (B, *obs).

        An environment that does not see what it saw then, after the same actions, begins the next episode.
        """
        begun = zip(state["first"].tolist(), state["number"].tolist(), strict=True)
        self.set_attr("resume_command", [("begin", *episode) for episode in begun])
        num_actions = state["num_actions"].tolist()
        for step in range(max(num_actions)):
            left = [step < number for number in num_actions]
            taken = state["actions"][:, step]
            self.set_attr(
                "resume_command", [("take", one) if more else None for one, more in zip(taken, left, strict=True)]
            )
        self.set_attr("resume_command", [("expect", seen) for seen in state["seen"]])
        return np.stack([seen for *_, seen in self.get_attr("episode_state")])


class SerialVectorEnv(UncutInfos, SyncVectorEnv):
    """Gymnasium's `SyncVectorEnv`, one environment after the other in this process, with infos that are not cut, and
    actions that are checked before any environment sees one."""

    def __init__(self, name: str, makers: Sequence[Callable[[], gymnasium.Env[Any, Any]]], mode: AutoresetMode) -> None:
        self._name = name
        super().__init__(makers, autoreset_mode=mode)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all environments: observations (B, *obs), rewards, terminated, truncated (B,), and the info.

        Raises:
            EnvironmentFault: for actions of another shape or kind, and when an environment fails.
        """
        demand_actions(actions, self.single_action_space, self.num_envs, self._name)
        return super().step(actions)


class ResumableSyncVectorEnv(SavedByActions, SerialVectorEnv):
    """A `SerialVectorEnv`, one environment after the other in this process, with episodes that can be saved."""
