"""The compiled inner loops over rows: writing steps and gathering transitions.

Arrays (B environments, P physical rows, f bytes a frame, s = k * f bytes an observation, a bytes an action)
are those of `Ring`. All observations and actions are bytes here, so one compilation serves every type. Row r of an
environment stands in slot r % P; r counts up for ever. `head` is what follows the newest row.

Two side stores are rings too: `finals` keeps the true successor of every row whose successor is not the next row
(an episode ended, or the next step began elsewhere), `starts` the older frames of first rows that are not copies of the
newest one. Their keys r * B + b ascend, so they are found by bisection and released in the order of the rows.
"""

from typing import Any, NamedTuple

import numpy as np
from numba.core import cgutils, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from loomrl.algorithms.replay.compiled import compiled

Array = NDArray[Any]
declared: Any = intrinsic  # numba's own annotations are wrong about what it makes
raw_memcpy: Any = cgutils.raw_memcpy

ROWS, FINALS_BEGIN, FINALS_END, STARTS_BEGIN, STARTS_END, NUM_COUNTERS = 0, 1, 2, 3, 4, 5
TERMINATED, TRUNCATED, CUT, START, ODD_START = 1, 2, 4, 8, 16  # bits of a row's flags
LARGEST = 3.4028234663852886e38  # of float32

DONE, BAD_REWARD, BAD_STACK = 0, 1, 2  # what `inspect` finds


class Ring(NamedTuple):
    """All arrays of a buffer's rows. Compiled entry points take them one by one: a call with a named tuple is slow.

    `counters` (NUM_COUNTERS,); `obs` (B, P, f), `action` (B, P, a), `reward` (B, P) and `flags` (B, P) by slot; `head`
    (B, s), what follows the newest row; `final_keys` (F,) and `finals` (F, s), `start_keys` (S,) and `starts` (S, s),
    the two side stores. f, a and s are the bytes of a frame, an action and an observation.
    """

    counters: Array  # (NUM_COUNTERS,)
    obs: Array  # (B, P, f)
    action: Array  # (B, P, a)
    reward: Array  # (B, P)
    flags: Array  # (B, P)
    head: Array  # (B, s)
    final_keys: Array  # (F,)
    finals: Array  # (F, s)
    start_keys: Array  # (S,)
    starts: Array  # (S, s)


@compiled
def inspect(
    obs: Array, next_obs: Array, reward: Array, terminated: Array, truncated: Array, frame: int
) -> tuple[int, int, int]:
    """A triple (finding, t, b) about the first step of a trajectory (T, B) that cannot be kept: `BAD_REWARD`, one that
    float32 cannot hold, or `BAD_STACK`, frames that do not move on by one. (`DONE`, 0, 0) where all can be kept.
    `frame` is the number of bytes of a frame."""
    overlap = obs.shape[2] - frame
    for t in range(reward.shape[0]):
        for b in range(reward.shape[1]):
            if not abs(reward[t, b]) <= LARGEST:
                return BAD_REWARD, t, b
            if not (terminated[t, b] or truncated[t, b]):
                for i in range(overlap):
                    if next_obs[t, b, i] != obs[t, b, i + frame]:
                        return BAD_STACK, t, b
    return DONE, 0, 0


@compiled
def rearrange(target: Array, source: Array, order: Array) -> None:
    """Write the bytes of N observations in another order: byte j of `target` (N, s) is byte `order[j]` of `source` (N,
    s)."""
    for i in range(target.shape[0]):
        for j in range(target.shape[1]):
            target[i, j] = source[i, order[j]]


@compiled
def _equal(left: Array, right: Array) -> bool:
    # Whole words of work between the checks, so that the comparison is done in vectors.
    size, position = left.shape[0], 0
    while position < size:
        stop = min(position + 256, size)
        different = 0
        for i in range(position, stop):
            different |= left[i] ^ right[i]
        if different:
            return False
        position = stop
    return True


