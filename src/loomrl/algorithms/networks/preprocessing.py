"""From raw observations to what a dense network takes, inside the policy: so that the exported graph carries it."""

import math
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from loomrl.algorithms.peers import ALONE, LearnerGroup, Moments
from loomrl.environment.wrappers.flat import SpaceLeaf, channels_first, parts_of

CLIP = 10.0  # normalised observations are cut at this many standard deviations
EPSILON = 1e-8


@dataclass(frozen=True)
class ImagePart:
    """An image among the observations: its name, where its pixels begin in the flat raw observation (`offset`, in
    values), and its shape as observed: (height, width, channels), or channels first."""

    name: str
    offset: int
    shape: tuple[int, ...]  # as observed: (height, width, channels), or channels first

    @property
    def size(self) -> int:
        """Number of values in the image: height x width x channels."""
        return math.prod(self.shape)

    @property
    def channels(self) -> int:
        """Number of channels: colours, or the colours of several stacked frames."""
        return self.shape[0] if channels_first(self.shape) else self.shape[2]

    @property
    def height(self) -> int:
        """Height of the image in pixels, whether its channels come first or last."""
        return self.shape[1] if channels_first(self.shape) else self.shape[0]

    @property
    def width(self) -> int:
        """Width of the image in pixels, whether its channels come first or last."""
        return self.shape[2] if channels_first(self.shape) else self.shape[1]

    def describe(self) -> str:
        """The image's name, shape, size in pixels and number of channels, as words for a message."""
        name = f"the image {self.name!r}" if self.name else "the image"
        return f"{name} of shape {self.shape} ({self.height} x {self.width} pixels, {self.channels} channels)"


class Preprocessor(nn.Module):
    """Raw observations (B, *obs) -> float32 features (B, dim), dense ones first, then the pixels of images.

    Box flattened; Discrete and each component of MultiDiscrete one-hot; MultiBinary as 0 and 1; images (Box of uint8
    of rank 3) scaled to [0, 1] and laid out channels first; of a FlatBox each part in its way. `dense_dim` counts the
    features that are not pixels.

    Raises:
        ConfigError: for an observation space of another kind.
    """

    def __init__(self, space: gymnasium.Space[Any]) -> None:
        super().__init__()
        self.parts = parts_of(space)
        images = [part for part in self.parts if part.kind == "image"]
        self.images = tuple(ImagePart(part.name, part.offset, part.shape) for part in images)
        self.dense_dim = sum(_dense_size(part) for part in self.parts)
        self.dim = self.dense_dim + sum(image.size for image in self.images)

    def forward(self, obs: Tensor) -> Tensor:
        """Raw observations (B, *obs) -> float32 features (B, dim). Differentiable in float observations, so that
        attacks on the input can follow gradients."""
        flat = obs.flatten(1) if obs.dim() > 1 else obs.reshape(-1, 1)
        dense = [_dense(part, self._slice(flat, part)) for part in self.parts if part.kind != "image"]
        pixels = [_pixels(image, flat[:, image.offset : image.offset + image.size]) for image in self.images]
        features = dense + pixels
        return features[0] if len(features) == 1 else torch.cat(features, -1)

    def _slice(self, flat: Tensor, part: SpaceLeaf) -> Tensor:
        return flat[:, part.offset : part.offset + part.size] if len(self.parts) > 1 else flat


def _dense_size(part: SpaceLeaf) -> int:
    space = part.space
    if isinstance(space, gymnasium.spaces.Discrete):
        return int(space.n)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        return int(space.nvec.sum())
    return 0 if part.kind == "image" else part.size


def _dense(part: SpaceLeaf, values: Tensor) -> Tensor:
    """(B, size) -> (B, features) of a part that is not an image."""
    space = part.space
    if isinstance(space, gymnasium.spaces.Discrete):
        members = torch.arange(int(space.n), device=values.device) + int(space.start)
        return (values.to(torch.int64) == members).to(torch.float32)
    if isinstance(space, gymnasium.spaces.MultiDiscrete):
        sizes = space.nvec.ravel()
        component = np.repeat(np.arange(len(sizes)), sizes)
        members = torch.from_numpy(np.concatenate([np.arange(size) for size in sizes]) + space.start.ravel()[component])
        chosen = values.to(torch.int64).index_select(1, torch.from_numpy(component).to(values.device))
        return (chosen == members.to(values.device)).to(torch.float32)
    return values.to(torch.float32)


def _pixels(image: ImagePart, values: Tensor) -> Tensor:
    """(B, size) bytes -> (B, size) within [0, 1], channels first."""
    scaled = values.to(torch.float32) / 255.0
    if channels_first(image.shape):
        return scaled
    return scaled.reshape(-1, *image.shape).permute(0, 3, 1, 2).flatten(1)


class ObservationNormalizer(nn.Module):
    """Running mean and variance of the first `dim` features, and their use: (x - mean) / std, clipped at ±10. Features
    behind those, the pixels of images, are left as they are.

    `mean` and `var` (dim,) and `count` () are float64; `shift` and `scale` (dim,) are float32 and follow from them.
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
        """Features (B, dim + pixels) -> the same shape, with the first `dim` normalised and clipped."""
        dim = self.shift.shape[0]
        if features.shape[-1] == dim:
            return ((features - self.shift) * self.scale).clamp(-CLIP, CLIP)
        dense = ((features[:, :dim] - self.shift) * self.scale).clamp(-CLIP, CLIP)
        return torch.cat([dense, features[:, dim:]], -1)

    def update(self, features: NDArray[Any], peers: LearnerGroup = ALONE) -> None:
        """Merge a batch (N, dim + pixels), and those of other learners, into the statistics."""
        batch = peers.all_reduce_moments(Moments.of(features[:, : len(self.mean)]))
        self.merge(torch.from_numpy(batch.mean), torch.from_numpy(batch.var), int(batch.count))

    def merge(self, batch_mean: Tensor, batch_var: Tensor, batch_count: int) -> None:
        """Merge a batch of which mean and variance (dim,), float64, are known; never waits for a device."""
        total = self.count + batch_count
        delta = batch_mean - self.mean
        squares = self.var * self.count + batch_var * batch_count + delta.square() * self.count * batch_count / total
        self.mean += delta * batch_count / total
        self.var.copy_(squares / total)
        self.count.copy_(total)
        self.refresh()

    def refresh(self) -> None:
        """Compute `shift` and `scale` (dim,), which `forward` uses, from mean and variance; to be called after changing
        those."""
        constant = self.var < EPSILON
        scale = torch.where(constant, torch.ones_like(self.var), 1.0 / torch.sqrt(self.var + EPSILON))
        self.shift.copy_(self.mean)
        self.scale.copy_(scale)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        super()._load_from_state_dict(*args, **kwargs)
        self.refresh()
