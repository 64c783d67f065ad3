"""Means of vectors over the learners, with less on the wire than the vectors.

An `Averaging` replaces every learner's vector by the mean of all: the same bits for all of them. It returns how many
bytes of payload this learner handed over: what it contributes, before the collective's own algorithm passes it on.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from loomrl.algorithms.base import State
from loomrl.algorithms.peers import LayerWeights
from loomrl.training.config import CompressionConfig

BLOCK = 256  # numbers that share a scale
FIRST_POWERSGD = 2  # calls that are averaged whole before; torch demands two
# Groups that torch's PowerSGD met in. Its callbacks hold the group, and are let go of on a thread of the group: were
# that the last reference, the group would wait for its own thread and end the process. So they are kept until it ends.
_KEPT: set[dist.ProcessGroup] = set()
_POWERSGD_MEMORY = ("error_dict", "p_memory_dict", "q_memory_dict")


class Averaging:
    """A way to average a vector (P,) over the members of a process group. All members call `average`, and each waits
    for the others there; where one is lost or does not come in time, it raises torch's RuntimeError."""

    def average(self, vector: Tensor) -> int:
        """Replace the vector (P,) in place by the mean over all members; returns the bytes of payload this member sent.

        Raises:
            RuntimeError: when another member is lost or late; the vector is undefined then.
        """
        raise NotImplementedError

    def state_dict(self) -> State:
        """What is carried from one call of `average` to the next, arrays and numbers by name; empty where nothing
        is."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Continue where `state_dict()` of an equal averaging was taken."""


def create_averaging(
    config: CompressionConfig, size: int, matrices: Sequence[LayerWeights], group: dist.ProcessGroup
) -> Averaging:
    """The averaging that a config's `method` selects, for vectors of `size` numbers in which these matrices lie."""
    match config.method:
        case "powersgd":
            return PowerSGDAveraging(config.rank, matrices, group)
        case "int8":
            return ErrorFeedbackAveraging(BlockQuantization(size), size, group)
        case "top_k":
            return ErrorFeedbackAveraging(TopKSelection(config.share, size), size, group)
        case "none":
            return AllReduceAveraging(group)
        case _:
            return HalfPrecisionAveraging(config.method, group)


class GradientBucket:
    """A vector (P,) with the interface of `torch.distributed.GradBucket` that torch's communication hooks expect."""

    def __init__(self, vector: Tensor, matrices: Sequence[LayerWeights] = ()) -> None:
        self._vector, self._matrices = vector, matrices

    def buffer(self) -> Tensor:
        """The vector (P,) itself, which a hook changes in place."""
        return self._vector

    def gradients(self) -> list[Tensor]:
        """Views of the whole vector, in order: the matrices (rows, columns), and the vectors between them."""
        views, end = [], 0
        for start, rows, columns in sorted(self._matrices):
            views += [self._vector[end:start], self._vector[start : start + rows * columns].view(rows, columns)]
            end = start + rows * columns
        return [view for view in (*views, self._vector[end:]) if view.numel()]

    @staticmethod
    def index() -> int:
        """The bucket's number: always 0, since the whole vector is one bucket."""
        return 0

    @staticmethod
    def is_last() -> bool:
        """Whether this is the last bucket: always True, since the whole vector is one bucket."""
        return True


class AllReduceAveraging(Averaging):
    """Averages in full precision by one all-reduce. torch's hook is not used: its future would wake two more threads
    for each gradient."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def average(self, vector: Tensor) -> int:
        """Replace the vector (P,) in place by the mean over all members; returns the bytes of payload this member sent:
        4 per number.

        Raises:
            RuntimeError: when another member is lost or late; the vector is undefined then.
        """
        dist.all_reduce(vector, group=self._group)
        vector.div_(self._group.size())
        return vector.nbytes


class HalfPrecisionAveraging(Averaging):
    """Averages in 16 bits (`fp16` or `bf16`), by torch's own communication hooks."""

    _HOOKS: dict[str, Callable[..., Any]] = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }

    def __init__(self, method: str, group: dist.ProcessGroup) -> None:
        self._hook, self._group = self._HOOKS[method], group

    def average(self, vector: Tensor) -> int:
        """Replace the vector (P,) in place by the mean over all members; returns the bytes of payload this member sent:
        2 per number.

        Raises:
            RuntimeError: when another member is lost or late; the vector is undefined then.
        """
        self._hook(self._group, GradientBucket(vector)).wait()
        return vector.nbytes // 2