@declared  # type: ignore[untyped-decorator]
def _memcpy(context: Any, target: Any, source: Any, size: Any) -> Any:  # noqa: ARG001 - an intrinsic's signature
    """The C library's, between addresses: several times as fast as a loop over a row's bytes."""

    def generate(target_context: Any, builder: Any, signature: Any, arguments: Any) -> Any:  # noqa: ARG001 - numba's signature
        addresses = [builder.inttoptr(argument, cgutils.voidptr_t) for argument in arguments[:2]]
        raw_memcpy(builder, *addresses, arguments[2], 1)
        return target_context.get_dummy_value()

    return types.void(types.intp, types.intp, types.intp), generate


@compiled
def _copy(target: Array, source: Array) -> None:
    """Bytes of one contiguous row into another."""
    _memcpy(target.ctypes.data, source.ctypes.data, min(target.shape[0], source.shape[0]))


@compiled
def _is_padded(obs: Array, frame: int) -> bool:
    """Whether all frames are copies of the newest, as after a reset."""
    newest, start = obs.shape[0] - frame, 0
    while start < newest and _equal(obs[start : start + frame], obs[newest:]):
        start += frame
    return bool(start >= newest)


@compiled
def _released(keys: Array, begin: int, end: int, oldest_key: int) -> int:
    while begin < end and keys[begin % keys.shape[0]] < oldest_key:
        begin += 1
    return begin


@compiled
def append(
    counters: Array,
    obs: Array,
    action: Array,
    reward: Array,
    flags: Array,
    head: Array,
    final_keys: Array,
    finals: Array,
    start_keys: Array,
    starts: Array,
    new_obs: Array,  # (T, B, s)
    new_action: Array,  # (T, B, a)
    new_reward: Array,  # (T, B)
    terminated: Array,  # (T, B)
    truncated: Array,  # (T, B)
    new_next_obs: Array,  # (T, B, s)
    first: int,
) -> int:
    """Write the steps of a trajectory (T, B, ...) from number `first` on into the ring. Returns the number of the first
    step that was not written: T, or less when a side store is full and must grow before the next call."""
    num_envs, num_slots, frame = obs.shape
    older = head.shape[1] - frame  # bytes of the frames before the newest
    for t in range(first, new_obs.shape[0]):
        row = counters[ROWS]
        slot, previous = row % num_slots, (row - 1) % num_slots
        oldest_key = (row - num_slots + 1) * num_envs
        counters[FINALS_BEGIN] = _released(final_keys, counters[FINALS_BEGIN], counters[FINALS_END], oldest_key)
        counters[STARTS_BEGIN] = _released(start_keys, counters[STARTS_BEGIN], counters[STARTS_END], oldest_key)
        if row > 0 and counters[FINALS_END] - counters[FINALS_BEGIN] + num_envs > final_keys.shape[0]:
            return t
        if older > 0 and counters[STARTS_END] - counters[STARTS_BEGIN] + num_envs > start_keys.shape[0]:
            return t
        for b in range(num_envs):
            start = row == 0
            if row > 0:
                ended = flags[b, previous] & (TERMINATED | TRUNCATED) != 0
                if ended or not _equal(head[b], new_obs[t, b]):
                    start = True
                    position = counters[FINALS_END] % final_keys.shape[0]
                    final_keys[position] = (row - 1) * num_envs + b
                    _copy(finals[position], head[b])
                    counters[FINALS_END] += 1
                    if not ended:
                        flags[b, previous] |= CUT
            bits = TERMINATED * terminated[t, b] + TRUNCATED * truncated[t, b] + START * start
            if start and older > 0 and not _is_padded(new_obs[t, b], frame):
                bits |= ODD_START
                position = counters[STARTS_END] % start_keys.shape[0]
                start_keys[position] = row * num_envs + b
                _copy(starts[position], new_obs[t, b])
                counters[STARTS_END] += 1
            _copy(obs[b, slot], new_obs[t, b, older:])
            _copy(action[b, slot], new_action[t, b])
            reward[b, slot] = new_reward[t, b]
            flags[b, slot] = bits
        for b in range(num_envs):
            _copy(head[b], new_next_obs[t, b])
        counters[ROWS] = row + 1  # last: a row that is counted is whole
    return int(new_obs.shape[0])


@compiled
def _find(keys: Array, begin: int, end: int, key: int) -> int:
    """The position of `key` in a ring whose keys ascend."""
    while begin < end:
        middle = (begin + end) // 2
        if keys[middle % keys.shape[0]] < key:
            begin = middle + 1
        else:
            end = middle
    return int(begin % keys.shape[0])


