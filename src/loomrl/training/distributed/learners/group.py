"""The learners of a torch process group, as `loomrl.algorithms.peers.LearnerGroup`.

Without a parameter server: every learner has all parameters, and they meet in collectives. Policies are sent once, when
training begins; after that all of them take the same steps.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from loomrl.algorithms.base import State, below
from loomrl.algorithms.peers import LayerWeights, LearnerGroup, Moments, Vector
from loomrl.training.config import DistributedConfig
from loomrl.training.distributed.learners.compression import create_averaging
from loomrl.training.distributed.learners.watchdog import Watchdog
from loomrl.types import FloatArray, Json

_RECEIVER = "gloo_tcp_loop"  # name of Gloo's thread that waits for messages


class SharedParameters:
    """A parameter vector (P,) that all learners share, and how their copies become equal. Making it and `synchronise`
    are collectives: each learner waits for the others, and a lost or late one raises torch's RuntimeError."""

    def __init__(
        self, parameters: Tensor, matrices: Sequence[LayerWeights], config: DistributedConfig, group: dist.ProcessGroup
    ) -> None:
        self._parameters = parameters  # (P,), the algorithm's own
        self.averaging = create_averaging(config.compression, parameters.numel(), matrices, group)
        dist.broadcast(parameters, group=group, group_src=0)
        self._agreed = nn.Parameter(parameters.clone())
        momentum = config.outer_momentum
        self._outer = torch.optim.SGD([self._agreed], config.outer_learning_rate, momentum, nesterov=momentum > 0)

    def synchronise(self) -> int:
        """Take one outer step along the learners' mean movement and set the parameters to the result, in place; returns
        the bytes of payload that this learner sent."""
        moved = self._agreed.data - self._parameters
        num_bytes = self.averaging.average(moved)
        self._agreed.grad = moved
        self._outer.step()
        self._parameters.copy_(self._agreed.data)
        return num_bytes

    def state_dict(self) -> State:
        """The outer momentum, and what the averaging carries, by name; to be taken while all learners' parameters are
        equal."""
        state: State = {f"averaging.{name}": value for name, value in self.averaging.state_dict().items()}
        momentum = self._outer.state[self._agreed].get("momentum_buffer")
        return state if momentum is None else {**state, "momentum": momentum.numpy().copy()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`, after the algorithm has got its parameters back. The state of a learner that
        was alone is empty: momentum and averaging then begin anew."""
        self._agreed.data.copy_(self._parameters)
        if averaging := below("averaging.", state):
            self.averaging.load_state_dict(averaging)
        if "momentum" in state:
            self._outer.state[self._agreed]["momentum_buffer"] = torch.from_numpy(np.array(state["momentum"]))


class DistributedLearnerGroup(LearnerGroup):
    """The learners of one process group, seen from one of them. Methods that send something are collectives: each
    learner waits there for the others, and a lost or late one raises torch's RuntimeError, which ends this learner; Ray
    Train begins all of them again.

    Bytes are payload: what this learner contributes to collectives.
    """

    def __init__(self, config: DistributedConfig, watchdog: Watchdog, group: dist.ProcessGroup | None = None) -> None:
        found = group or dist.group.WORLD
        assert found is not None, "a process group is made before"
        calm_receiver()
        self._config, self._watchdog, self._group = config, watchdog, found
        self.rank, self.num_learners = found.rank(), found.size()
        self.all_reduces_gradients = config.sync_frequency == 1
        self._shared: list[SharedParameters] = []
        self._steps = 0  # since the parameters were one
        self._bytes = 0  # since `metrics` was asked

    @property
    def steps_until_synchronisation(self) -> float:
        """How many more gradient steps this learner may take before the parameters are synchronised; infinite where
        every gradient is averaged."""
        return math.inf if self.all_reduces_gradients else self._config.sync_frequency - self._steps

    # --- parameters ---

    def register_parameters(self, parameters: Vector, matrices: Sequence[LayerWeights]) -> None:
        """Register a parameter vector (P,) and the matrices that lie in it; all learners' copies become equal to the
        first learner's, in place."""
        with self._collective():
            self._shared.append(SharedParameters(torch.as_tensor(parameters), matrices, self._config, self._group))

    def all_reduce_gradient(self, gradient: Vector, number: int = 0) -> None:
        """Replace a gradient (P,) in place by the mean over all learners, whose batches must be of one size. `number`
        says to which vector it belongs, counted from 0 in the order of `register_parameters`.

        Raises:
            RuntimeError: when another learner is lost or late; the gradient is undefined then.
        """
        with self._collective():
            self._bytes += self._shared[number].averaging.average(torch.as_tensor(gradient))

    def count_steps(self, num_steps: int) -> None:
        """Count gradient steps this learner has taken; synchronises the parameters once there are `sync_frequency` of
        them. Does nothing where every gradient is averaged."""
        if self.all_reduces_gradients:
            return
        self._steps += num_steps
        if self._steps == self._config.sync_frequency:
            self.synchronise()

    def synchronise(self) -> None:
        """Make all learners' parameters equal by an outer step; does nothing where no step was taken since the last
        time."""
        if self._steps == 0:
            return
        with self._collective():
            self._bytes += sum(shared.synchronise() for shared in self._shared)
        self._steps = 0

    # --- numbers ---

    def all_reduce_moments(self, moments: Moments) -> Moments:
        """Mean, variance and count of all learners' values together (Chan, Golub and LeVeque, 1979); mean and variance
        keep their shape. Unchanged where no learner has any value."""
        shape = np.shape(moments.mean)
        rows = self._gathered(np.concatenate([[moments.count], moments.mean.ravel(), moments.var.ravel()]))
        count = rows[:, :1]
        means, variances = np.split(rows[:, 1:], 2, axis=1)
        total = float(count.sum())
        if total == 0.0:
            return moments
        mean = (count * means).sum(0) / total
        var = (count * (variances + (means - mean) ** 2)).sum(0) / total
        return Moments(mean.reshape(shape), var.reshape(shape), total)

    def all_reduce_mean(self, values: FloatArray) -> FloatArray:
        """The mean of an array (K,) over all learners, float64 (K,)."""
        found: FloatArray = self._gathered(values).mean(0)
        return found

    def _gathered(self, values: FloatArray) -> FloatArray:
        """Every learner's values (K,), in the order of ranks: (learners, K)."""
        own = torch.from_numpy(np.ascontiguousarray(values, np.float64))
        rows = [torch.empty_like(own) for _ in range(self.num_learners)]
        with self._collective(own.nbytes):
            dist.all_gather(rows, own, self._group)
        found: FloatArray = torch.stack(rows).numpy()
        return found

    def broadcast_from_first(self, compute: Callable[[], Json]) -> Json:
        """The result of `compute` on the first learner, sent to all; the others do not compute it."""
        found: list[Any] = [compute() if self.rank == 0 else None]
        with self._collective():
            dist.broadcast_object_list(found, group=self._group, group_src=0)
        answer: Json = found[0]
        return answer

    @contextmanager
    def _collective(self, num_bytes: int = 0) -> Iterator[None]:
        """Enter a collective: while this learner waits for the others, the watchdog does not count it as hanging."""
        self._bytes += num_bytes
        with self._watchdog.at_rest():
            yield

    def metrics(self) -> dict[str, float]:
        """`bytes_sent`: payload of gradients, parameters and moments since the last call. Not counted are
        `broadcast_from_first` and the first broadcast of the parameters."""
        num_bytes, self._bytes = self._bytes, 0
        return {"bytes_sent": float(num_bytes)}

    # --- state ---

    def state_dict(self) -> State:
        """The state of each shared parameter vector, under its number; to be taken while all learners' parameters are
        equal."""
        states = enumerate(shared.state_dict() for shared in self._shared)
        return {f"{number}.{name}": value for number, state in states for name, value in state.items()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`, after the algorithm has got its parameters back."""
        for number, shared in enumerate(self._shared):
            shared.load_state_dict(below(f"{number}.", state))
        self._steps = 0


def calm_receiver() -> None:
    """Put Gloo's thread that waits for messages into the system's class for batches, so that it takes no other thread's
    place on a core.

    It asks for a connection's lock again and again while another thread has it. When a message wakes it up on that
    thread's core, and takes its place there, both wait for the end of a time slice: milliseconds, in every second
    collective of learners with a core each. Where the system has no such class or names (Linux has), or does not allow
    it, nothing changes.
    """
    for thread in Path("/proc/self/task").glob("[0-9]*"):
        with suppress(OSError):  # it has ended, or may not be changed
            if (thread / "comm").read_text().strip() == _RECEIVER:
                os.sched_setscheduler(int(thread.name), os.SCHED_BATCH, os.sched_param(0))