class PowerSGDAveraging(Averaging):
    """Averages by torch's PowerSGD: matrices are sent as products of thin ones, with error feedback (Vogels et al.,
    arXiv 1905.13727). The first FIRST_POWERSGD vectors are averaged whole."""

    def __init__(self, rank: int, matrices: Sequence[LayerWeights], group: dist.ProcessGroup) -> None:
        _KEPT.add(group)
        self._matrices = matrices
        self._state = powerSGD_hook.PowerSGDState(group, rank, FIRST_POWERSGD)

    def average(self, vector: Tensor) -> int:
        """Replace the vector (P,) in place by the mean over all members; returns the bytes of payload this member sent:
        4 per number of the thin matrices and of what is no matrix.

        Raises:
            RuntimeError: when another member is lost or late; the vector is undefined then.
        """
        state = self._state
        is_whole, before = state.iter < FIRST_POWERSGD, state.total_numel_after_compression
        averaged = powerSGD_hook.powerSGD_hook(state, GradientBucket(vector, self._matrices)).wait()
        vector.copy_(averaged)
        numbers = vector.numel() if is_whole else state.total_numel_after_compression - before
        return 4 * numbers

    def state_dict(self) -> State:
        """`calls`, their number so far; and, after the first compressed call, the error and the thin matrices as
        arrays."""
        memories = {name: getattr(self._state, name) for name in _POWERSGD_MEMORY}
        kept = {name: memory[0].numpy().copy() for name, memory in memories.items() if 0 in memory}
        return {**kept, "calls": self._state.iter}

    def load_state_dict(self, state: State) -> None:
        """Restore error, thin matrices and the number of calls from `state_dict()`."""
        self._state.iter = int(state["calls"])
        for name in _POWERSGD_MEMORY:
            if name in state:
                getattr(self._state, name)[0] = torch.from_numpy(state[name]).clone()


class BlockQuantization:
    """Encodes each number as one signed byte, with one float32 scale for each BLOCK numbers."""

    def __init__(self, size: int) -> None:
        self._size, self._padding = size, -size % BLOCK

    def encode(self, vector: Tensor) -> Tensor:
        """(P,) float32 -> (M,) uint8: the scales of all blocks, then one byte per number."""
        blocks = torch.nn.functional.pad(vector, (0, self._padding)).view(-1, BLOCK)
        scale = (blocks.abs().amax(1) / 127.0).clamp_min(torch.finfo(torch.float32).tiny)
        steps = (blocks / scale[:, None]).round().to(torch.int8).view(-1)[: self._size]
        return torch.cat([scale.view(torch.uint8), steps.view(torch.uint8)])

    def decode(self, message: Tensor) -> Tensor:
        """(M,) uint8 -> (P,) float32: each byte times the scale of its block."""
        scale = message[: -self._size].clone().view(torch.float32)
        steps = message[-self._size :].view(torch.int8).to(torch.float32)
        blocks = torch.nn.functional.pad(steps, (0, self._padding)).view(-1, BLOCK) * scale[:, None]
        return blocks.view(-1)[: self._size]


class TopKSelection:
    """Encodes the `share` of numbers with the largest magnitudes, at least one, and their positions."""

    def __init__(self, share: float, size: int) -> None:
        self._size, self._count = size, max(1, round(share * size))

    def encode(self, vector: Tensor) -> Tensor:
        """(P,) float32 -> (M,) uint8: int32 positions, then float32 numbers; 8 bytes for each number sent."""
        places = vector.abs().topk(self._count, sorted=False).indices
        return torch.cat([places.to(torch.int32).view(torch.uint8), vector[places].view(torch.uint8)])

    def decode(self, message: Tensor) -> Tensor:
        """(M,) uint8 -> (P,) float32: the numbers that were sent at their positions, 0 elsewhere."""
        places, numbers = message.view(2, -1)
        vector = torch.zeros(self._size)
        vector[places.clone().view(torch.int32).long()] = numbers.clone().view(torch.float32)
        return vector


class ErrorFeedbackAveraging(Averaging):
    """Averages vectors that are sent as messages of a code, which loses something; what a message left out is added to
    the next vector (Karimireddy et al., arXiv 1901.09847).

    All members decode all messages and take their mean, in the order of ranks.
    """

    def __init__(self, code: BlockQuantization | TopKSelection, size: int, group: dist.ProcessGroup) -> None:
        self._code, self._group = code, group
        self._left_out = torch.zeros(size)

    def average(self, vector: Tensor) -> int:
        """Replace the vector (P,) in place by the mean over all members; returns the bytes of payload this member sent:
        the length of its message.

        Raises:
            RuntimeError: when another member is lost or late.
        """
        wanted = vector + self._left_out
        message = self._code.encode(wanted)
        self._left_out = wanted - self._code.decode(message)
        messages = [torch.empty_like(message) for _ in range(self._group.size())]
        dist.all_gather(messages, message, self._group)
        vector.copy_(torch.stack([self._code.decode(one) for one in messages]).mean(0))
        return message.numel()

    def state_dict(self) -> State:
        """What earlier messages left out and later ones must add: `left_out` (P,) float32."""
        return {"left_out": self._left_out.numpy().copy()}

    def load_state_dict(self, state: State) -> None:
        """Restore the error that earlier messages left out from `state_dict()`."""
        self._left_out = torch.from_numpy(state["left_out"]).clone()
