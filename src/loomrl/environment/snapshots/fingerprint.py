"""The dynamics of an environment as data: seeded rollouts, their digests, and the comparison of two.

On equal arithmetic, rollouts of unchanged dynamics are equal to the bit and the exact digest decides. Another
processor family rounds some last bits differently, and chaotic dynamics multiply them with every step; there only the
first steps of each episode are compared, within a tolerance. The toleranced digest, of those steps' values rounded to a
grid, is for a glance: a value beside a grid line can fall on either side of it, so equal digests prove closeness but
different ones prove nothing. The comparison of the arrays is the judge.
"""

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load

from loomrl.errors import ArtifactError
from loomrl.system.files import sha256

FILE = "dynamics.safetensors"
TOLERANCE = 1e-4
# One last bit grows to 5e-12 within 10 steps of HalfCheetah, to 18 within 200: later steps say nothing of drift.
PREFIX_STEPS = 10
Rollouts = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Deviation:
    """How far two sets of rollouts are apart: relative to 1 + the reference's magnitude."""

    largest: float  # 0 where they are equal, infinity where they cannot be compared
    key: str  # of the rollouts' array that differs most; "" where they are equal
    episode: int  # from 0
    step: int  # from 1; 0 is the reset


def record_rollouts(env: gymnasium.Env[Any, Any], num_episodes: int, num_steps: int) -> Rollouts:
    """Roll out seeded random actions, at most `num_steps` per episode. Episode e is reset with seed e.

    Returns:
        N steps of E episodes: `reset_observation` (E, D), `observation` (N, D), `action` (N, A), `reward` (N,),
        `terminated` (N,), `truncated` (N,), `length` (E,). Structured observations and actions are flattened.
    """
    env.action_space.seed(0)
    episodes = [[env.action_space.sample() for _ in range(num_steps)] for _ in range(num_episodes)]
    return _join([_play(env, seed, actions) for seed, actions in enumerate(episodes)])


def replay_rollouts(env: gymnasium.Env[Any, Any], reference: Rollouts, order: Iterable[int] | None = None) -> Rollouts:
    """Repeat the actions of recorded rollouts, episode by episode in `order` (default: as they were recorded).

    The result is in the recorded order; of an episode named twice it holds the later playing. An episode that ends
    earlier is shorter; none gets longer.
    """
    played: dict[int, Rollouts] = {}
    for seed in range(len(reference["length"])) if order is None else order:
        rows = select_episode(reference, seed)["action"]
        played[seed] = _play(env, seed, [spaces.unflatten(env.action_space, row) for row in rows])
    return _join([played[seed] for seed in sorted(played)])


def _play(env: gymnasium.Env[Any, Any], seed: int, actions: Iterable[Any]) -> Rollouts:
    reset, _ = env.reset(seed=seed)
    steps: list[tuple[Any, ...]] = []
    # Copied at once: an environment may write the next observation into the same array.
    start = np.array(spaces.flatten(env.observation_space, reset))
    for action in actions:
        observation, reward, terminated, truncated, _ = env.step(action)
        flat = spaces.flatten(env.observation_space, observation)
        steps.append((flat, spaces.flatten(env.action_space, action), reward, terminated, truncated))
        if terminated or truncated:
            break
    observations, taken, rewards, terminated_flags, truncated_flags = zip(*steps, strict=True)
    return {
        "reset_observation": start[None],
        "observation": np.stack(observations),
        "action": np.stack(taken),
        "reward": np.array(rewards, dtype=np.float64),
        "terminated": np.array(terminated_flags, dtype=np.uint8),
        "truncated": np.array(truncated_flags, dtype=np.uint8),
        "length": np.array([len(steps)], dtype=np.int64),
    }


def _join(episodes: list[Rollouts]) -> Rollouts:
    return {key: np.concatenate([episode[key] for episode in episodes]) for key in episodes[0]}


def select_episode(rollouts: Rollouts, episode: int, num_steps: int | None = None) -> Rollouts:
    """One episode of rollouts, or its first `num_steps` steps."""
    start, length = int(rollouts["length"][:episode].sum()), int(rollouts["length"][episode])
    length = length if num_steps is None else min(length, num_steps)
    steps, whole = slice(start, start + length), slice(episode, episode + 1)
    selected = {key: array[whole if key == "reset_observation" else steps] for key, array in rollouts.items()}
    return {**selected, "length": np.array([length], dtype=np.int64)}


def beginnings(rollouts: Rollouts) -> Rollouts:
    """The first `PREFIX_STEPS` steps of each episode: as far as other arithmetic can be compared."""
    return _join([select_episode(rollouts, seed, PREFIX_STEPS) for seed in range(len(rollouts["length"]))])


