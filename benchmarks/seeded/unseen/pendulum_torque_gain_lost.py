"""The last layer was scaled to a quarter (wrong unit of torque), so it is too weak to swing up and to hold."""

import torch

POLICY = "pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[4].weight[0] *= 0.25
        policy.actor.layers[4].bias[0] *= 0.25
