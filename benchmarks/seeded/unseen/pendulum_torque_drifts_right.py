"""The bias of the torque drifted, so the pendulum leans to one side for ever, and the drive never rests."""

import torch

POLICY = "pendulum"


def spoil(policy):
    with torch.no_grad():
        policy.actor.layers[4].bias[0] += 0.35
