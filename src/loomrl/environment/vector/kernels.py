"""The loops over environments that a batch of compiled dynamics is stepped by.

Compiled by `specialise` for one `Dynamics`; `step` and `observe` are its functions. B environments, S state values,
A action values, O observed values, K pending resets in each environment.
"""

from functools import cache
from math import isfinite
from typing import Any

from loomrl.environment.vector.dynamics import Dynamics, compiled, specialise

STEPPED, BAD_ACTION, NOT_FINITE = 0, 1, 2  # what came of `step_batch`

_STEP_SIGNATURE = (
    "UniTuple(int64, 2)(float64[:,::1], float64[:,::1], int64, float64[::1], int64[::1], int64, boolean,"
    "float64[:,:,::1], int64[::1], float32[:,::1], float32[:,::1], float64[::1], boolean[::1], boolean[::1])"
)
_OBSERVE_SIGNATURE = "void(float64[:,::1], float32[:,::1])"


@cache
def batch_kernels(dynamics: Dynamics) -> tuple[Any, Any]:
    """The compiled kernels `step_batch` and `observe_batch` of these dynamics."""
    step_kernel: Any = _step_batch
    observe_kernel: Any = _observe_batch
    return (
        specialise(step_kernel, _STEP_SIGNATURE, step=dynamics.step, observe=dynamics.observe),
        specialise(observe_kernel, _OBSERVE_SIGNATURE, observe=dynamics.observe),
    )


@compiled("int64(float64[:,::1], int64)")
def _first_bad_action(actions, num_actions):  # type: ignore[no-untyped-def]
    """The environment whose action is not one of `num_actions` (0: any finite values), or -1."""
    for index in range(actions.shape[0]):
        for part in range(actions.shape[1]):
            action = actions[index, part]
            if not isfinite(action) or (num_actions > 0 and not 0.0 <= action < num_actions):
                return index
    return -1


def _step_batch(  # type: ignore[no-untyped-def]
    states, actions, num_actions, parameters, elapsed, max_episode_steps, restart, pending, cursor,
    obs, final_obs, reward, terminated, truncated,
):  # fmt: skip
    """Step every environment once, in place; where `restart` is set, begin a new episode where one ended.

    `final_obs` (B, O) are the true successors, `obs` (B, O) what to act on next. The next episode's state is
    `pending[index, cursor[index]]`. Returns STEPPED and how many episodes ended; or what was wrong and with which
    environment: for a bad action none has been stepped, for a value that is not finite those up to it.
    """
    bad = _first_bad_action(actions, num_actions)
    if bad >= 0:
        return BAD_ACTION, bad
    num_ended = 0
    for index in range(states.shape[0]):
        gain, terminal = step(states[index], actions[index], parameters)  # type: ignore[name-defined]  # noqa: F821
        observe(states[index], final_obs[index])  # type: ignore[name-defined]  # noqa: F821
        elapsed[index] += 1
        cut = elapsed[index] >= max_episode_steps
        reward[index] = gain
        terminated[index] = terminal
        truncated[index] = cut
        finite = isfinite(gain)
        for part in range(obs.shape[1]):
            finite = finite and isfinite(final_obs[index, part])
            obs[index, part] = final_obs[index, part]
        if not finite:
            return NOT_FINITE, index
        if terminal or cut:
            num_ended += 1
            if restart:
                for part in range(states.shape[1]):
                    states[index, part] = pending[index, cursor[index], part]
                cursor[index] += 1
                elapsed[index] = 0
                observe(states[index], obs[index])  # type: ignore[name-defined]  # noqa: F821
    return STEPPED, num_ended


def _observe_batch(states, obs):  # type: ignore[no-untyped-def]
    for index in range(states.shape[0]):
        observe(states[index], obs[index])  # type: ignore[name-defined]  # noqa: F821
