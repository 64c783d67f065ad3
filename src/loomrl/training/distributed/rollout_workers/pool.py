"""Rollout workers as Ray actors: their shares of a learner's environments follow their measured speed, and whoever is
lost, hangs or is slow is replaced.

Every rollout brings the state of its environments, where they have one: with it another worker goes on."""

import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from loomrl.environment.vector.states import State, joined, rows_of
from loomrl.training.distributed.calls import Calls
from loomrl.training.distributed.rollout_workers.environment_shares import EnvironmentShare, divided
from loomrl.training.distributed.rollout_workers.rollouts import WorkerRollout
from loomrl.training.distributed.rollout_workers.workers import RolloutWorker, WorkerSetup
from loomrl.training.seeds import Purpose, derive

CLOSE_SECONDS = 5.0
NEWEST = 0.3  # weight of the last rollout in a worker's mean speed
GAIN = 0.1  # share of a rollout's time that another division must save
SLOW = 0.25  # of the others' median speed: a worker below is replaced, once,
SLOW_SECONDS = 1.0  # where its rollouts take so long that it matters


@dataclass(frozen=True)
class RolloutTask:
    """A rollout that was requested from all workers and is under way: the reference `state` to the `PolicyState` to act
    by, the generator of the noise, whether log-probabilities are kept, and the calls."""

    state: Any  # reference to a `PolicyState`
    rng: np.random.Generator
    with_log_prob: bool
    calls: Calls


