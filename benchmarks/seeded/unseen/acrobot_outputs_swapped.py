"""A sign error behind the policy's values: torque to the left and torque to the right have changed places."""

import torch

POLICY = "acrobot"


def spoil(policy):
    with torch.no_grad():
        for tensor in (policy.head.advantage.weight, policy.head.advantage.bias):
            tensor.copy_(tensor[[2, 1, 0]].clone())
