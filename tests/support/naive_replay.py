"""Replay as simple as can be, every observation kept twice, and worlds to fill it from: what `loomrl.algorithms.replay`
is held against."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from loomrl.algorithms.replay.spec import ReplaySpec, Transitions
from loomrl.types import Trajectory


@dataclass
class World:
    """B environments with unique observations; episodes end, and segments break, at random."""

    spec: ReplaySpec
    rng: np.random.Generator
    terminate: float = 0.1
    truncate: float = 0.1
    cut: float = 0.2  # chance that a trajectory begins elsewhere in an environment
    padding: str = "reset"  # how the stack begins an episode: "reset", "zero" or "random" frames
    _next: int = 1
    _obs: NDArray | None = None

    def frame(self) -> NDArray:
        """A frame that was never seen before."""
        spec = self.spec
        shape = (spec.obs_shape[0] // spec.frame_stack, *spec.obs_shape[1:]) if spec.frame_stack > 1 else spec.obs_shape
        size = int(np.prod(shape))
        self._next += 1
        digits = self._next * 7 + np.arange(size)  # enough of them to be unique in every type
        return (digits % 251 if np.dtype(spec.obs_dtype).kind == "u" else digits).astype(spec.obs_dtype).reshape(shape)

    def first(self) -> NDArray:
        """An episode's first observation."""
        k = self.spec.frame_stack
        if k == 1:
            return self.frame()
        newest = self.frame()
        older = {"reset": newest, "zero": np.zeros_like(newest)}
        frames = [older.get(self.padding, self.frame()) for _ in range(k - 1)]
        return np.concatenate([*frames, newest])

    def successor(self, obs: NDArray) -> NDArray:
        """What follows an observation within an episode."""
        k = self.spec.frame_stack
        if k == 1:
            return self.frame()
        return np.concatenate([obs[len(obs) // k :], self.frame()])

    def trajectory(self, num_steps: int) -> Trajectory:
        """The next steps, as `Collector` gives them."""
        spec, rng, batch = self.spec, self.rng, (num_steps, self.spec.num_envs)
        if self._obs is None:
            self._obs = np.stack([self.first() for _ in range(spec.num_envs)])
        for b in np.flatnonzero(rng.random(spec.num_envs) < self.cut):
            self._obs[b] = self.first()
        obs = np.empty((*batch, *spec.obs_shape), spec.obs_dtype)
        next_obs = np.empty_like(obs)
        terminated, truncated = rng.random(batch) < self.terminate, rng.random(batch) < self.truncate
        for t in range(num_steps):
            obs[t] = self._obs
            for b in range(spec.num_envs):
                next_obs[t, b] = self.successor(obs[t, b])
                ended = terminated[t, b] or truncated[t, b]
                self._obs[b] = self.first() if ended else next_obs[t, b]
        action = (rng.random((*batch, *spec.action_shape)) * 100).astype(spec.action_dtype)
        reward = rng.normal(size=batch).astype(np.float32).astype(np.float64)
        return Trajectory(obs, action, reward, terminated, truncated, next_obs)


@dataclass
class NaiveReplay:
    """Lists of steps; transitions by the definition of n-step returns."""

    spec: ReplaySpec
    steps: list[dict] = field(default_factory=list)  # one per row: arrays (B, ...)

    def add(self, trajectory: Trajectory) -> None:
        for t in range(len(trajectory.reward)):
            names = ("obs", "action", "reward", "terminated", "truncated", "next_obs")
            self.steps.append({name: getattr(trajectory, name)[t].copy() for name in names})

    def oldest(self) -> int:
        """The first row that can be sampled."""
        return max(0, len(self.steps) - self.spec.num_rows)

    def transition(self, row: int, b: int) -> dict:
        """Fields of `Transitions` for one row of one environment."""
        first, total, k = self.steps[row], 0.0, 0
        while True:
            step = self.steps[row + k]
            total += self.spec.gamma**k * step["reward"][b]
            k += 1
            if step["terminated"][b] or step["truncated"][b] or k == self.spec.n_step or row + k == len(self.steps):
                break
            if not np.array_equal(self.steps[row + k]["obs"][b], step["next_obs"][b]):
                break
        return {
            "obs": first["obs"][b],
            "action": first["action"][b],
            "reward": total,
            "next_obs": step["next_obs"][b],
            "terminated": step["terminated"][b],
            "discount": self.spec.gamma**k,
        }

    def check(self, batch: Transitions) -> None:
        """Compare sampled transitions with the definition."""
        rows, environments = np.divmod(batch.index, self.spec.num_envs)
        assert rows.min() >= self.oldest()
        assert rows.max() < len(self.steps)
        for i, (row, b) in enumerate(zip(rows.tolist(), environments.tolist(), strict=True)):
            for name, value in self.transition(row, b).items():
                found = getattr(batch, name)[i]
                if name in ("reward", "discount"):
                    np.testing.assert_allclose(found, value, rtol=1e-5, atol=1e-6, err_msg=name)
                else:
                    np.testing.assert_array_equal(found, value, err_msg=f"{name} of row {row}, environment {b}")


def vector_spec(**changes: object) -> ReplaySpec:
    """Three-number observations, two-number actions, 12 rows of 2 environments."""
    values = {
        "capacity": 24,
        "num_envs": 2,
        "obs_shape": (3,),
        "obs_dtype": np.float32,
        "action_shape": (2,),
        "action_dtype": np.float32,
    }
    return ReplaySpec(**{**values, **changes})
