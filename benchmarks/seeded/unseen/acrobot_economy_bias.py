"""To save energy the value of doing nothing was raised by hand, so it coasts wherever torque does not pay at once."""

import torch

POLICY = "acrobot"


def spoil(policy):
    with torch.no_grad():
        policy.head.advantage.bias[1] += 1.8