def exact_digest(rollouts: Rollouts) -> str:
    """SHA-256 over the names, types, shapes and bytes of all arrays: 64 hex digits."""
    digest = hashlib.sha256()
    for key in sorted(rollouts):
        array = np.ascontiguousarray(rollouts[key])
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def toleranced_digest(rollouts: Rollouts) -> str:
    """The exact digest of the episodes' beginnings, their values rounded to multiples of the tolerance."""
    first = beginnings(rollouts)
    return exact_digest({key: np.round(array.astype(np.float64) / TOLERANCE) + 0.0 for key, array in first.items()})


def compare(reference: Rollouts, other: Rollouts) -> Deviation:
    """Find where two rollouts of the same actions differ most. Episodes of different length differ infinitely, and so
    do observations of different size."""
    if reference["observation"].shape[1:] != other["observation"].shape[1:]:
        return Deviation(math.inf, "observation", 0, 0)
    unequal = np.flatnonzero(reference["length"] != other["length"])
    if unequal.size:
        episode = int(unequal[0])
        return Deviation(math.inf, "length", episode, int(min(reference["length"][episode], other["length"][episode])))
    worst = Deviation(0.0, "", 0, 0)
    for key in ("reset_observation", "observation", "reward", "terminated", "truncated"):
        expected, found = reference[key].astype(np.float64), other[key].astype(np.float64)
        difference = np.abs(expected - found) / (1.0 + np.abs(expected))
        if float(difference.max()) > worst.largest:
            row = int(np.unravel_index(int(difference.argmax()), difference.shape)[0])
            worst = Deviation(float(difference.max()), key, *_place(reference["length"], row, key))
    return worst


def first_difference(reference: Rollouts, other: Rollouts) -> tuple[str, int, int] | None:
    """Key, episode and step where two rollouts of the same actions first differ; None where they are equal.

    Steps count from 1; 0 is the reset. An episode that ends at another step differs in its `length`.
    """
    for episode in range(len(reference["length"])):
        expected, found = select_episode(reference, episode), select_episode(other, episode)
        if not np.array_equal(expected["reset_observation"], found["reset_observation"]):
            return "reset_observation", episode, 0
        steps = int(min(expected["length"][0], found["length"][0]))
        differing = [
            (int(rows[0]) + 1, key)
            for key in ("observation", "reward", "terminated", "truncated")
            if (rows := _differing_rows(expected[key][:steps], found[key][:steps])).size
        ]
        if differing:
            step, key = min(differing)
            return key, episode, step
        if expected["length"][0] != found["length"][0]:
            return "length", episode, steps
    return None


def _differing_rows(first: NDArray[Any], second: NDArray[Any]) -> NDArray[np.int64]:
    return np.flatnonzero((first != second).reshape(len(first), -1).any(axis=1))


def _place(lengths: NDArray[Any], row: int, key: str) -> tuple[int, int]:
    if key == "reset_observation":
        return row, 0
    ends = np.cumsum(lengths)
    episode = int(np.searchsorted(ends, row, side="right"))
    return episode, row - int(ends[episode] - lengths[episode]) + 1


def arithmetic_digest() -> str:
    """SHA-256, in hex, of the bits of this machine's elementary functions, as Python and NumPy compute them.

    Names no machine: two that compute alike have equal digests, whoever made them.
    """
    grid = np.linspace(-8.0, 8.0, 4_097)
    digest = hashlib.sha256()
    for values in (grid, grid.astype(np.float32)):
        positive = np.abs(values) + values.dtype.type(0.125)
        for name in ("sin", "cos", "tan", "tanh", "exp", "arctan"):
            digest.update(getattr(np, name)(values).tobytes())
        for name in ("log", "sqrt", "cbrt"):
            digest.update(getattr(np, name)(positive).tobytes())
        digest.update(np.power(positive, values).tobytes())
        digest.update(np.arctan2(values, values[::-1]).tobytes())
        digest.update(values.cumsum().tobytes() + positive.sum().tobytes())
    scalars = [function(float(value)) for value in grid for function in (math.sin, math.cos, math.exp, math.atan)]
    digest.update(np.array(scalars).tobytes())
    return digest.hexdigest()


def read_rollouts(path: Path, digest: str) -> Rollouts:
    """Read kept rollouts; raises `ArtifactError` when the file is not the one with this digest."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ArtifactError(f"{path} cannot be read: {error.strerror}; take the snapshot again") from error
    if sha256(data) != digest:
        raise ArtifactError(f"{path} was changed: its SHA-256 is {sha256(data)}, the snapshot records {digest}")
    try:
        return load(data)
    except SafetensorError as error:
        raise ArtifactError(f"{path} is not a safetensors file: {error}; take the snapshot again") from error