@compiled
def _stack_before(ring: Ring, b: int, slot: int, row: int, target: Array) -> None:
    """The frames before that of a row, newest first; at the start of its episode, what was there then."""
    num_envs, num_slots, frame = ring.obs.shape
    newest = place = target.shape[0] - frame
    while place > 0 and ring.flags[b, slot] & START == 0:
        row -= 1
        slot = row % num_slots
        place -= frame
        _copy(target[place : place + frame], ring.obs[b, slot])
    if place > 0 and ring.flags[b, slot] & ODD_START:
        begin, end = ring.counters[STARTS_BEGIN], ring.counters[STARTS_END]
        position = _find(ring.start_keys, begin, end, row * num_envs + b)
        _copy(target[:place], ring.starts[position, newest - place : newest])
    else:
        for older in range(0, place, frame):
            _copy(target[older : older + frame], ring.obs[b, slot])


@compiled
def _sum_rewards(reward: Array, flags: Array, slot: int, steps: int, gamma: float) -> tuple[float, float, int, int]:
    """Discounted sum over `steps` steps (P,) from a slot, or to their episode's end; gamma^k, k, the last flags."""
    total, discount, k = 0.0, 1.0, 0
    while True:
        total += discount * reward[slot]
        discount *= gamma
        bits = flags[slot]
        k += 1
        if k == steps or bits & (TERMINATED | TRUNCATED | CUT):
            return total, discount, k, bits
        slot = slot + 1 if slot + 1 < flags.shape[0] else 0


@compiled
def gather(
    counters: Array,
    obs: Array,
    action: Array,
    reward: Array,
    flags: Array,
    head: Array,
    final_keys: Array,
    finals: Array,
    start_keys: Array,
    starts: Array,
    index: Array,  # (N,): r * B + b
    n_step: int,
    gamma: float,
    out_obs: Array,  # (N, s)
    out_action: Array,  # (N, a)
    out_reward: Array,  # (N,)
    out_next_obs: Array,  # (N, s)
    out_terminated: Array,  # (N,)
    out_discount: Array,  # (N,)
) -> None:
    """Write N transitions, named by `index` (N,), into the `out_` arrays (N, ...), each over up to `n_step` steps of
    its episode.

    One array after the other for the whole batch: short loops, in which the processor waits for many rows at a time.
    Indices are not checked.
    """
    ring = Ring(counters, obs, action, reward, flags, head, final_keys, finals, start_keys, starts)
    count = index.shape[0]
    num_envs, num_slots, frame = ring.obs.shape
    newest = ring.counters[ROWS] - 1
    env, row, slot = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    for i in range(count):
        row[i] = index[i] // num_envs
        env[i] = index[i] - row[i] * num_envs
        slot[i] = row[i] % num_slots
    older = out_obs.shape[1] - frame
    for i in range(count):
        _copy(out_obs[i, older:], ring.obs[env[i], slot[i]])
        if older > 0:
            _stack_before(ring, env[i], slot[i], row[i], out_obs[i])
    for i in range(count):
        _copy(out_action[i], ring.action[env[i], slot[i]])
    bits = np.empty(count, np.uint8)
    for i in range(count):
        steps = min(n_step, newest - row[i] + 1)
        total, discount, k, bits[i] = _sum_rewards(ring.reward[env[i]], ring.flags[env[i]], slot[i], steps, gamma)
        out_reward[i], out_discount[i] = total, discount
        out_terminated[i] = bits[i] & TERMINATED != 0
        row[i] += k
        slot[i] = (slot[i] + k) % num_slots
    begin, end = ring.counters[FINALS_BEGIN], ring.counters[FINALS_END]
    for i in range(count):
        if row[i] > newest:
            _copy(out_next_obs[i], ring.head[env[i]])
        elif bits[i] & (TERMINATED | TRUNCATED | CUT):
            position = _find(ring.final_keys, begin, end, (row[i] - 1) * num_envs + env[i])
            _copy(out_next_obs[i], ring.finals[position])
        else:
            _copy(out_next_obs[i, older:], ring.obs[env[i], slot[i]])
            if older > 0:
                _stack_before(ring, env[i], slot[i], row[i], out_next_obs[i])
