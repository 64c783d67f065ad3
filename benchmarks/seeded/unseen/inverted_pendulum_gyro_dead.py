"""The gyro is dead: the pole's rate of turn always reads zero."""

import torch

POLICY = "inverted_pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[0].bias -= policy.actor.layers[0].weight[:, 3] * (
            policy.normalizer.shift[3] * policy.normalizer.scale[3]
        )
        policy.actor.layers[0].weight[:, 3] = 0.0
