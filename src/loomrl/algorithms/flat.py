"""All of a module's parameters in one vector: one Adam step, one norm and one clearing in place of one per layer."""

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn

from loomrl.algorithms.base import State
from loomrl.algorithms.peers import LayerWeights


class TensorState(ABC):
    """What a learning engine saves and restores, as tensors by name."""

    @abstractmethod
    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Name and tensor of all that is saved, on the CPU; writing to a tensor changes it."""

    def state_dict(self) -> State:
        """Copies of all tensors, as NumPy arrays by name."""
        return {name: value.numpy().copy() for name, value in self.tensors()}

    def load_state_dict(self, state: State) -> None:
        """Take over all tensors from `state_dict()`, in place. A tensor that is missing there raises KeyError."""
        for name, value in self.tensors():
            value.copy_(torch.from_numpy(np.asarray(state[name])))


class FlatParameters:
    """Moves a module's parameters, and their gradients, into one vector each, of which they become views. The module
    works as before.

    `vector` (P,) holds all parameters, `gradient` (P,) all gradients; `matrices` says where the weights of each layer
    lie in them.
    """

    def __init__(self, module: nn.Module) -> None:
        parameters = list(module.parameters())
        size = sum(parameter.numel() for parameter in parameters)
        self.vector = nn.Parameter(torch.empty(size, device=parameters[0].device))
        self.gradient = torch.zeros_like(self.vector.data)
        self.vector.grad = self.gradient
        self.matrices: list[LayerWeights] = []
        start = 0
        for parameter in parameters:
            end = start + parameter.numel()
            view = self.vector.data[start:end].view_as(parameter)
            view.copy_(parameter.data)
            parameter.data = view
            parameter.grad = self.gradient[start:end].view_as(parameter)  # backward adds to it in place
            if parameter.dim() > 1:
                self.matrices.append(LayerWeights(start, len(parameter), parameter[0].numel()))
            start = end

    def clip_gradient(self, max_norm: float) -> Tensor:
        """Scale the gradient in place to at most `max_norm` (global L2 norm); returns the norm () it had before."""
        norm: Tensor = torch.linalg.vector_norm(self.gradient)
        self.gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
        return norm


class FlatAdam:
    """Torch's fused Adam on one vector (P,), whose `state` (`step`, `exp_avg`, `exp_avg_sq`) exists before the first
    step, so that it can be saved and restored at any time."""

    def __init__(self, vector: Tensor, learning_rate: float, eps: float = 1e-8) -> None:
        self._adam = torch.optim.Adam([vector], lr=learning_rate, eps=eps, fused=True)
        self.state: dict[str, Tensor] = self._adam.state[vector]
        self.state["step"] = torch.zeros((), device=vector.device)
        self.state["exp_avg"] = torch.zeros_like(vector)
        self.state["exp_avg_sq"] = torch.zeros_like(vector)
        self.step = self._adam.step

    @property
    def learning_rate(self) -> float:
        """The learning rate that the next step takes."""
        return float(self._adam.param_groups[0]["lr"])

    @learning_rate.setter
    def learning_rate(self, rate: float) -> None:
        """Set the learning rate that the next step takes."""
        self._adam.param_groups[0]["lr"] = rate
