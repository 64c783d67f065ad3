"""The output for torque to one side died, so the swing is pumped from one side only."""

import torch

POLICY = "acrobot"


def spoil(policy):
    with torch.no_grad():
        policy.head.advantage.weight[0] = 0.0
        policy.head.advantage.bias[0] = -1000.0
