"""One run of stable-baselines3 or of SBX, its twin on JAX, through their public interfaces. Runs in `.venv-peers`.

    .venv-peers/bin/python benchmarks/peers/sb3.py '{"trainer": "sb3", "algorithm": "ppo", ...}'

Takes a run of `execute.py` as JSON and prints one line of JSON. Seconds of learning leave out imports and the greedy
episodes in between; making the environments and the model, and what JAX compiles, count.
"""

import json
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

MARKS = 200  # points of the clock kept, at most
PACKAGES = {
    "sb3": ("stable-baselines3", "torch", "gymnasium", "mujoco", "numpy"),
    "sbx": ("sbx-rl", "stable-baselines3", "jax", "jaxlib", "gymnasium", "mujoco", "numpy"),
}


class Watch(BaseCallback):
    """The run's clock, its training returns and its greedy episodes."""

    def __init__(self, run: dict[str, Any]) -> None:
        super().__init__()
        self.run = run
        self.started, self.paused = time.perf_counter(), 0.0
        self.marks: list[tuple[int, float]] = []  # (env steps, seconds of learning)
        self.training: list[tuple[int, float]] = []  # (env step, mean return of the episodes that ended since the last)
        self._ended: list[float] = []
        self.greedy: list[tuple[int, float, float]] = []  # (env steps, mean return, seconds of learning)
        self.last_returns: list[float] = []
        self.first_update_seconds: float | None = None
        self.envs: gymnasium.vector.VectorEnv | None = None  # those of the greedy episodes

    @property
    def clock(self) -> float:
        return time.perf_counter() - self.started - self.paused

    def _on_step(self) -> bool:
        if self.run["greedy_every"]:
            self._ended += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
        limit = self.run["stop_at_return"]
        return limit is None or not self.greedy or self.greedy[-1][1] < limit

    def _on_rollout_start(self) -> None:
        """Between two updates, and once before the first."""
        steps = self.num_timesteps
        if steps and self.first_update_seconds is None:
            self.first_update_seconds = time.time() - self.run["started_at"]
        self.mark(steps)
        every = self.run["greedy_every"]
        if every and steps // every > (self.greedy[-1][0] if self.greedy else 0) // every:
            self.play()

    def mark(self, steps: int) -> None:
        spacing = self.run["total_env_steps"] / MARKS
        if self.marks and steps - self.marks[-1][0] < spacing:
            return
        self.marks.append((steps, self.clock))
        if self._ended:
            self.training.append((steps, float(np.mean(self._ended))))
            self._ended.clear()

    def play(self) -> None:
        """Greedy episodes; the clock stands still."""
        before = time.perf_counter()
        if self.envs is None:
            create = partial(gymnasium.make, self.run["environment"])
            self.envs = gymnasium.vector.SyncVectorEnv([create] * self.run["greedy_episodes"])
        self.last_returns = greedy_returns(self.model, self.envs, self.run["greedy_first_seed"])
        self.greedy.append((self.num_timesteps, float(np.mean(self.last_returns)), before - self.started - self.paused))
        self.paused += time.perf_counter() - before


def greedy_returns(model: BaseAlgorithm, envs: gymnasium.vector.VectorEnv, first_seed: int) -> list[float]:
    """Raw returns of one greedy episode in each environment, on held-out seeds."""
    normalizer = model.get_vec_normalize_env()
    obs, _ = envs.reset(seed=[first_seed + index for index in range(envs.num_envs)])
    returns, alive = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while alive.any():
        seen = obs if normalizer is None else normalizer.normalize_obs(obs)
        action, _ = model.predict(seen, deterministic=True)
        obs, reward, terminated, truncated, _ = envs.step(action)
        returns += np.where(alive, reward, 0.0)
        alive &= ~(terminated | truncated)
    return [float(one) for one in returns]


def schedule(text: str) -> Callable[[float], float]:
    """`lin_0.001` falls from 0.001 to 0 at the last step."""
    start = float(text.removeprefix("lin_"))
    return lambda remaining: remaining * start


def translated(trainer: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Names of activations and schedules as the objects the trainer takes."""
    settings = {key: schedule(value) if str(value).startswith("lin_") else value for key, value in settings.items()}
    policy = dict(settings.pop("policy_kwargs", {}))
    if "activation_fn" in policy:
        policy["activation_fn"] = activation(trainer, policy["activation_fn"])
    return {**settings, "policy_kwargs": policy}


def activation(trainer: str, name: str) -> Any:
    if trainer == "sbx":
        import flax.linen

        return getattr(flax.linen, name)
    return {"tanh": torch.nn.Tanh, "relu": torch.nn.ReLU}[name]


def make_model(run: dict[str, Any], envs: VecEnv) -> BaseAlgorithm:
    if run["trainer"].startswith("sbx"):
        import sbx as package
    else:
        import stable_baselines3 as package
    settings = translated(run["trainer"], run["settings"])
    algorithm = getattr(package, run["algorithm"].upper())
    return algorithm("MlpPolicy", envs, seed=run["seed"], **settings)


def measure(run: dict[str, Any]) -> dict[str, Any]:
    """Train once; returns what came of it."""
    if run["stop_at_return"] is not None:  # tenths of a second decide: all code is loaded before the clock starts
        measure({**run, "total_env_steps": 1, "stop_at_return": None})
    watch = Watch(run)
    envs = make_vec_env(run["environment"], n_envs=run["num_envs"], seed=run["seed"])
    if run["normalize"]:
        envs = VecNormalize(envs, gamma=run["settings"].get("gamma", 0.99))
    model = make_model(run, envs)
    model.learn(run["total_env_steps"], callback=watch)
    watch.marks.append((model.num_timesteps, watch.clock))
    if run["greedy_every"] and (not watch.greedy or watch.greedy[-1][0] != model.num_timesteps):
        watch.play()
    return {
        "env_steps": model.num_timesteps,
        "learn_seconds": watch.clock,
        "process_seconds": time.time() - run["started_at"],
        "first_update_seconds": watch.first_update_seconds,
        "marks": watch.marks,
        "training": watch.training,
        "greedy": watch.greedy,
        "last_greedy_returns": watch.last_returns,
        "versions": {name: version(name) for name in PACKAGES["sbx" if run["trainer"].startswith("sbx") else "sb3"]},
    }


def main() -> None:
    run = json.loads(sys.argv[1])
    torch.set_num_threads(run["threads"])
    if run["matmul_precision"]:
        torch.set_float32_matmul_precision(run["matmul_precision"])
    warnings.filterwarnings("ignore", category=UserWarning)  # that PPO runs better on a CPU; it does run on one
    print(json.dumps(measure(run)), flush=True)


if __name__ == "__main__":
    main()
