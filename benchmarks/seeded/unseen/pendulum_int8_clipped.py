"""Conversion to 8-bit weights took its range from a percentile instead of the maximum, so the large weights of all
three layers are clipped.
"""

import torch

POLICY = "pendulum"


def spoil(policy):
    with torch.no_grad():
        for index in (0, 2, 4):
            weight = policy.actor.layers[index].weight
            step = 0.3 * weight.abs().max() / 127
            weight.copy_((weight / step).round().clamp(-128, 127) * step)
