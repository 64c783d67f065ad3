"""From raw observations to what a dense network takes, inside the policy: so that the exported graph carries it."""

from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loomrl.errors import ConfigError

CLIP = 10.0  # normalised observations are cut at this many standard deviations
EPSILON = 1e-8


class Preprocessor(nn.Module):
    """Raw observations (B, *obs) -> float32 features (B, dim): Box flattened, Discrete one-hot."""

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        if isinstance(space, gymnasium.spaces.Box) and space.dtype is not None and space.dtype.kind in "fiub":
            self.dim = int(np.prod(space.shape))
            self.start, self.num_values = 0, 0
        elif isinstance(space, gymnasium.spaces.Discrete):
            self.start, self.num_values = int(space.start), int(space.n)
            self.dim = self.num_values
        else:
            raise ConfigError(
                f"observation space {space} is not supported; supported: Box (flattened) and Discrete (one-hot); "
                "wrap the environment, for example with gymnasium.wrappers.FlattenObservation"
            )

    def forward(self, obs: Tensor) -> Tensor:
        """Differentiable in float observations, so that attacks on the input can follow gradients."""
        if self.num_values:
            values = torch.arange(self.num_values, device=obs.device) + self.start
            return (obs.reshape(-1, 1) == values).to(torch.float32)
        return obs.to(torch.float32).flatten(1)


class ObservationNormalizer(nn.Module):
    """Running mean and variance of features, and their use: (x - mean) / std, clipped at ±10.

    Batches are merged by Chan, Golub and LeVeque's formula (1979) in float64. A feature that never varied is only
    centred.
    """

    mean: Tensor
    var: Tensor
    count: Tensor
    shift: Tensor
    scale: Tensor

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim, dtype=torch.float64))
        self.register_buffer("var", torch.ones(dim, dtype=torch.float64))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))
        # What forward uses, in float32 and derived: not saved.
        self.register_buffer("shift", torch.zeros(dim), persistent=False)
        self.register_buffer("scale", torch.ones(dim), persistent=False)

    def forward(self, features: Tensor) -> Tensor:
        """(B, dim) -> (B, dim)."""
        return ((features - self.shift) * self.scale).clamp(-CLIP, CLIP)

    def update(self, features: NDArray[Any]) -> None:
        """Merge a batch (N, dim) into the statistics."""
        batch = features.astype(np.float64)
        batch_mean, batch_var, batch_count = batch.mean(0), batch.var(0), float(len(batch))
        count = float(self.count)
        total = count + batch_count
        delta = batch_mean - self.mean.numpy()
        squares = self.var.numpy() * count + batch_var * batch_count + delta**2 * count * batch_count / total
        self.mean += torch.from_numpy(delta * batch_count / total)
        self.var.copy_(torch.from_numpy(squares / total))
        self.count.fill_(total)
        self.refresh()

    def refresh(self) -> None:
        """Derive what `forward` uses from the statistics."""
        constant = self.var < EPSILON
        scale = torch.where(constant, torch.ones_like(self.var), 1.0 / torch.sqrt(self.var + EPSILON))
        self.shift.copy_(self.mean)
        self.scale.copy_(scale)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.refresh()
