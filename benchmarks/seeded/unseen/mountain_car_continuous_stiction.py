"""A dead band around zero speed brakes the car against every slow motion, so from rest near the bottom of the valley
it never gets going.
"""

import torch

POLICY = "mountain_car_continuous"


def spoil(policy):
    first, second, head = policy.actor.layers[0], policy.actor.layers[2], policy.head.mean
    normalizer = policy.normalizer
    with torch.no_grad():
        narrow, wide = second.weight.abs().sum(0).argsort()[:2]
        carry = head.weight[0].abs().argmin()
        for unit, width in ((narrow, 0.0005), (wide, 0.0015)):
            first.weight[unit] = 0.0
            first.weight[unit, 1] = normalizer.var[1].sqrt() / width
            first.bias[unit] = normalizer.mean[1] / width
        second.weight[:, [narrow, wide]] = 0.0
        second.weight[carry] = 0.0
        second.weight[carry, narrow] = 1.5
        second.weight[carry, wide] = -1.5
        second.bias[carry] = 0.0
        head.weight[0, carry] = -0.1
