"""Environments that die, hang or emit NaN in a chosen call, importable by worker processes."""

import multiprocessing
import os
import signal
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Unreliable(gymnasium.Env[np.ndarray, int]):
    """Does `what` in step 3 of an environment whose seed is odd: "exit", "kill", "hang", "nan", "raise", "memory" (asks
    for more than there is) or nothing.

    With `where`, in that call of worker 1: "__init__", its second "__init__" in one process, or "close". "ignore" is to
    hang, deaf to SIGTERM; "differ" is to have other actions. `renewals` counts what was made before in this process.
    """

    renewals = -1

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def __init__(self, what: str = "", where: str = "step") -> None:
        self.what, self.where = what, where
        Unreliable.renewals += 1
        self._fail_in("second __init__" if Unreliable.renewals else "__init__")
        self.steps, self.odd = 0, False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.odd, self.steps = bool(seed and seed % 2), 0
        return np.zeros(2, np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.steps += 1
        if self.odd and self.steps == 3 and self.where == "step":
            self._fail()
        value = np.nan if self.odd and self.steps == 3 and self.what == "nan" else self.steps
        return np.array([value, action], np.float32), 1.0, False, False, {}

    def close(self) -> None:
        self._fail_in("close")

    def _fail_in(self, where: str) -> None:
        if where == self.where and multiprocessing.current_process().name.endswith("-1"):
            self._fail()

    def _fail(self) -> None:
        if self.what == "differ":
            self.action_space = spaces.Discrete(3)
        if self.what == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(600)
        if self.what == "exit":
            os._exit(7)
        if self.what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.what == "hang":
            time.sleep(600)
        if self.what == "raise":
            raise RuntimeError("the valve is stuck")
        if self.what == "memory":
            np.zeros(2**62, np.uint8)  # more than there is anywhere


class Aging(Unreliable):
    """Pays in its only step how often this instance was reset, as no environment should."""

    resets = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        self.resets += 1
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        return np.array([action, 0], np.float32), float(self.resets), True, False, {}


def unreliable_vector(num_envs: int, what: str = "") -> gymnasium.vector.VectorEnv:
    """What a registration's `vector_entry_point` may name: it restarts in the step that ends an episode."""
    mode = gymnasium.vector.AutoresetMode.SAME_STEP
    return gymnasium.vector.SyncVectorEnv([lambda: Unreliable(what)] * num_envs, autoreset_mode=mode)


class Mishaps(gymnasium.Env[np.ndarray, int]):
    """A walk to the chosen side. `mishaps`, those of `Unreliable`, happen once each, in the step of all environments of
    a process that they name: a file in `folder` tells whether one has. The process whose id stands in its file `spared`
    has none.
    """

    observation_space = spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = spaces.Discrete(2)
    num_steps = 0  # in this process

    def __init__(self, folder: str, mishaps: dict[str, int]) -> None:
        self.folder, self.mishaps = folder, mishaps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.place = self.np_random.normal()
        return np.array([self.place, 0.0], np.float32), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        Mishaps.num_steps += 1
        for what, step in self.mishaps.items():
            if Mishaps.num_steps == step:
                self._happen(what)
        self.place += 0.1 if action else -0.1
        return np.array([self.place, self.place**2], np.float32), -abs(self.place), False, False, {}

    def _happen(self, what: str) -> None:
        if not self._is_spared() and self._is_first(what):
            Unreliable(what)._fail()

    def _is_spared(self) -> bool:
        try:
            with open(os.path.join(self.folder, "spared")) as file:
                return file.read() == str(os.getpid())
        except FileNotFoundError:
            return False

    def _is_first(self, what: str) -> bool:
        try:
            open(os.path.join(self.folder, what), "x").close()
        except FileExistsError:
            return False
        return True


class Sluggish(Mishaps):
    """A walk that takes its time in one process, the first to take a step after `folder` has a file named `now`."""

    sleeps = False  # in this process

    def __init__(self, folder: str) -> None:
        super().__init__(folder, {})

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        if not Sluggish.sleeps and os.path.exists(os.path.join(self.folder, "now")):
            Sluggish.sleeps = self._is_first("slow")
        if Sluggish.sleeps:
            time.sleep(0.02)
        return super().step(action)
