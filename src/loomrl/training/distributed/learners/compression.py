"""Means of vectors over the learners, with less on the wire than the vectors.

An `Averaging` replaces every learner's vector by the mean of all: the same bits for all of them. It returns how many
bytes of payload this learner handed over: what it contributes, before the collective's own algorithm passes it on.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

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


class Averaging(Protocol):
    """One way to average the vector (P,) of a process group's members."""

    def average(self, vector: Tensor) -> int:
        """Replace it by the mean; returns the bytes of payload."""

    def state_dict(self) -> State:
        """What is kept from one call to the next."""

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`."""


def make_averaging(
    config: CompressionConfig, size: int, matrices: Sequence[LayerWeights], group: dist.ProcessGroup
) -> Averaging:
    """The one a config asks for, for vectors of `size` numbers with these matrices in them."""
    match config.method:
        case "powersgd":
            return PowerSGD(config.rank, matrices, group)
        case "int8":
            return ErrorFeedback(BlockQuantization(size), size, group)
        case "top_k":
            return ErrorFeedback(Largest(config.share, size), size, group)
        case "none":
            return Whole(group)
        case _:
            return Hooked(config.method, group)


class GradientBucket:
    """A vector as torch's communication hooks want it: what `torch.distributed.GradBucket` offers of one."""

    def __init__(self, vector: Tensor, matrices: Sequence[LayerWeights] = ()) -> None:
        self._vector, self._matrices = vector, matrices

    def buffer(self) -> Tensor:
        """The vector, which a hook changes in place."""
        return self._vector

    def gradients(self) -> list[Tensor]:
        """Views of all of it, in order: matrices, and the vectors between them."""
        views, end = [], 0
        for start, rows, columns in sorted(self._matrices):
            views += [self._vector[end:start], self._vector[start : start + rows * columns].view(rows, columns)]
            end = start + rows * columns
        return [view for view in (*views, self._vector[end:]) if view.numel()]

    @staticmethod
    def index() -> int:
        """There is one."""
        return 0

    @staticmethod
    def is_last() -> bool:
        """There is one."""
        return True


class Whole:
    """Every number as it is. Without torch's hook, whose future wakes two more threads for each gradient."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group

    def average(self, vector: Tensor) -> int:
        """See `Averaging`."""
        dist.all_reduce(vector, group=self._group)
        vector.div_(self._group.size())
        return vector.nbytes

    def state_dict(self) -> State:
        """Nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing."""


class Hooked:
    """One of torch's hooks that need no memory: rounded to half as many bits."""

    _HOOKS: dict[str, Callable[..., Any]] = {
        "fp16": default_hooks.fp16_compress_hook,
        "bf16": default_hooks.bf16_compress_hook,
    }

    def __init__(self, method: str, group: dist.ProcessGroup) -> None:
        self._hook, self._group = self._HOOKS[method], group

    def average(self, vector: Tensor) -> int:
        """See `Averaging`."""
        self._hook(self._group, GradientBucket(vector)).wait()
        return vector.nbytes // 2

    def state_dict(self) -> State:
        """Nothing."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Nothing."""


class PowerSGD:
    """torch's: matrices as products of thin ones, with error feedback (Vogels et al., arXiv 1905.13727)."""

    def __init__(self, rank: int, matrices: Sequence[LayerWeights], group: dist.ProcessGroup) -> None:
        _KEPT.add(group)
        self._matrices = matrices
        self._state = powerSGD_hook.PowerSGDState(group, rank, FIRST_POWERSGD)

    def average(self, vector: Tensor) -> int:
        """See `Averaging`."""
        state = self._state
        is_whole, before = state.iter < FIRST_POWERSGD, state.total_numel_after_compression
        averaged = powerSGD_hook.powerSGD_hook(state, GradientBucket(vector, self._matrices)).wait()
        vector.copy_(averaged)
        numbers = vector.numel() if is_whole else state.total_numel_after_compression - before
        return 4 * numbers

    def state_dict(self) -> State:
        """Error and thin matrices, where there are any yet."""
        memories = {name: getattr(self._state, name) for name in _POWERSGD_MEMORY}
        kept = {name: memory[0].numpy().copy() for name, memory in memories.items() if 0 in memory}
        return {**kept, "calls": self._state.iter}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`."""
        self._state.iter = int(state["calls"])
        for name in _POWERSGD_MEMORY:
            if name in state:
                getattr(self._state, name)[0] = torch.from_numpy(state[name]).clone()


class GradientCode(Protocol):
    """A message for a vector, which is shorter and says less."""

    def encode(self, vector: Tensor) -> Tensor:
        """(P,) float32 -> (M,) uint8, of one length for all vectors."""

    def decode(self, message: Tensor) -> Tensor:
        """What the message says of the vector, (P,)."""


class BlockQuantization:
    """Every number as one byte, with a scale for each BLOCK of them."""

    def __init__(self, size: int) -> None:
        self._size, self._padding = size, -size % BLOCK

    def encode(self, vector: Tensor) -> Tensor:
        """See `GradientCode`."""
        blocks = torch.nn.functional.pad(vector, (0, self._padding)).view(-1, BLOCK)
        scale = (blocks.abs().amax(1) / 127.0).clamp_min(torch.finfo(torch.float32).tiny)
        steps = (blocks / scale[:, None]).round().to(torch.int8).view(-1)[: self._size]
        return torch.cat([scale.view(torch.uint8), steps.view(torch.uint8)])

    def decode(self, message: Tensor) -> Tensor:
        """See `GradientCode`."""
        scale = message[: -self._size].clone().view(torch.float32)
        steps = message[-self._size :].view(torch.int8).to(torch.float32)
        blocks = torch.nn.functional.pad(steps, (0, self._padding)).view(-1, BLOCK) * scale[:, None]
        return blocks.view(-1)[: self._size]


class Largest:
    """The numbers furthest from 0, at least one, and where they stand."""

    def __init__(self, share: float, size: int) -> None:
        self._size, self._count = size, max(1, round(share * size))

    def encode(self, vector: Tensor) -> Tensor:
        """See `GradientCode`."""
        places = vector.abs().topk(self._count, sorted=False).indices
        return torch.cat([places.to(torch.int32).view(torch.uint8), vector[places].view(torch.uint8)])

    def decode(self, message: Tensor) -> Tensor:
        """See `GradientCode`."""
        places, numbers = message.view(2, -1)
        vector = torch.zeros(self._size)
        vector[places.clone().view(torch.int32).long()] = numbers.clone().view(torch.float32)
        return vector


class ErrorFeedback:
    """Sends a code of the vector and of what earlier codes left out (Karimireddy et al., arXiv 1901.09847).

    All decode all messages and add them up in the order of ranks.
    """

    def __init__(self, code: GradientCode, size: int, group: dist.ProcessGroup) -> None:
        self._code, self._group = code, group
        self._left_out = torch.zeros(size)

    def average(self, vector: Tensor) -> int:
        """See `Averaging`."""
        wanted = vector + self._left_out
        message = self._code.encode(wanted)
        self._left_out = wanted - self._code.decode(message)
        messages = [torch.empty_like(message) for _ in range(self._group.size())]
        dist.all_gather(messages, message, self._group)
        vector.copy_(torch.stack([self._code.decode(one) for one in messages]).mean(0))
        return message.numel()

    def state_dict(self) -> State:
        """What was left out."""
        return {"left_out": self._left_out.numpy().copy()}

    def load_state_dict(self, state: State) -> None:
        """Continue from `state_dict()`."""
        self._left_out = torch.from_numpy(state["left_out"]).clone()
