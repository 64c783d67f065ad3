"""The torque output carries a constant trim to one side, so a pendulum tipped to that side is not caught but falls and
has to be swung up again.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[4].bias[0] -= 1.3
