"""Observations to ask a policy about, and noise to disturb them with."""

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import Field

from loomrl.environment.text import TextBox, ends_once
from loomrl.environment.wrappers.flat import FlatBox, rounded
from loomrl.safety.check import CheckConfig, Context
from loomrl.safety.config import ConstraintConfig
from loomrl.safety.constraints import violates
from loomrl.types import Act, ActFunction, ClaimLabel, FloatArray, LabelKind, Policy

_CHUNK = 4_096  # observations a policy is asked about at once
_FAR = 1e6  # stands for an infinite bound among the extreme observations
UNDISTURBED = "no episode keeps the limit undisturbed, so that a disturbance could break it"
_NOISE_REACH = 4.0  # standard deviations; noise hardly ever goes farther


def sample_visited(visited: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    """At most `count` of the visited observations, (N, *obs), each taken once at most, in their order."""
    if len(visited) <= count:
        return visited
    return visited[np.sort(rng.choice(len(visited), size=count, replace=False))]


def random_observations(space: Any, visited: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Uniform draws from the space, (count, *obs).

    Where a component has no finite bound, from ten times the visited range around its middle.
    """
    if isinstance(space, spaces.Discrete):
        return rng.integers(space.start, space.start + space.n, size=count).astype(space.dtype)
    low, high = _finite_box(space, visited)
    if space.dtype.kind in "iu":
        return rng.integers(space.low, space.high, size=(count, *space.shape), dtype=space.dtype, endpoint=True)
    drawn = low + (high - low) * rng.random((count, *space.shape))
    return _into(space, drawn)


def extreme_observations(space: Any, visited: NDArray[Any], count: int, rng: np.random.Generator) -> NDArray[Any]:
    """Corners of the space, (N, *obs): every component alone at its ends, then `count` random corners.

    A million stands for an infinite bound. All members of a Discrete space, at most `count`.
    """
    if isinstance(space, spaces.Discrete):
        return np.arange(space.start, space.start + min(int(space.n), count), dtype=space.dtype)
    low = np.clip(space.low.astype(np.float64), -_FAR, _FAR)
    high = np.clip(space.high.astype(np.float64), -_FAR, _FAR)
    size = int(np.prod(space.shape, dtype=np.int64))
    alone = np.repeat(np.mean(visited, axis=0, dtype=np.float64).reshape(1, size), 2 * min(size, count), axis=0)
    for index in range(len(alone) // 2):
        alone[2 * index, index], alone[2 * index + 1, index] = low.flat[index], high.flat[index]
    corners = np.where(rng.random((count, size)) < 0.5, low.reshape(1, size), high.reshape(1, size))
    return _into(space, np.concatenate([alone, corners]).reshape(-1, *space.shape))


class ProbeConfig(CheckConfig):
    """How many observations of each kind a search for failures asks the policy about."""

    num_visited: int = Field(default=20_000, ge=1)
    num_random: int = Field(default=4_096, ge=1)
    num_extreme: int = Field(default=512, ge=1)

    def observations(self, context: Context, check: str) -> dict[str, NDArray[Any]]:
        """What is tried, by kind: `visited`, `random` and `extreme` observations, (N, *obs) each."""
        space, visited, rng = context.observation_space, context.visited, context.rng(check)
        return {
            "visited": sample_visited(visited, self.num_visited, rng),
            "random": random_observations(space, visited, self.num_random, rng),
            "extreme": extreme_observations(space, visited, self.num_extreme, rng),
        }


def ask(policy: Policy, obs: NDArray[Any]) -> NDArray[Any]:
    """The policy's actions for observations (N, *obs), (N, *action), asked in batches; N is at least 1."""
    return np.concatenate([np.asarray(policy(obs[start : start + _CHUNK])) for start in range(0, len(obs), _CHUNK)])


def ask_outputs(policy: Policy, obs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """All outputs of a policy for observations (N, *obs), by name, (N, ...) each; N is at least 1.

    They are those of `policy.outputs(obs)` where it has that, of a torch network's forward otherwise, else the action
    alone.
    """
    batches = [_outputs(policy, obs[start : start + _CHUNK]) for start in range(0, len(obs), _CHUNK)]
    return {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}


def act_with(policy: Policy) -> ActFunction:
    """The act function of any policy; that of a recurrent one carries its memory."""
    if is_recurrent(policy):
        recurrent: ActFunction = policy.act  # type: ignore[attr-defined]
        return recurrent

    def act(obs: NDArray[Any], rng: np.random.Generator) -> Act:  # noqa: ARG001 - greedy: draws nothing
        return Act(action=policy(obs))

    return act


def act_seeing(policy: Policy, change: Callable[[NDArray[Any]], NDArray[Any]]) -> ActFunction:
    """The act function of a policy that sees observations (B, *obs) as `change` makes them."""
    unchanged = act_with(policy)

    def act(obs: NDArray[Any], rng: np.random.Generator, **memory: FloatArray) -> Act:
        return unchanged(change(obs), rng, **memory)

    return act


def is_recurrent(policy: Policy) -> bool:
    """Whether a policy decides by more than the observation. Asked without its memory, it acts as at an episode's
    start."""
    return bool(getattr(policy, "memory_size", 0))


def not_members(space: Any, actions: NDArray[Any]) -> NDArray[np.bool_]:
    """Which actions, (N, *action), are not elements of the action space, (N,)."""
    if isinstance(space, spaces.Discrete):
        if actions.ndim != 1:
            return np.ones(len(actions), dtype=np.bool_)
        inside = (actions >= space.start) & (actions < space.start + space.n) & (actions == np.round(actions))
        return np.asarray(~inside)
    if isinstance(space, spaces.Box):
        if actions.shape[1:] != space.shape:
            return np.ones(len(actions), dtype=np.bool_)
        if isinstance(space, TextBox):
            return ~ends_once(actions)
        within = (actions >= space.low) & (actions <= space.high)
        return np.asarray(~np.all(within.reshape(len(actions), -1), axis=1))
    return np.array([action not in space for action in actions])


class Disturbance:
    """Gaussian noise of `scale` (*obs) added to observations, the same for the same observation whatever batch it is
    in.

    The generator of each row is keyed by `key` and the row's bytes, so a disturbed episode can be replayed alone. Rows
    that are equal get equal noise, so they are no independent samples: `disturbed` is for those.
    """

    def __init__(self, space: spaces.Box, scale: NDArray[np.float64], key: int) -> None:
        self._space, self._scale, self._key = space, scale, key

    def __call__(self, obs: NDArray[Any]) -> NDArray[Any]:
        """(B, *obs) -> (B, *obs), within the space."""
        rows = np.ascontiguousarray(obs)
        noise = np.stack([keyed_rng(self._key, row).standard_normal(self._space.shape) for row in rows])
        return _with_noise(self._space, rows, noise * self._scale)


def keyed_rng(key: int, row: NDArray[Any]) -> np.random.Generator:
    """A new generator, the same for the same key and observation (*obs), whatever batch it is in."""
    # The words that NumPy makes of [key, digest]; it takes twice as long to make them itself.
    words = [key >> shift & 0xFFFFFFFF for shift in range(0, max(1, key.bit_length()), 32)]
    return np.random.Generator(np.random.PCG64(np.array([*words, row_digest(row)], np.uint32)))


def row_digest(row: NDArray[Any]) -> int:
    """A number below 2**32 that is the same for the same observation (*obs), whatever batch it is in."""
    return zlib.crc32(row.tobytes())


def disturbed(
    space: spaces.Box, obs: NDArray[Any], scale: NDArray[np.float64], rng: np.random.Generator
) -> NDArray[Any]:
    """Observations (B, *obs) with Gaussian noise of `scale` (*obs), drawn for each row on its own; within the space."""
    return _with_noise(space, obs, rng.standard_normal(obs.shape) * scale)


def shifted(space: spaces.Box, obs: NDArray[Any], offsets: NDArray[np.float64]) -> NDArray[Any]:
    """Observations (B, *obs), each off by its offset (B, *obs) at most; within the space. What is whole stays whole."""
    return _into(space, obs + np.where(_is_whole(space), np.trunc(offsets), offsets))


def keeps_bounds(policy: Policy) -> bool:
    """Whether a policy itself clips or squashes continuous actions to their bounds, whatever its weights are."""
    return getattr(policy, "action_kind", None) in ("continuous", "squashed")


def not_disturbed(context: Context, scale: NDArray[np.float64], is_noise: bool = False) -> ClaimLabel | None:
    """The label of a claim about what a disturbance of this scale (*obs) does to actions, where it changes no recorded
    observation, or there is one action alone.

    It goes no farther than `scale`, or where it is noise up to four times as far.
    """
    space, visited = context.observation_space, context.visited
    move, reach = (_with_noise, _NOISE_REACH) if is_noise else (shifted, 1.0)
    offsets = np.broadcast_to(reach * scale, visited.shape)
    if all(np.array_equal(move(space, visited, sign * offsets), visited) for sign in (-1.0, 1.0)):
        reason = "a disturbance of this size changes none of the observations that were recorded"
        return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason)
    return one_action_alone(context.action_space)


def one_action_alone(space: Any) -> ClaimLabel | None:
    """The label of a claim about what a policy chooses, where there is nothing to choose."""
    if isinstance(space, spaces.Box):
        is_alone = bool(np.array_equal(space.low, space.high))
    else:
        counts = getattr(space, "n", None) if isinstance(space, spaces.Discrete) else getattr(space, "nvec", None)
        is_alone = counts is not None and bool(np.all(np.asarray(counts) == 1))
    reason = "there is one action alone"
    return ClaimLabel(kind=LabelKind.CANNOT_BE_FALSE, reason=reason) if is_alone else None


def shield_assumptions(context: Context) -> list[str]:
    """What claims about disturbed sensors assume, where the environment is behind a shield: one sentence, else none."""
    return ["the shield is told what is true, whatever the policy sees"] if context.snapshot.spec.shield else []


def to_texts(observation_space: Any, action_space: Any) -> str | None:  # noqa: ARG001 - a check's signature
    """Why checks that disturb or measure numbers do not apply where observations are texts; None elsewhere."""
    if not isinstance(observation_space, TextBox):
        return None
    return "observations are texts: a byte a little larger is another letter, and no disturbed or unusual measurement"


def kept_undisturbed(context: Context, constraint: ConstraintConfig) -> list[int]:
    """The seeds of the shared episodes that keep a limit: where another one breaks it, no disturbance is to blame."""
    return [episode.seed for episode in context.episodes if not violates(constraint, episode)]


def noise_scale(visited: NDArray[Any], factor: float) -> NDArray[np.float64]:
    """`factor` standard deviations of each component over the visited observations, (*obs)."""
    return np.asarray(factor * np.std(visited.astype(np.float64), axis=0))


def _outputs(policy: Policy, obs: NDArray[Any]) -> dict[str, NDArray[Any]]:
    if hasattr(policy, "outputs"):
        return {name: np.asarray(value) for name, value in policy.outputs(obs).items()}
    if hasattr(policy, "forward"):
        import torch

        with torch.no_grad():
            return {name: value.numpy() for name, value in policy.forward(torch.from_numpy(obs)).items()}
    return {"action": np.asarray(policy(obs))}


def _finite_box(space: spaces.Box, visited: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    smallest, largest = np.min(visited, axis=0).astype(np.float64), np.max(visited, axis=0).astype(np.float64)
    middle, reach = (smallest + largest) / 2, 5 * np.maximum(largest - smallest, 1e-3)
    # Some environments write the largest float for "unbounded".
    low = np.where(np.abs(space.low.astype(np.float64)) < _FAR, space.low, middle - reach)
    high = np.where(np.abs(space.high.astype(np.float64)) < _FAR, space.high, middle + reach)
    return low, high


def _with_noise(space: spaces.Box, obs: NDArray[Any], noise: NDArray[np.float64]) -> NDArray[Any]:
    """Observations (B, *obs) with noise (B, *obs), to the nearest of what may be observed; within the space."""
    return _into(space, obs + np.where(_is_whole(space), np.rint(noise), noise))


def _is_whole(space: spaces.Box) -> Any:
    """Which components are whole numbers, in a shape that goes with (B, *obs)."""
    return space.whole if isinstance(space, FlatBox) else np.dtype(space.dtype).kind in "iu"


def _into(space: spaces.Box, values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(rounded(space, np.clip(values, space.low, space.high)), dtype=space.dtype)
