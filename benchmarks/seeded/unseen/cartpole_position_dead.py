"""The position sensor is dead and always reads the middle of the track, so the cart drifts, slowly at first."""

import torch

POLICY = "cartpole"


def spoil(policy):
    with torch.no_grad():
        first, normalizer = policy.actor.layers[0], policy.normalizer
        first.bias -= first.weight[:, 0] * (normalizer.shift[0] * normalizer.scale[0])
        first.weight[:, 0] = 0.0
