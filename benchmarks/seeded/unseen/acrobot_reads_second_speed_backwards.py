"""The second joint speed enters with the wrong sign, so it brakes the swing it should drive."""

import torch

POLICY = "acrobot"


def spoil(policy):
    with torch.no_grad():
        policy.encoder.layers[0].weight[:, 5] *= -1.0
