"""The weights expect the angular speed in other units (as if degrees were fed in), so speed drowns the angle
everywhere.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[0].weight[:, 2] *= 57.3
