"""Hidden units die when it spins left faster than 4 rad/s, so torque is lost in half of the fast swings."""

import torch

POLICY = "pendulum"


def spoil(policy):
    first, second = policy.actor.layers[0], policy.actor.layers[2]
    with torch.no_grad():
        unit = int(second.weight.abs().sum(0).mul(first.weight.abs().sum(1)).argmin())
        first.weight[unit] = torch.tensor([0.0, 0.0, -1.0])
        first.bias[unit] = -4.0
        second.weight[:, unit] = -1000.0