class RolloutWorkerPool:
    """The rollout workers of one learner with `num_envs` environments, each a Ray actor that takes `resources`.
    `num_replaced` counts workers that were replaced, because they were lost, slow, or busy for longer than
    `hang_timeout_seconds`.

    `warn` is called with a message for each of those; `waiting` is entered while the learner only waits for workers.
    """

    def __init__(
        self,
        setup: WorkerSetup,
        num_envs: int,
        resources: Mapping[str, float],
        hang_timeout_seconds: float,
        warn: Callable[[str], None],
        waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        import ray

        self._setup = ray.put(setup)  # sent once to each machine
        self._class = ray.remote(**options(resources))(RolloutWorker)
        self._num_envs, self._timeout = num_envs, hang_timeout_seconds
        self._warn, self._waiting = warn, waiting
        self._speeds: dict[int, float] = {}  # environment steps per second
        self._seconds: dict[int, float] = {}  # of the last rollout
        self._new, self._replaced_as_slow = set[int](), set[int]()
        self._started: dict[int, list[Any]] = {}  # what began a worker's segment, until its next rollout
        self._state: State = {}  # of all environments, after the last rollout
        self._is_first = True  # the rollout under way, since environments began anew
        self._losses = Counter[int]()  # of each worker, in that rollout
        self.num_replaced = 0
        self.workers = [self._create_worker(index) for index in range(setup.num_workers)]
        self._seed = derive(setup.seed, Purpose.EPISODES)
        self.shares = divided(num_envs, [1.0] * setup.num_workers)

    def _create_worker(self, index: int) -> Any:
        self._new.add(index)
        return self._class.remote(self._setup, index)

    # --- shares ---

    @property
    def state(self) -> State:
        """The state of all environments after the last rollout, arrays (B, ...) by name; empty before it, and where
        they cannot be saved."""
        return self._state

    def begin(self, seed: int, state: State) -> None:
        """Let all environments continue from a state, arrays (B, ...) by name. With an empty one they begin anew, and
        number i is seeded with `seed + i`. Slow workers may be replaced, and the workers' shares change, here only."""
        self._seed = seed
        before = self.shares
        self._replace_slow()
        self._divide()
        stays = state is self._state and bool(state)
        self._state, self._is_first = state, not state
        for index, share in enumerate(self.shares):
            if not stays or share != before[index] or index in self._new:
                self._begin(index, seed, state)

    def _begin(self, index: int, seed: int, state: State) -> None:
        share = self.shares[index]
        self._started[index] = [self.workers[index].begin.remote(share, seed, rows_of(state, share.rows))]

    def _divide(self) -> None:
        if len(self._speeds) < len(self.workers):
            return
        speeds = [self._speeds[index] for index in range(len(self.workers))]
        shares = divided(self._num_envs, speeds)
        if _longest(shares, speeds) < (1 - GAIN) * _longest(self.shares, speeds):
            self.shares = shares

    def _replace_slow(self) -> None:
        """Replace workers that are much slower than the others, each once: on another machine they may be faster."""
        for index, speed in [*self._speeds.items()]:
            others = [other for number, other in self._speeds.items() if number != index]
            if index in self._replaced_as_slow or not others or self._seconds[index] < SLOW_SECONDS:
                continue
            if speed >= SLOW * statistics.median(others):
                continue
            self._replaced_as_slow.add(index)
            self._replace(index, f"it does {speed:.3g} environment steps per second, others {max(others):.3g}")

    def _measure(self, rollouts: list[WorkerRollout]) -> None:
        """Update the workers' speeds; a new worker's first rollout is not counted, since it compiles."""
        for index, rollout in enumerate(rollouts):
            if index in self._new:
                continue
            before = self._speeds.get(index, rollout.speed)
            self._speeds[index] = (1 - NEWEST) * before + NEWEST * rollout.speed
            self._seconds[index] = rollout.seconds

    # --- rollouts ---

    def request_rollouts(self, state: Any, rng: np.random.Generator, with_log_prob: bool = False) -> RolloutTask:
        """Have every worker collect a rollout, and return at once. `state` is a Ray reference to the `PolicyState` to
        act by, `rng` the generator of the noise, which each worker gets a copy of."""
        task = RolloutTask(state, rng, with_log_prob, Calls(self._timeout, "training.distributed.hang_timeout_seconds"))
        for index in range(len(self.workers)):
            self._send(index, task)
        return task

    def _send(self, index: int, task: RolloutTask) -> None:
        worker = self.workers[index]
        before = [*self._started.pop(index, []), worker.sync_policy.remote(task.state)]
        rollout = worker.collect_rollout.remote(task.rng, task.with_log_prob)
        task.calls.add(index, rollout, before, index in self._new)

    def wait_for_rollouts(self, task: RolloutTask) -> list[WorkerRollout]:
        """Wait for the rollouts of all workers; returns them in the order of workers.

        A rollout that is lost is collected again by another worker: the same one, from the state after the last
        rollout; without such a state, or after a second loss, with other episodes.

        Raises:
            LoomRLError: that a worker raised, such as an `EnvironmentFault`; or when workers are lost again and again.
        """

        def collect_again(index: int, reason: str) -> None:
            self._replace(index, reason)
            self._begin_again(index)
            self._send(index, task)

        with self._waiting():
            found = task.calls.wait_for_results(collect_again, "rollout worker {} was lost {} times in one rollout")
        rollouts = [found[index] for index in range(len(self.workers))]
        self._measure(rollouts)
        self._new.clear()
        self._is_first = False
        self._losses.clear()
        self._state = joined([rollout.environments for rollout in rollouts])
        return rollouts

    def _begin_again(self, index: int) -> None:
        """Begin where the rollout began, once; after a second loss with other episodes, since these may end the worker
        again."""
        self._losses[index] += 1
        if self._losses[index] == 1 and (self._state or self._is_first):
            self._begin(index, self._seed, self._state)
        else:
            self._begin(index, derive(self._seed, Purpose.EPISODES, self.num_replaced), {})

    def _replace(self, index: int, reason: str) -> None:
        import ray

        self.num_replaced += 1
        self._warn(f"rollout worker {index} is replaced: {reason}")
        ray.kill(self.workers[index])
        self.workers[index] = self._create_worker(index)
        self._speeds.pop(index, None)

    def close(self) -> None:
        """Close the environments of all workers, for which they have CLOSE_SECONDS, and end their processes."""
        import ray

        closed = [worker.close.remote() for worker in self.workers]
        ray.wait(closed, num_returns=len(closed), timeout=CLOSE_SECONDS)
        for worker in self.workers:
            ray.kill(worker)


def options(resources: Mapping[str, float]) -> dict[str, Any]:
    """The options of a Ray actor that needs these resources: "CPU", "GPU" and "memory" under Ray's names for them,
    others under `resources`."""
    named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    known = {named[name]: amount for name, amount in resources.items() if name in named}
    others = {name: amount for name, amount in resources.items() if name not in named}
    return {"num_cpus": 0, **known, "resources": others, "scheduling_strategy": "DEFAULT"}


def _longest(shares: list[EnvironmentShare], speeds: list[float]) -> float:
    """Seconds that the slowest worker takes for a step in all of its environments."""
    return max(share.num_envs / speed for share, speed in zip(shares, speeds, strict=True))
