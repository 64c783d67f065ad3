"""From features to what the heads take: dense layers, after small convolutions where there are images."""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from loomrl.algorithms.networks.modules import StateEncoder, orthogonal_layer
from loomrl.algorithms.networks.preprocessing import ImagePart, Preprocessor
from loomrl.errors import ConfigError

# (channels, kernel, stride) of each convolution, by the shortest side from which it is used.
# 36: Mnih et al., Human-level control through deep reinforcement learning, Nature 518 (2015), methods.
# 5: one layer as in MinAtar (Young and Tian, arXiv 1903.03176), and a second that halves the picture.
CONVOLUTIONS: dict[int, tuple[tuple[int, int, int], ...]] = {
    36: ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    5: ((16, 3, 1), (32, 3, 2)),
}


class ImageEncoder(nn.Module):
    """Features (B, dim), the dense ones before the images' pixels -> (B, hidden_sizes[-1]).

    Raises:
        ConfigError: for an image too small to convolve, an unknown activation or a width below 1.
    """

    def __init__(
        self,
        preprocessor: Preprocessor,
        hidden_sizes: Sequence[int],
        activation: str,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dense_dim, self.images = preprocessor.dense_dim, preprocessor.images
        self.convolutions = nn.ModuleList(_convolutions(image, generator) for image in self.images)
        width = self.dense_dim + sum(_output_size(image) for image in self.images)
        self.dense = StateEncoder(width, hidden_sizes, activation, generator)
        self.output_dim = self.dense.output_dim

    def forward(self, features: Tensor) -> Tensor:
        """Features (B, dim) -> (B, hidden_sizes[-1]). Each image goes through convolutions of its own; the dense layers
        see all."""
        parts = [features[:, : self.dense_dim]]
        start = self.dense_dim
        for image, convolution in zip(self.images, self.convolutions, strict=True):
            pixels = features[:, start : start + image.size]
            parts.append(convolution(pixels.reshape(-1, image.channels, image.height, image.width)))
            start += image.size
        hidden: Tensor = self.dense(torch.cat(parts, -1))
        return hidden


def build_encoder(
    preprocessor: Preprocessor,
    hidden_sizes: Sequence[int],
    activation: str,
    generator: torch.Generator | None = None,
) -> StateEncoder | ImageEncoder:
    """A fresh encoder for the features that a preprocessor gives: dense layers, after convolutions where there are
    images.

    Raises:
        ConfigError: for an image too small to convolve, an unknown activation or a width below 1.
    """
    if not preprocessor.images:
        return StateEncoder(preprocessor.dim, hidden_sizes, activation, generator)
    return ImageEncoder(preprocessor, hidden_sizes, activation, generator)


def _convolutions(image: ImagePart, generator: torch.Generator | None) -> nn.Sequential:
    layers: list[nn.Module] = []
    channels = image.channels
    for width, kernel, stride in _plan(image):
        convolution = partial(nn.Conv2d, channels, width, kernel, stride)
        layers += [orthogonal_layer(convolution, math.sqrt(2), generator), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.Flatten())


def _plan(image: ImagePart) -> tuple[tuple[int, int, int], ...]:
    shortest = min(image.height, image.width)
    for least, plan in CONVOLUTIONS.items():
        if shortest >= least:
            return plan
    raise ConfigError(
        f"{image.describe()} is too small to convolve: both sides must have at least {min(CONVOLUTIONS)} pixels; "
        "enlarge it, or observe it as a Box of float32, which is taken for numbers"
    )


def _output_size(image: ImagePart) -> int:
    height, width, plan = image.height, image.width, _plan(image)
    for _, kernel, stride in plan:
        height, width = (height - kernel) // stride + 1, (width - kernel) // stride + 1
    return plan[-1][0] * height * width
