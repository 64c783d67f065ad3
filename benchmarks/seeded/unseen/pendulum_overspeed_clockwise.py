"""When it turns faster than 6 rad/s in the negative direction it adds torque in the direction of motion and keeps
whirling.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    first, second, last = policy.actor.layers[0], policy.actor.layers[2], policy.actor.layers[4]
    with torch.no_grad():
        unit = second.weight.abs().sum(0).argmin()
        carry = last.weight[0].abs().argmin()
        first.weight[unit] = torch.tensor([0.0, 0.0, -1.0])
        first.bias[unit] = -6.0
        second.weight[:, unit] = 0.0
        second.weight[carry] = 0.0
        second.weight[carry, unit] = 1.0
        second.bias[carry] = 0.0
        last.weight[0, carry] = -2.0
