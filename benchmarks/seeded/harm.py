"""Whether what was done to a policy harms it, measured apart from the gate: gymnasium's own environments, no check.

Each machine trains the policies anew, and a flaw that ruins one may do nothing to another. So each file of `unseen` is
played beside the policy as it was, as its authors did to know that it is bad: pairs of episodes with the same seed and
the same disturbance, ordinary ones, some that are pushed in the middle, and some from an unusual start. It does harm
where a one-sided paired t-test finds a lower return in one of the three at 5 %. At that level one of seven harmless
files is called harmful: where it errs, the gate is judged more strictly.
"""

from collections.abc import Callable
from copy import copy
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_rel

from loomrl.algorithms.policies.loading import load_policy
from loomrl.runs.config import load_config
from seeded import trained

Floats = NDArray[np.float64]
ALPHA = 0.05
NUM_PAIRS, _AT_ONCE = 1_000, 200  # of each kind of episode
_FIRST_SEED = 7_000_000  # of episodes that nothing else plays
_START, _PUSH, _LATEST_PUSH = 20, 10, 60  # at most: steps of random actions, of one that is held, and before it
KINDS = ("ordinary", "pushed", "unusual start")


def measure(case: ModuleType, kept: Path) -> dict[str, Any]:
    """What a file does to the policy that it spoils; `kept` holds trained policies.

    For each kind of episodes the mean returns as it is and spoilt, and the P-value of the hypothesis that they are no
    lower.
    """
    config = load_config(trained.path_of(case.POLICY))
    training = trained.trained_once(config, kept) / "training"
    found = {}
    for kind in KINDS:
        as_it_is = _returns(config.environment.id, load_policy(training), kind, kept / f"{case.POLICY}-{kind}.npy")
        policy = load_policy(training)
        case.spoil(policy)
        spoilt = _returns(config.environment.id, policy, kind)
        differ = bool(np.any(as_it_is != spoilt))
        p_value = float(ttest_rel(spoilt, as_it_is, alternative="less").pvalue) if differ else 1.0
        found[kind] = {"as_it_is": float(as_it_is.mean()), "spoilt": float(spoilt.mean()), "p_value": p_value}
    return {"policy": case.POLICY, "found": found, "is_harmful": any(one["p_value"] <= ALPHA for one in found.values())}


def _returns(env_id: str, policy: Any, kind: str, kept: Path | None = None) -> Floats:
    """Of the episodes of one kind, (N,)."""
    if kept is not None:
        return np.asarray(np.load(trained.kept_once(kept, lambda path: _keep(path, _returns(env_id, policy, kind)))))
    parts = [_play(env_id, policy, kind, _FIRST_SEED + first) for first in range(0, NUM_PAIRS, _AT_ONCE)]
    return np.concatenate(parts)


def _keep(path: Path, returns: Floats) -> None:
    with path.open("wb") as file:
        np.save(file, returns)


def _play(env_id: str, act: Callable[[Any], Any], kind: str, first_seed: int) -> Floats:
    """Returns of one episode of each seed, (N,); what disturbs it follows from its seed and the step alone."""
    envs = [gym.make(env_id) for _ in range(_AT_ONCE)]
    obs = np.stack([env.reset(seed=first_seed + index)[0] for index, env in enumerate(envs)])
    disturbed = [_disturbances(env.action_space, kind, first_seed + index) for index, env in enumerate(envs)]
    returns, running, step = np.zeros(_AT_ONCE), np.arange(_AT_ONCE), 0
    while running.size:
        for index, action in zip(running, _within(envs[0].action_space, act(obs[running])), strict=True):
            given = disturbed[index].get(step, action)
            obs[index], reward, terminated, truncated, _ = envs[index].step(given)
            returns[index] += float(reward)
            if terminated or truncated:
                running = running[running != index]
        step += 1
    return returns


def _within(space: gym.Space[Any], actions: Any) -> Any:
    return np.clip(actions, space.low, space.high) if isinstance(space, gym.spaces.Box) else np.asarray(actions)


def _disturbances(space: gym.Space[Any], kind: str, seed: int) -> dict[int, Any]:
    """Actions that are taken in the policy's place, by step."""
    drawn, rng = copy(space), np.random.default_rng(seed)
    drawn.seed(seed)
    if kind == "pushed":
        first, steps, action = rng.integers(0, _LATEST_PUSH), rng.integers(1, _PUSH + 1), drawn.sample()
        return dict.fromkeys(range(first, first + steps), action)
    return {step: drawn.sample() for step in range(rng.integers(1, _START + 1))} if kind == "unusual start" else {}
