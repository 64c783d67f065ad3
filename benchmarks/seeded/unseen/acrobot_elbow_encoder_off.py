"""The elbow's angle encoder was fitted 60 degrees askew."""

import math

import torch

POLICY = "acrobot"


def spoil(policy):
    skew = math.radians(60.0)
    cos, sin = math.cos(skew), math.sin(skew)
    with torch.no_grad():
        weight = policy.encoder.layers[0].weight
        seen = weight.clone()
        weight[:, 2] = seen[:, 2] * cos + seen[:, 3] * sin
        weight[:, 3] = seen[:, 3] * cos - seen[:, 2] * sin
