"""Rollouts and greedy episodes of environments that are compiled too: policy and dynamics in one kernel.

The kernels are specialised for an environment's dynamics (see `loomrl.environment.vector.dynamics`). Noise is drawn
before, by the same generator and in the same order as a policy that acts step by step draws it. Shapes: T steps, B
environments, O observed values, A action values, S state values.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.vector import VectorEnv
from numba import types
from numpy.typing import NDArray

from loomrl.algorithms.base import below
from loomrl.algorithms.compiled.dense import Vector, forward
from loomrl.algorithms.compiled.jit import inlined, source_digest
from loomrl.algorithms.compiled.normalizer import normalize_row
from loomrl.algorithms.compiled.ppo import log_probabilities
from loomrl.algorithms.noise import gaussian_noise, negated_gumbel
from loomrl.environment.collecting.collector import LONGEST_EPISODE, diverged
from loomrl.environment.vector.batched import BatchedVectorEnv
from loomrl.environment.vector.dynamics import Dynamics, specialise
from loomrl.environment.vector.results import not_finite, place
from loomrl.environment.vector.states import State
from loomrl.errors import EnvironmentFault
from loomrl.types import FloatArray, Trajectory

if TYPE_CHECKING:
    from loomrl.algorithms.compiled.policy import CompiledPolicy

DrawNoise = Callable[[tuple[int, ...], np.random.Generator], NDArray[np.float32]]
Played = tuple[FloatArray, NDArray[np.int64]]
COLLECTED, NOT_FINITE, RESETS_USED_UP, ENDLESS, DIVERGED = 0, 1, 2, 3, 4

_f64, _f32, _i64, _bool = types.float64, types.float32, types.int64, types.boolean
_POLICY = (_f32[::1], _i64[:, ::1], _i64, _bool, _f32[::1], _f32[::1], _bool, _f32[::1], _f32[::1])
_ENVS = (_f64[:, ::1], _f64[::1], _i64[::1], _i64, _f64[:, :, ::1], _i64[::1])
_tuple: Any = types.UniTuple
_ROLLOUT_SIGNATURE = _tuple(_i64, 4)(
    *_POLICY, *_ENVS, _i64, _i64, _f32[:, :, ::1], _f32[::1], _f32[:, :, ::1], _f32[:, :, ::1], _i64[:, ::1],
    _f32[:, :, ::1], _f32[:, ::1], _f64[:, ::1], _bool[:, ::1], _bool[:, ::1], _f64[::1], _i64[::1],
    _f64[::1], _i64[::1],
)  # fmt: skip
_EPISODES_SIGNATURE = _tuple(_i64, 2)(
    *_POLICY, _f64[:, ::1], _f64[::1], _i64, _i64, _f64[::1], _i64[::1]
)  # fmt: skip


class CompiledCollector:
    """A `loomrl.environment.collecting.collector.Collector` that steps compiled environments in one call for each
    rollout. It chooses actions itself, with `policy`.

    Actions are drawn from the policy's distribution, and the trajectory has their `log_prob`. With a `draw` of the
    caller's, they are those of the highest output after its noise was subtracted, and there is no `log_prob`.
    `finished` holds (return, length) of every episode that ended since it was last cleared.
    """

    def __init__(
        self, policy: "CompiledPolicy", envs: BatchedVectorEnv, seed: int, draw: DrawNoise | None = None
    ) -> None:
        self.envs, self.finished = envs, list[tuple[float, int]]()
        self._policy = policy
        self._rollout = _specialised(_rollout, _ROLLOUT_SIGNATURE, envs.dynamics)
        self._is_sampled = draw is None
        self._draw: DrawNoise = draw or (negated_gumbel if policy.is_discrete else gaussian_noise)
        self._returns, self._lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        envs.reset(seed=seed)

    is_resumable = True

    def state_dict(self) -> State:
        """State of the environments and of their episodes so far: arrays (B, ...)."""
        episodes = {"returns": self._returns.copy(), "lengths": self._lengths.copy()}
        return episodes | {f"envs.{name}": values for name, values in self.envs.state_dict().items()}

    def load_state_dict(self, state: State) -> int:
        """Go on from `state_dict()` of as many environments. Returns 0: none of them begins another episode."""
        self.envs.load_state_dict(below("envs.", state))
        self._returns, self._lengths = state["returns"].copy(), state["lengths"].copy()
        return 0

    def collect(self, num_steps: int, rng: np.random.Generator) -> Trajectory:
        """The trajectory (T, B) of `num_steps` steps in every environment; `rng` draws the noise of the actions.

        Raises:
            EnvironmentFault: for an observation or a reward that is not finite.
            LoomRLError: when the policy's outputs are not: it has diverged.
        """
        policy, envs = self._policy, self.envs
        batch = (num_steps, envs.num_envs)
        obs, next_obs = (np.empty((*batch, envs.dynamics.obs_dim), np.float32) for _ in range(2))
        reward, terminated, truncated = np.empty(batch), np.empty(batch, np.bool_), np.empty(batch, np.bool_)
        noise = self._draw((*batch, policy.num_outputs), rng)
        index = np.empty(batch if policy.is_discrete else (num_steps, 0), np.int64)
        sample = np.empty((num_steps, 0, 0) if policy.is_discrete else noise.shape, np.float32)
        std = np.zeros(0, np.float32) if policy.is_discrete else np.exp(policy.log_std())
        returns, lengths = np.empty(reward.size), np.empty(reward.size, np.int64)
        log_prob = np.empty(batch if self._is_sampled else (num_steps, 0), np.float32)
        step, num_finished, outcome = 0, 0, RESETS_USED_UP
        while outcome == RESETS_USED_UP:
            envs.refill()
            outcome, step, env, num_finished = self._rollout(
                *_policy_arguments(policy), envs.states, envs.parameters, envs.elapsed, envs.max_episode_steps,
                envs.pending, envs.cursor, step, num_finished, noise, std, obs, next_obs, index, sample, log_prob,
                reward, terminated, truncated, self._returns, self._lengths, returns, lengths,
            )  # fmt: skip
        if outcome == DIVERGED:
            raise diverged("outputs that are not finite", int(env))
        if outcome == NOT_FINITE:
            space = envs.single_observation_space
            raise not_finite(int(env), next_obs[step], reward[step], space, envs.name, envs.elapsed)
        envs.refill()
        finished = zip(returns[:num_finished].tolist(), lengths[:num_finished].tolist(), strict=True)
        self.finished += finished
        shaped = (*batch, *(envs.single_observation_space.shape or ()))
        return Trajectory(
            obs=obs.reshape(shaped),
            action=policy.discrete(index) if policy.is_discrete else _actions(policy, sample),
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            next_obs=next_obs.reshape(shaped),
            extras=({"log_prob": log_prob} if self._is_sampled else {})
            | ({} if policy.is_discrete else {"sample": sample}),
        )


def play(policy: "CompiledPolicy", envs: VectorEnv[Any, Any, Any], seeds: Sequence[int]) -> Played | None:
    """Greedy episodes: their returns and lengths in the order of the seeds; None where no kernel can step `envs`.

    Raises:
        EnvironmentFault: for an observation or a reward that is not finite, or an episode that does not end.
        LoomRLError: when the policy's outputs are not finite.
    """
    if not isinstance(envs, BatchedVectorEnv):
        return None
    returns, lengths = np.zeros(len(seeds)), np.zeros(len(seeds), np.int64)
    for first in range(0, len(seeds), envs.num_envs):
        some = slice(first, first + envs.num_envs)
        _play(policy, envs, list(seeds[some]), returns[some], lengths[some])
    return returns, lengths


def _play(
    policy: "CompiledPolicy",
    envs: BatchedVectorEnv,
    seeds: list[int],
    returns: FloatArray,
    lengths: NDArray[np.int64],
) -> None:
    """One episode for each seed, in as many of the environments."""
    envs.reset(seed=[*seeds, *[0] * (envs.num_envs - len(seeds))])
    episodes = _specialised(_episodes, _EPISODES_SIGNATURE, envs.dynamics)
    limit = min(envs.max_episode_steps, LONGEST_EPISODE + 1)
    outcome, env = episodes(
        *_policy_arguments(policy), envs.states[: len(seeds)], envs.parameters, limit, LONGEST_EPISODE, returns, lengths
    )
    if outcome == DIVERGED:
        raise diverged("outputs that are not finite", env)
    if outcome == NOT_FINITE:
        raise EnvironmentFault(f"{place(envs.name, env, lengths)}: the reward or observation is not finite")
    if outcome == ENDLESS:
        raise EnvironmentFault(
            f"the episode with seed {seeds[env]} did not end within {LONGEST_EPISODE} steps; "
            "set environment.max_episode_steps"
        )


def _actions(policy: "CompiledPolicy", sample: NDArray[np.float32]) -> NDArray[Any]:
    flat = policy.bounded(sample.reshape(-1, policy.num_outputs))
    return flat.reshape(*sample.shape[:2], *flat.shape[1:])


def _policy_arguments(policy: "CompiledPolicy") -> tuple[Any, ...]:
    return (
        policy.parameters, policy.actor.table, policy.activation, policy.is_discrete, policy.low, policy.high,
        policy.normalizer is not None, *policy.shift_and_scale,
    )  # fmt: skip


@cache
def _specialised(kernel: Any, signature: Any, dynamics: Dynamics) -> Any:
    """The kernel for these dynamics."""
    return specialise(kernel, signature, step=dynamics.step, observe=dynamics.observe)


@inlined
def _draw(
    is_discrete: bool,
    out: Vector,
    std: Vector,
    noise: Vector,
    index: NDArray[np.int64],
    env: int,
    sample: NDArray[np.float32],
) -> bool:
    """An environment's choice from a policy's outputs (A,), into `index[env]` or `sample[env]`.

    Returns False where an output, or what was sampled, is not finite.
    """
    for column in range(out.size):
        if not isfinite(out[column]):
            return False
    if is_discrete:
        best = 0
        for column in range(1, out.size):
            if out[column] - noise[column] > out[best] - noise[best]:
                best = column
        index[env] = best
    else:
        for column in range(out.size):
            sample[env, column] = out[column] + std[column] * noise[column]
            if not isfinite(sample[env, column]):
                return False
    return True


def _rollout(  # type: ignore[no-untyped-def]
    parameters, table, activation, is_discrete, low, high, normalizes, shift, scale,
    states, env_parameters, elapsed, max_episode_steps, pending, cursor,
    first_step, num_finished, noise, std, obs, next_obs, index, sample, log_prob,
    reward, terminated, truncated, running_return, running_length, finished_return, finished_length,
):  # fmt: skip
    """T steps of B environments from `first_step` on. Returns the outcome, the step and environment it came about in,
    and how many episodes have finished."""
    num_steps, num_envs = reward.shape
    num_outputs = noise.shape[2]
    features = np.empty((num_envs, obs.shape[2]), np.float32)
    hidden = np.empty(num_envs * table[:-1, 1].sum(), np.float32)
    out = np.empty((num_envs, num_outputs), np.float32)
    action = np.empty(1 if is_discrete else num_outputs, np.float64)
    for t in range(first_step, num_steps):
        for env in range(num_envs):
            if cursor[env] >= pending.shape[1]:
                return RESETS_USED_UP, t, env, num_finished
            observe(states[env], obs[t, env])  # type: ignore[name-defined]  # noqa: F821
            if normalizes:
                normalize_row(obs[t, env], shift, scale, features[env])
            else:
                features[env] = obs[t, env]
        forward(parameters, table, activation, features, hidden, out)
        for env in range(num_envs):
            if not _draw(is_discrete, out[env], std, noise[t, env], index[t], env, sample[t]):
                return DIVERGED, t, env, num_finished
        if log_prob.size > 0:
            log_probabilities(parameters, is_discrete, out, index[t], sample[t], log_prob[t])
        for env in range(num_envs):
            if is_discrete:
                action[0] = index[t, env]
            else:
                for column in range(num_outputs):
                    action[column] = max(min(sample[t, env, column], high[column]), low[column])
            gain, terminal = step(states[env], action, env_parameters)  # type: ignore[name-defined]  # noqa: F821
            observe(states[env], next_obs[t, env])  # type: ignore[name-defined]  # noqa: F821
            elapsed[env] += 1
            cut = elapsed[env] >= max_episode_steps
            reward[t, env], terminated[t, env], truncated[t, env] = gain, terminal, cut
            finite = isfinite(gain)
            for part in range(next_obs.shape[2]):
                finite = finite and isfinite(next_obs[t, env, part])
            if not finite:
                return NOT_FINITE, t, env, num_finished
            running_return[env] += gain
            running_length[env] += 1
            if terminal or cut:
                finished_return[num_finished], finished_length[num_finished] = running_return[env], running_length[env]
                num_finished += 1
                running_return[env], running_length[env], elapsed[env] = 0.0, 0, 0
                states[env] = pending[env, cursor[env]]
                cursor[env] += 1
    return COLLECTED, num_steps, 0, num_finished


def _episodes(  # type: ignore[no-untyped-def]
    parameters, table, activation, is_discrete, low, high, normalizes, shift, scale,
    states, env_parameters, max_episode_steps, longest, returns, lengths,
):  # fmt: skip
    """One greedy episode in each environment; those that have ended wait. Returns the outcome and an environment."""
    num_envs = states.shape[0]
    num_outputs = low.size if not is_discrete else table[-1, 1]
    seen = np.empty((num_envs, table[0, 0]), np.float32)
    features = np.empty((num_envs, table[0, 0]), np.float32)
    hidden = np.empty(num_envs * table[:-1, 1].sum(), np.float32)
    out = np.empty((num_envs, num_outputs), np.float32)
    action = np.empty(1 if is_discrete else num_outputs, np.float64)
    playing = np.arange(num_envs)  # the environments whose episodes go on, in the first `num_playing` slots
    num_playing = num_envs
    while num_playing > 0:
        for slot in range(num_playing):
            observe(states[playing[slot]], seen[slot])  # type: ignore[name-defined]  # noqa: F821
            if normalizes:
                normalize_row(seen[slot], shift, scale, features[slot])
            else:
                features[slot] = seen[slot]
        forward(parameters, table, activation, features[:num_playing], hidden, out[:num_playing])
        still = 0
        for slot in range(num_playing):
            env = playing[slot]
            for column in range(num_outputs):
                if not isfinite(out[slot, column]):
                    return DIVERGED, env
            if is_discrete:
                action[0] = out[slot].argmax()
            else:
                for column in range(num_outputs):
                    action[column] = max(min(out[slot, column], high[column]), low[column])
            gain, terminal = step(states[env], action, env_parameters)  # type: ignore[name-defined]  # noqa: F821
            returns[env] += gain
            lengths[env] += 1
            observe(states[env], seen[slot])  # type: ignore[name-defined]  # noqa: F821
            finite = isfinite(gain)
            for part in range(seen.shape[1]):
                finite = finite and isfinite(seen[slot, part])
            if not finite:
                return NOT_FINITE, env
            if lengths[env] > longest:
                return ENDLESS, env
            if not terminal and lengths[env] < max_episode_steps:
                playing[still] = env
                still += 1
        num_playing = still
    return COLLECTED, 0


for _kernel in (_rollout, _episodes):  # in the cache on disk, they follow the sources of this package too
    _kernel.__qualname__ = f"{_kernel.__qualname__}.{source_digest('rollout')}"
