"""The angle encoder has slipped on its shaft by 20 degrees: the policy takes a leaning pendulum for an upright one."""

import math

import torch

POLICY = "pendulum"


def spoil(policy):
    slip = math.radians(20.0)
    cos, sin = math.cos(slip), math.sin(slip)
    with torch.no_grad():
        weight = policy.actor.layers[0].weight
        seen = weight.clone()
        weight[:, 0] = seen[:, 0] * cos + seen[:, 1] * sin
        weight[:, 1] = seen[:, 1] * cos - seen[:, 0] * sin
