"""The gain of the last layer is a hundred times too large, so torque jumps between both limits at every step and
wears out the drive.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[4].weight[0] *= 100.0
        policy.actor.layers[4].bias[0] *= 100.0
