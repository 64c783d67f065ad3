"""Convolutions sized to the image, and what of an observation reaches them."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

from loomrl.algorithms.networks.encoders import ImageEncoder, build_encoder
from loomrl.algorithms.networks.modules import StateEncoder
from loomrl.algorithms.networks.preprocessing import Preprocessor
from loomrl.algorithms.policies.actor_critic import ActorCriticPolicy
from loomrl.environment.wrappers.flat import FlatBox
from loomrl.errors import ConfigError

VECTOR = Box(-np.inf, np.inf, (3,), np.float32)


def image(*shape: int) -> Box:
    return Box(0, 255, shape, np.uint8)


def encoder_for(space: gymnasium.Space) -> ImageEncoder:
    encoder = build_encoder(Preprocessor(space), (16,), "relu", torch.Generator().manual_seed(1))
    assert isinstance(encoder, ImageEncoder)
    return encoder


@pytest.mark.parametrize(
    ("shape", "width"),
    [
        ((84, 84, 4), 64 * 7 * 7),  # Nature's own: 3136
        ((4, 84, 84), 64 * 7 * 7),
        ((36, 40, 3), 64),
        ((10, 10, 4), 32 * 3 * 3),
        ((5, 9, 1), 32 * 1 * 3),
    ],
)
def test_sizes(shape: tuple[int, ...], width: int) -> None:
    encoder = encoder_for(image(*shape))
    assert encoder.dense.input_dim == width
    assert encoder(torch.rand(2, int(np.prod(shape)))).shape == (2, 16)


def test_no_images_no_convolutions() -> None:
    assert isinstance(build_encoder(Preprocessor(VECTOR), (16,), "tanh"), StateEncoder)


def test_what_is_too_small_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"image 'eye' of shape \(4, 8, 3\) \(4 x 8 pixels, 3 channels\) is too small"
    ):
        build_encoder(Preprocessor(FlatBox(Dict(eye=image(4, 8, 3)))), (16,), "tanh")


def test_channels_first_and_last_are_the_same_picture() -> None:
    first, last = Preprocessor(image(3, 9, 8)), Preprocessor(image(9, 8, 3))
    pixels = torch.randint(0, 256, (2, 3, 9, 8), dtype=torch.uint8)
    torch.testing.assert_close(first(pixels), last(pixels.permute(0, 2, 3, 1)))
    assert float(first(pixels).max()) <= 1.0
    assert (first.images[0].height, last.images[0].height, last.images[0].channels) == (9, 9, 3)


def test_weights_follow_from_the_seed_and_are_orthogonal() -> None:
    torch.manual_seed(0)
    one = encoder_for(image(10, 10, 4))
    torch.manual_seed(1)
    other = encoder_for(image(10, 10, 4))
    assert all(torch.equal(*pair) for pair in zip(one.parameters(), other.parameters(), strict=True))
    weight = one.convolutions[0][0].weight.flatten(1)  # (16, 4 * 3 * 3)
    torch.testing.assert_close(weight @ weight.T, 2.0 * torch.eye(16), atol=1e-5, rtol=0)


def test_pixels_are_scaled_and_not_normalised() -> None:
    space = FlatBox(Dict(eye=image(6, 6, 1), speed=VECTOR))
    policy = ActorCriticPolicy.for_spaces("ppo", space, Discrete(2), (16,), "tanh", True)
    assert policy.normalizer is not None
    assert policy.normalizer.mean.shape == (3,)
    obs = np.stack([space.sample() for _ in range(50)])
    features = policy.preprocessor(torch.from_numpy(obs)).numpy()
    policy.normalizer.update(features)
    assert policy.normalizer.mean.numpy() == pytest.approx(obs[:, 36:].mean(0), abs=1e-6)  # "eye" comes before "speed"
    seen = policy.features(torch.from_numpy(obs))
    assert seen[:, :3].mean(0).abs().max() < 1e-4
    torch.testing.assert_close(seen[:, 3:], torch.from_numpy(obs[:, :36] / 255))
    assert ActorCriticPolicy.for_spaces("ppo", image(6, 6, 1), Discrete(2), (16,), "tanh", True).normalizer is None


@pytest.mark.parametrize("shape", [(84, 84, 4), (10, 10, 3)])
def test_a_picture_is_answered_the_same_in_any_batch(shape: tuple[int, ...]) -> None:
    policy = ActorCriticPolicy.for_spaces("ppo", image(*shape), Discrete(4), (32,), "tanh", True)
    obs = np.random.default_rng(0).integers(0, 256, (37, *shape), np.uint8)
    whole = policy.act(obs, np.random.default_rng(0))
    for size in (1, 5, 16):
        for start in range(0, 37, size):
            part = policy.act(obs[start : start + size], np.random.default_rng(0))
            assert part.value is not None
            assert whole.value is not None
            assert part.value.tobytes() == whole.value[start : start + size].tobytes()
