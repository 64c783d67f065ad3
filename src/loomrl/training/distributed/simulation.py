"""What an update costs with many learners, before there are many: time and efficiency from measured costs.

A learner collects a rollout, then takes gradient steps. All wait for the slowest wherever they meet: after the rollout,
and in every synchronisation. Collectives are rings, as Gloo's are: a message goes from each learner to the next one.
Every learner has as much to do as one alone has, so N learners do N times as much in an update.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loomrl.training.config import CompressionConfig, DistributedConfig
from loomrl.training.distributed.learners.compression import BLOCK
from loomrl.types import FloatArray


@dataclass(frozen=True)
class Work:
    """What one learner does in one update, with mean times in seconds. Spreads are standard deviations over means;
    times are lognormal.

    `num_parameters` are sent in each synchronisation; `matrices` are (rows, columns) of those among them, for
    `powersgd`. `num_meetings` are the small messages to all in an update, `decode_seconds` the time for one learner's
    message of `int8` or `top_k`.
    """

    rollout_seconds: float
    gradient_steps: int
    seconds_per_gradient_step: float
    num_parameters: int
    matrices: tuple[tuple[int, int], ...] = ()  # (rows, columns) of those among them; for `powersgd`
    rollout_spread: float = 0.0
    gradient_step_spread: float = 0.0
    num_meetings: int = 4  # small messages to all: metrics, moments of observations, rewards and advantages
    decode_seconds: float = 0.0  # for one learner's message, of `int8` and `top_k`

    @property
    def seconds(self) -> float:
        """Mean seconds of an update of one learner alone."""
        return self.rollout_seconds + self.gradient_steps * self.seconds_per_gradient_step


@dataclass(frozen=True)
class Machines:
    """Network and machines: the latency of one message from a learner to the next, the bandwidth, the share of updates,
    0 to 1, for which a learner is slow, and by which factor its times are longer then."""

    latency_seconds: float  # of one message, from one learner to the next
    bytes_per_second: float
    slow_share: float = 0.0
    slow_factor: float = 2.0

    def all_reduce_seconds(self, num_learners: int, num_bytes: float) -> float:
        """Seconds of an all-reduce of `num_bytes` bytes: 2 (N - 1) messages one after another, of an N-th of the bytes
        each (Patarasuk and Yuan, 2009)."""
        messages = 2 * (num_learners - 1)
        return messages * (self.latency_seconds + num_bytes / num_learners / self.bytes_per_second)

    def all_gather_seconds(self, num_learners: int, num_bytes: float) -> float:
        """Seconds of an all-gather: N - 1 messages one after another, of all `num_bytes` bytes of one learner each."""
        return (num_learners - 1) * (self.latency_seconds + num_bytes / self.bytes_per_second)


def bytes_per_synchronisation(compression: CompressionConfig, work: Work) -> float:
    """Bytes of payload that one learner sends in one synchronisation of its `work.num_parameters` numbers, with this
    compression."""
    count = work.num_parameters
    match compression.method:
        case "none":
            return 4 * count
        case "fp16" | "bf16":
            return 2 * count
        case "int8":
            return count + 4 * -(-count // BLOCK)
        case "top_k":
            return 8 * max(1, round(compression.share * count))
        case "powersgd":
            thin = [(rows * columns, compression.rank * (rows + columns)) for rows, columns in work.matrices]
            return 4 * (count - sum(whole - small for whole, small in thin if 2 * small < whole))


def synchronisation_seconds(config: DistributedConfig, work: Work, machines: Machines) -> float:
    """Seconds of one synchronisation once all learners are there; 0 for one learner. Messages of `int8` and `top_k` are
    gathered and decoded, others are all-reduced."""
    num_bytes, count = bytes_per_synchronisation(config.compression, work), config.num_learners
    if count == 1:
        return 0.0
    if config.compression.method in ("int8", "top_k"):
        return machines.all_gather_seconds(count, num_bytes) + count * work.decode_seconds
    return machines.all_reduce_seconds(count, num_bytes)


def seconds_per_update(
    config: DistributedConfig, work: Work, machines: Machines, rng: np.random.Generator, num_updates: int = 200
) -> FloatArray:
    """Durations of `num_updates` updates by `config.num_learners` learners, (num_updates,) in seconds, drawn with
    `rng`."""
    learners = _Learners(work, machines, rng, (num_updates, config.num_learners))
    seconds = learners.rollouts()
    for num_steps in _segments(work.gradient_steps, config.sync_frequency):
        seconds += learners.gradient_steps(num_steps)
    synchronisations = work.gradient_steps / config.sync_frequency
    meetings = work.num_meetings * machines.all_gather_seconds(config.num_learners, 0.0)
    return seconds + meetings + synchronisations * synchronisation_seconds(config, work, machines)


def efficiency(config: DistributedConfig, work: Work, machines: Machines, rng: np.random.Generator) -> float:
    """Throughput as a share of what as many learners would reach that never wait for one another, 0 to 1; the mean over
    updates drawn with `rng`."""
    return work.seconds / float(seconds_per_update(config, work, machines, rng).mean())


class _Learners:
    """Draws how long the slowest of a group takes; `shape` is (updates, learners)."""

    def __init__(self, work: Work, machines: Machines, rng: np.random.Generator, shape: tuple[int, int]) -> None:
        self._work, self._rng, self._shape = work, rng, shape
        self._factor = np.where(rng.random(shape) < machines.slow_share, machines.slow_factor, 1.0)

    def rollouts(self) -> FloatArray:
        """(updates,) seconds until the last one has its rollout."""
        return self._slowest(self._work.rollout_seconds, self._work.rollout_spread)

    def gradient_steps(self, count: int) -> FloatArray:
        """(updates,) seconds until the last one has taken so many."""
        work = self._work
        return self._slowest(count * work.seconds_per_gradient_step, work.gradient_step_spread / np.sqrt(count))

    def _slowest(self, mean: float, spread: float) -> FloatArray:
        variance = np.log1p(spread**2)  # of the logarithm
        drawn = self._rng.lognormal(np.log(mean) - variance / 2, np.sqrt(variance), self._shape)
        found: FloatArray = (self._factor * drawn).max(axis=1)
        return found


def _segments(num_steps: int, sync_frequency: int) -> Iterator[int]:
    """Gradient steps of an update from one meeting to the next."""
    whole, rest = divmod(num_steps, sync_frequency)
    yield from [sync_frequency] * whole
    if rest:
        yield rest
